package main

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
)

func TestHostsLines(t *testing.T) {
	t.Parallel()
	list := []server.HostAddresses{
		{Host: "a.lab", Addresses: []string{"240.240.1.2", "2001:2::1"}, Loopback: "127.240.1.2", Allocated: true},
		{Host: "b.lab", Addresses: []string{"10.0.0.1", "10.1.0.0/16", "240.240.1.3", "240.240.1.4"}, Loopback: "127.240.1.3"},
		{Host: "*.lab", Addresses: []string{"240.240.1.5"}, Loopback: "127.240.1.5"},
		{Host: "c.lab"},
	}
	for loopback, want := range map[bool]string{
		false: "240.240.1.2 a.lab\n2001:2::1 a.lab\n10.0.0.1 b.lab\n240.240.1.3 b.lab\n240.240.1.4 b.lab\n",
		true:  "127.240.1.2 a.lab\n127.240.1.3 b.lab\n",
	} {
		var got strings.Builder
		if err := writeHostsLines(&got, list, loopback); err != nil || got.String() != want {
			t.Errorf("loopback %t: %q, %v; want %q", loopback, got.String(), err, want)
		}
	}
}

func TestAddressesOfSomeHosts(t *testing.T) {
	t.Parallel()
	all := []server.HostAddresses{
		{Namespace: "other", Host: "a.lab", Addresses: []string{"240.240.0.1"}, Allocated: true, Moved: true, Refused: []string{"240.240.0.9"}},
		{Namespace: "shop", Host: "a.lab", Addresses: []string{"10.0.0.1"}},
		{Namespace: "shop", Host: "*.lab", Why: "the host is a wildcard"},
	}
	some, err := someHosts(all, []string{"A.lab"})
	if err != nil || len(some) != 2 {
		t.Errorf("two namespaces have the host: %v, %v", some, err)
	}
	if some, err := someHosts(all, nil); err != nil || len(some) != 3 {
		t.Errorf("without a name: %v, %v", some, err)
	}
	if _, err := someHosts(all, []string{"b.lab"}); err == nil {
		t.Error("a host that does not exist is no error")
	}
	want := []string{"server may differ on other servers; refused: 240.240.0.9", "manifest ", "- the host is a wildcard"}
	for i, x := range all {
		if got := addressesFrom(x) + " " + addressesNote(x); got != want[i] {
			t.Errorf("%s is shown as %q, want %q", x.Host, got, want[i])
		}
	}
}
