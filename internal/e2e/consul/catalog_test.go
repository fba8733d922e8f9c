package consul

import (
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// instance is one registration.
type instance struct {
	id, service string
	host        int // the last number of its address
	port        int
	agent       bool // an agent of ours runs there
}

// meta is what its registration says of it.
func (i instance) meta() map[string]string {
	meta := map[string]string{"protocol": "http", "instance": i.id}
	if i.agent {
		meta["fairlead-tls"] = "istio"
	}
	return meta
}

// apis are the instances of the service that is asked.
func apis() []instance {
	return []instance{
		{id: "api-1", service: "api", host: 12, port: apiPort},
		{id: "api-2", service: "api", host: 13, port: apiPort},
		{id: "api-3", service: "api", host: 14, port: apiPort, agent: true},
	}
}

// solo is a service with one instance: the application of api-1.
func solo() instance { return instance{id: "solo-1", service: "solo", host: 12, port: apiPort} }

// others are two instances of each of ten services that nobody asks, on the same
// hosts.
func others() []instance {
	var out []instance
	for i := range 20 {
		out = append(out, instance{id: fmt.Sprintf("other-%d-%d", i%10, i/10), service: fmt.Sprintf("other-%d", i%10), host: 12 + i/10, port: 7000 + i})
	}
	return out
}

// fill registers everything.
func (f *fleet) fill() {
	f.t.Helper()
	c := f.consul.Client()
	for _, i := range append(apis(), others()...) {
		if err := f.register(c, i, api.HealthPassing); err != nil {
			f.t.Fatal(err)
		}
	}
}

// register puts an instance into the catalog with a check of that status, as an
// agent's anti-entropy or an external monitor does.
func (f *fleet) register(c *api.Client, i instance, status string) error {
	_, err := c.Catalog().Register(&api.CatalogRegistration{
		Node: fmt.Sprintf("host-%d", i.host), Address: f.Address(i.host),
		Service: &api.AgentService{ID: i.id, Service: i.service, Address: f.Address(i.host), Port: i.port, Meta: i.meta(), Tags: []string{"blue"}},
		Check: &api.AgentCheck{
			Node: fmt.Sprintf("host-%d", i.host), CheckID: "service:" + i.id, Name: "alive",
			ServiceID: i.id, ServiceName: i.service, Status: status,
		},
	}, nil)
	return err
}

// deregister takes an instance out of the catalog.
func (f *fleet) deregister(c *api.Client, i instance) error {
	_, err := c.Catalog().Deregister(&api.CatalogDeregistration{Node: fmt.Sprintf("host-%d", i.host), ServiceID: i.id}, nil)
	return err
}

// put registers an instance; a busy cluster may have no leader for a while.
func (f *fleet) put(i instance, status string) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error { return f.register(f.consul.Client(), i, status) })
}

// takeOut deregisters an instance; a busy cluster may have no leader for a while.
func (f *fleet) takeOut(i instance) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error { return f.deregister(f.consul.Client(), i) })
}
