package ownaddress

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TestOf: a loopback address is the last choice.
func TestOf(t *testing.T) {
	t.Parallel()
	own := ""
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() && own == "" {
			own = p.Addr().String()
		}
	}
	if own == "" {
		t.Skip("this machine has loopback addresses only; a test with network namespaces has others")
	}
	for name, c := range map[string]struct {
		servers []string
		want    string
	}{
		"loopback_first": {[]string{"127.0.1.1:15012", own + ":15012"}, own},
		"name_first":     {[]string{"localhost:15012", own + ":15012"}, own},
		"real_first":     {[]string{own + ":15012", "127.0.1.1:15012"}, own},
		"unknown_name":   {[]string{"no-such-host.invalid:15012", own + ":15012"}, own},
		"loopback_only":  {[]string{"127.0.0.1:15012"}, "127.0.0.1"},
	} {
		got, err := Of(t.Context(), c.servers)
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %v, %v; want %s", name, got, err, c.want)
		}
	}
	for _, servers := range [][]string{nil, {"no-such-host.invalid:15012"}, {"10.0.0.1"}} {
		if got, err := Of(t.Context(), servers); err == nil || got.IsValid() {
			t.Errorf("%v: %v, %v", servers, got, err)
		}
	}
	if _, err := Of(t.Context(), []string{"10.0.0.1"}); err == nil || !strings.Contains(err.Error(), "HOST:PORT") {
		t.Errorf("a server without a port: %v", err)
	}
}

// TestRank: what others reach comes first.
func TestRank(t *testing.T) {
	t.Parallel()
	order := []string{"0.0.0.0", "127.0.1.1", "169.254.0.1", "10.0.0.1"}
	for i := range order[1:] {
		if rank(netip.MustParseAddr(order[i])) >= rank(netip.MustParseAddr(order[i+1])) {
			t.Errorf("%s does not come behind %s", order[i], order[i+1])
		}
	}
	for loopback, global := range map[string]string{"::1": "fd00::1", "fe80::1": "2001:db8::1"} {
		if rank(netip.MustParseAddr(loopback)) >= rank(netip.MustParseAddr(global)) {
			t.Errorf("%s does not come behind %s", loopback, global)
		}
	}
}
