package programs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// TestHostsReboot: all hosts lose power while the control plane is away. They come back without it,
// closed until their Envoys serve, and with the names, rules and certificates that they had.
func TestHostsReboot(t *testing.T) {
	t.Parallel()
	h := start(t, (*hosttest.LAN).Host)
	h.Write("policy.yaml", fmt.Sprintf(allow, "web"))
	calls := h.calls()
	h.await(calls, true)
	h.Server.Kill()
	all := []*hosttest.Host{h.web, h.api, h.data}
	for _, x := range all {
		x.Down()
		h.resolvers[x.Label].Kill()
	}
	if out := h.web.Check(); !strings.Contains(out, "there is no table: nothing is captured") {
		t.Errorf("agent check does not see that nothing is captured: %s", out)
	}
	for _, x := range all {
		x.StartKeeper()
	}
	if out := h.web.Check(); !strings.Contains(out, `{"check":"capture","state":"ok"`) || !strings.Contains(out, `{"check":"firewall","state":"ok"`) {
		t.Errorf("agent check does not see that connections are captured: %s", out)
	}
	for _, c := range calls {
		if strings.Contains(c.name, "_IPv") && !strings.HasPrefix(c.name, "curl") { // those that need no name
			if err := h.do(hosttest.AppUser, soon, c); err == nil {
				t.Errorf("%s is answered before Envoy runs", c.name)
			}
		}
	}
	for _, x := range all {
		h.startAgent(x, "", map[*hosttest.Host]string{h.web: h.web.IP4(), h.api: h.api.IP4(), h.data: h.data.IP6()}[x])
		h.startResolver(x)
	}
	h.await(calls, true)
	h.undeclared(calls)
}

// TestNetworkChanges: the network's nameserver dies, and names of the mesh are answered all the same. Hosts
// get other addresses, which the mesh is told, and their agents start again.
func TestNetworkChanges(t *testing.T) {
	t.Parallel()
	h := start(t, (*hosttest.LAN).Host)
	calls := h.calls()
	h.await(calls, true)

	outside := func() error {
		out, err := h.web.Run(hosttest.AppUser, "getent", "ahostsv4", "outside.example")
		if err == nil && !strings.Contains(out, h.Control.IP4()) {
			err = errors.New(out)
		}
		return err
	}
	h.nameserver.Kill()
	h.await(calls, true)
	if err := outside(); err == nil {
		t.Error("a name of the network is known without its nameserver")
	}
	h.startNameserver()
	envoytest.Eventually(t, envoytest.Patience, outside)

	// A host that calls: the mesh has its new address, and its agent starts with it. What the program has
	// open is lost, as it is without the mesh.
	h.web.Move(12)
	h.webApp.Kill()
	h.webAt = h.web.IP4()
	h.writeMesh()
	h.web.Agent.Stop()
	h.startAgent(h.web, "", h.web.IP4())
	h.startWebApp()
	h.await(calls, true)
	h.Write("policy.yaml", fmt.Sprintf(allow, "nobody")) // what the control plane says still arrives
	h.await(calls, false)
	h.Write("policy.yaml", fmt.Sprintf(allow, "web"))
	h.await(calls, true)

	h.api.Move(13) // a host that is called
	h.writeMesh()
	h.api.Agent.Stop()
	h.startAgent(h.api, "", h.api.IP4())
	h.await(calls, true)
}

// TestFarHost: a host loses one of five packets that it sends, and the others arrive after 200 ms. It joins,
// gets its configuration and names, calls by mTLS, and follows changes.
func TestFarHost(t *testing.T) {
	t.Parallel()
	h := start(t, func(l *hosttest.LAN, label string, number int) *hosttest.Host {
		return l.FarHost(label, number, 200*time.Millisecond, 0.2)
	})
	calls := h.calls()
	h.await(calls, true)
	h.Write("policy.yaml", fmt.Sprintf(allow, "nobody"))
	h.await(calls, false)
	h.Write("policy.yaml", fmt.Sprintf(allow, "web"))
	h.await(calls, true)
}
