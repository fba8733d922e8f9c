package capture

import (
	"testing"

	"github.com/fairlead/fairlead/internal/nethost"
)

// Users of the tests. No such users have to exist.
const (
	proxyUser, appUser, otherUser = 21337, 22001, 23001
)

// host is a host of the tests.
type host struct {
	*nethost.Host

	t *testing.T
}

func newHost(t *testing.T) *host {
	t.Helper()
	return &host{Host: nethost.New(t), t: t}
}

// link connects two hosts, see [nethost.Link].
func link(a, b *host, net int) { nethost.Link(a.Host, b.Host, net) }

// kernel is the kernel of the host.
func (h *host) kernel() Kernel { return Kernel{NetNS: h.FD} }

// usual are settings for the tests.
func usual() *Settings {
	return &Settings{
		Mode: Closed, Outbound: OutboundVIP, Inbound: InboundDeclared, Ranges: DefaultRanges(),
		Proxies: []uint32{proxyUser}, ControlPlanePorts: []uint16{15012},
		Workloads: []Workload{{Name: "web", Users: []uint32{appUser}, Ports: []uint16{8080}, OutboundPort: 15001, InboundPort: 15006}},
	}
}

// build is Build for settings that are right.
func build(t *testing.T, change func(*Settings)) *Ruleset {
	t.Helper()
	s := usual()
	if change != nil {
		change(s)
	}
	r, err := Build(s, &Facts{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// capture applies a table and what belongs to it.
func (h *host) capture(r *Ruleset) {
	h.t.Helper()
	n, err := h.kernel().Prepare(r)
	if err == nil {
		err = h.kernel().Apply(r)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	for _, s := range n.Skipped {
		h.t.Error(s)
	}
}
