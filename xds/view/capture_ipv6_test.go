package view

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestCapturedIPv6: on a host with an IPv6 address, what capture needs is there for IPv6, too,
// and nowhere else.
func TestCapturedIPv6(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	w.service("shop", "web.mesh", 80).Inline[0].Address = "10.0.0.1"
	w.service("shop", "db.mesh", 3306).Ports[0].Protocol = mesh.TCP
	w.sidecar("shop", "all", `{"egress":[{"hosts":["*/*"]},{"port":{"number":9000,"protocol":"TCP","name":"tcp"},"bind":"0.0.0.0","captureMode":"NONE","hosts":["*/db.mesh"]}]}`)
	x := NewIndex(w.snapshot())
	for name, c := range map[string]struct {
		addresses []string
		mode      Interception
		want      bool
	}{
		"host_has_ipv6": {[]string{"10.0.0.1"}, InterceptRedirect, true},
		"ipv4":          {[]string{"10.0.0.1"}, InterceptRedirect, false},
		"ipv4_mapped":   {[]string{"::ffff:10.0.0.1"}, InterceptRedirect, false},
		"both":          {[]string{"10.0.0.1", "2001:db8::1"}, InterceptRedirect, true},
		"both_tproxy":   {[]string{"10.0.0.1", "2001:db8::1"}, InterceptTPROXY, true},
		"ipv6":          {[]string{"2001:db8::1"}, InterceptRedirect, true},
		"no_capture":    {[]string{"10.0.0.1", "2001:db8::1"}, InterceptNone, false},
		"ipv4_and_junk": {[]string{"10.0.0.1", "x"}, InterceptRedirect, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := proxyIn("shop", nil)
			p.Addresses, p.Interception, p.IPv6 = c.addresses, c.mode, name == "host_has_ipv6"
			seen := 0
			for part := range x.Build(p).Parts() {
				switch part := part.(type) {
				case *Listener:
					captures := part.Name == "virtualInbound" || part.Name == "virtualOutbound" || part.Addresses[0] == wildcard && !part.BindToPort
					if got := slices.Contains(part.Addresses, wildcardIPv6); got != (captures && c.want) {
						t.Errorf("listener %s is at %q", part.Name, part.Addresses)
					}
					seen += len(part.Addresses) - 1
				case *Cluster:
					if part.BindLoopbackIPv6 != (part.BindLoopback && c.want) {
						t.Errorf("cluster %v: from ::6 %v, from 127.0.0.6 %v", part.Ref, part.BindLoopbackIPv6, part.BindLoopback)
					}
				default:
				}
			}
			if c.want != (seen >= 4) { // two ports, inbound and outbound
				t.Errorf("%d listeners are for IPv6", seen)
			}
		})
	}
}
