package consul

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul"
)

// TestAgentsOfHosts is about a fleet as Consul's people have it: each host has an
// agent that registers what runs there and tells of its checks, and the control
// plane asks the agent beside it.
func TestAgentsOfHosts(t *testing.T) {
	t.Parallel()
	f := prepare(t, true)
	two := apis()[1]
	f.takeOut(two)
	f.local = f.consul.StartAgent("control-plane")
	host := f.consul.StartAgent("vm-2")
	write := f.consul.CreateToken(`service_prefix "" { policy = "write" }` + "\n" + `node_prefix "" { policy = "read" }`)
	agent := host.ClientWith(write.Secret).Agent()
	err := agent.ServiceRegister(&api.AgentServiceRegistration{
		ID: two.id, Name: two.service, Address: f.Address(two.host), Port: two.port, Meta: two.meta(),
		Check: &api.AgentServiceCheck{CheckID: "service:" + two.id, TTL: "10m", Status: api.HealthPassing},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.start()
	load := f.load()

	// Its check fails; it is in maintenance.
	for _, turn := range []struct{ out, in func() error }{
		{func() error { return agent.FailTTL("service:"+two.id, "") }, func() error { return agent.PassTTL("service:"+two.id, "") }},
		{func() error { return agent.EnableServiceMaintenance(two.id, "") }, func() error { return agent.DisableServiceMaintenance(two.id) }},
	} {
		if err := turn.out(); err != nil {
			t.Fatal(err)
		}
		f.awaitNoneOf(two.id)
		if err := turn.in(); err != nil {
			t.Fatal(err)
		}
		f.awaitAnswerOf(two.id)
	}

	// The host is lost, as Consul sees it, and is back.
	host.Kill()
	f.awaitNoneOf(two.id)
	f.none(f.equal())
	host.Start()
	f.awaitAnswerOf(two.id)

	// It is taken out in good order.
	if err := agent.ServiceDeregister(two.id); err != nil {
		t.Fatal(err)
	}
	f.awaitNoneOf(two.id)
	f.none(f.equal())

	// The agent beside the control plane is lost, and the leader meanwhile.
	f.local.Kill()
	f.awaitState(consul.Stale)
	killed := f.consul.KillLeader()
	f.takeOut(others()[8])
	load.Wait(t, 100)
	f.local.Start()
	f.none(f.equal())
	f.awaitState(consul.Live)
	killed.Start()
	f.none(f.equal())
	f.unharmed(load)
}
