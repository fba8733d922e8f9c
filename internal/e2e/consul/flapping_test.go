package consul

import (
	"fmt"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestRegisteredAThousandTimes takes an instance of a service out and puts it in
// again, a thousand times and as fast as Consul takes it, and another service as
// a whole.
func TestRegisteredAThousandTimes(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		load := f.load()
		one, whole := apis()[1], instance{id: "brief-1", service: "brief", host: 12, port: 7100}
		c := f.consul.Leader().Client()
		begin := time.Now()
		for range 1000 {
			for _, i := range []instance{one, whole} {
				if err := f.deregister(c, i); err != nil {
					t.Fatal(err)
				}
				if err := f.register(c, i, api.HealthPassing); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Logf("4,000 changes in %s", time.Since(begin).Round(time.Millisecond))
		f.none(f.equal())
		f.awaitAll()
		f.takeOut(one)
		f.takeOut(whole)
		f.none(f.equal())
		f.awaitNoneOf(one.id)
		f.unharmed(load)
	})
}

// TestCheckTurnsCritical shows that an instance whose check fails gets no request
// any more, and gets some again when it is well; that maintenance, of an instance
// or a node, and a check of the node count as well.
func TestCheckTurnsCritical(t *testing.T) {
	ways(t, func(f *fleet) {
		load := f.load()
		for _, i := range apis() {
			f.put(i, api.HealthCritical)
			f.awaitNoneOf(i.id)
			f.put(i, api.HealthPassing)
			f.awaitAnswerOf(i.id)
		}
		two := apis()[1]
		for _, check := range []string{api.ServiceMaintPrefix + two.id, api.NodeMaint, "disk"} {
			f.check(two, check, api.HealthCritical)
			f.awaitNoneOf(two.id)
			f.none(f.equal())
			f.check(two, check, "")
			f.awaitAnswerOf(two.id)
			f.none(f.equal())
		}
		f.unharmed(load)
	})
}

// check sets a check of the node that has an instance, or removes it where status
// is empty. Which it concerns is said by its name, as by Consul.
func (f *fleet) check(i instance, id, status string) {
	f.t.Helper()
	c, node := f.consul.Client().Catalog(), fmt.Sprintf("host-%d", i.host)
	if status == "" {
		if _, err := c.Deregister(&api.CatalogDeregistration{Node: node, CheckID: id}, nil); err != nil {
			f.t.Fatal(err)
		}
		return
	}
	check := &api.AgentCheck{Node: node, CheckID: id, Name: id, Status: status}
	if id == api.ServiceMaintPrefix+i.id {
		check.ServiceID = i.id
	}
	if _, err := c.Register(&api.CatalogRegistration{Node: node, Address: f.Address(i.host), SkipNodeUpdate: true, Check: check}, nil); err != nil {
		f.t.Fatal(err)
	}
}

// awaitHeld waits until so many removals at least are held back.
func (f *fleet) awaitHeld(least int) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error {
		st, err := f.registryStatus()
		if err == nil && st.HeldCount < least {
			err = fmt.Errorf("%d removals are held", st.HeldCount)
		}
		return err
	})
}
