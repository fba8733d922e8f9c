package capture

import (
	"errors"
	"flag"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/nethost"
)

// TestPublishedPortsAreRefused: tables as Docker and others write them, for a captured port.
func TestPublishedPortsAreRefused(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for name, c := range map[string]struct {
		rule            string
		refused, remark bool
	}{
		"dnat":        {"tcp dport 8080 dnat to 172.17.0.2:80", true, false},
		"not_lo":      {`iifname != "docker0" tcp dport 8080 counter dnat to 172.17.0.2:80`, true, false},
		"redirect":    {"tcp dport 8080 redirect to :3128", true, false},
		"set":         {"tcp dport { 80, 8080 } redirect to :3128", true, false},
		"range":       {"tcp dport 8000-9000 redirect to :3128", true, false},
		"intervals":   {"tcp dport { 1-100, 8000-9000 } redirect to :3128", true, false},
		"map":         {"dnat to tcp dport map { 80 : 172.17.0.2, 8080 : 172.17.0.3 }", true, false},
		"other_port":  {"tcp dport 8081 dnat to 172.17.0.2:80", false, false},
		"other_range": {"tcp dport { 1-8079, 8081-9000 } redirect to :3128", false, false},
		"udp":         {"udp dport 8080 dnat to 172.17.0.2:80", false, false},
		"everything":  {"meta l4proto tcp redirect to :3128", false, true},
	} {
		h.Load("table ip nat {; chain PREROUTING {; type nat hook prerouting priority -100; policy accept; fib daddr type local jump DOCKER; }; chain DOCKER {; " + c.rule + "; }; }")
		f, err := h.kernel().Inspect(build(t, nil))
		if err != nil || len(f.Refused) > 0 != c.refused || len(f.Remarks) > 0 != c.remark {
			t.Errorf("%s: %+v %v", name, f, err)
		}
		if c.refused && len(f.Refused) > 0 && !strings.Contains(f.Refused[0], "port 8080: table ip nat, chain DOCKER redirects it already") {
			t.Errorf("%s: %q", name, f.Refused)
		}
		h.NFT("", "delete", "table", "ip", "nat")
	}
}

// TestFirewallsAreExplained: what is said of a firewall that drops has it let captured
// connections in, and nothing else; of one like firewalld the opposite is said.
func TestFirewallsAreExplained(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 80)
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	h.Load(`table inet filter {; chain input {; type filter hook input priority 0; policy drop; ct state established,related accept; iifname "lo" accept; meta l4proto ipv6-icmp accept; tcp dport 8080 accept; }; }`)
	r := build(t, nil)
	f, err := h.kernel().Inspect(r)
	if err != nil || len(f.Refused) != 0 || len(f.Remarks) != 1 {
		t.Fatalf("%+v %v", f, err)
	}
	h.capture(r)
	if got := peer.Get(otherUser, "10.80.0.1:8080"); !strings.Contains(got, "timeout") {
		t.Errorf("captured behind a firewall that drops: %q", got)
	}
	_, rules, ok := strings.Cut(f.Remarks[0], "these rules: ")
	if !ok {
		t.Fatal(f.Remarks[0])
	}
	h.NFT("add rule inet filter input meta l4proto tcp "+rules, "-f", "-")
	peer.Want(otherUser, "10.80.0.1:8080", "in 10.80.0.1:8080")
	peer.Want(otherUser, "[fd00:80::1]:8080", "in [fd00:80::1]:8080")
	if got := peer.Get(otherUser, "10.80.0.1:15006"); !strings.Contains(got, "timeout") && got != "refused" {
		t.Errorf("the port of Envoy itself: %q", got)
	}
}

// firewalldLike lets redirected connections in, and closes all other ports.
const firewalldLike = `table inet firewalld {; chain filter_INPUT {; type filter hook input priority 10; policy accept; ct state established,related accept; ct status dnat accept
	iifname "lo" accept; meta l4proto ipv6-icmp accept; tcp dport 22 accept; reject with icmpx type admin-prohibited; }; }`

// TestFirewalldIsExplained: a firewall that lets in what was redirected has a captured port open,
// also if the firewall has it closed; it is said before anything is captured.
func TestFirewalldIsExplained(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 80)
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	h.Load(firewalldLike)
	if got := peer.Get(otherUser, "10.80.0.1:8080"); !strings.HasPrefix(got, "error: ") {
		t.Fatalf("the firewall has the port open: %q", got)
	}
	r := build(t, nil)
	f, err := h.kernel().Inspect(r)
	if err != nil || len(f.Remarks) != 1 || len(f.Refused) != 0 ||
		!strings.Contains(f.Remarks[0], "table inet firewalld, chain filter_INPUT looks at whether connections were redirected") ||
		!strings.Contains(f.Remarks[0], "also where this firewall has them closed") {
		t.Errorf("%+v %v", f, err)
	}
	h.capture(r)
	peer.Want(otherUser, "10.80.0.1:8080", "in 10.80.0.1:8080")
	peer.Want(otherUser, "[fd00:80::1]:8080", "in [fd00:80::1]:8080")
	if got := peer.Get(otherUser, "10.80.0.1:9090"); !strings.HasPrefix(got, "error: ") {
		t.Errorf("a port that is not captured: %q", got)
	}
}

// TestPublishedPortsOfIptables: rules that iptables-nft made, as Docker's.
func TestPublishedPortsOfIptables(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	iptables := func(rule string) {
		t.Helper()
		nethost.Run(t, nethost.Program(t, "ip"), append([]string{"netns", "exec", h.Name, nethost.Program(t, "iptables")}, strings.Fields(rule)...)...)
	}
	iptables("-t nat -N DOCKER")
	iptables("-t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER")
	for rule, refused := range map[string]bool{
		"! -i docker0 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 172.17.0.2:80":        true,
		"-p tcp --dport 8000:9000 -j REDIRECT --to-ports 3128":                                  true,
		"-p tcp --dport 8081 -j DNAT --to-destination 172.17.0.2:80":                            false,
		"-p udp --dport 8080 -j DNAT --to-destination 172.17.0.2:80":                            false,
		"-p tcp -m multiport --dports 80,8080 -j DNAT --to-destination 172.17.0.2":              true,
		"-p tcp -m multiport --dports 80,8081:8090 -j DNAT --to-destination 172.17.0.2":         false,
		"-p tcp -m multiport --sports 8080 -m tcp --dport 81 -j DNAT --to-destination 10.0.0.1": false,
	} {
		iptables("-t nat -A DOCKER " + rule)
		f, err := h.kernel().Inspect(build(t, nil))
		if err != nil || len(f.Refused) > 0 != refused {
			t.Errorf("%s: %+v %v", rule, f, err)
		}
		if len(f.Refused) > 0 && !strings.Contains(f.Refused[0], "table ip nat, chain DOCKER redirects it already") {
			t.Errorf("%s: %q", rule, f.Refused)
		}
		iptables("-t nat -F DOCKER")
	}
}

// TestOrderOfTablesDoesNotMatter: a table like Docker's comes after ours, whichever was loaded
// first, and in both directions.
func TestOrderOfTablesDoesNotMatter(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 84)
	h.Serve("out", 15001, true)
	h.Serve("in", 15006, true)
	h.Serve("docker", 3128, true)
	peer.Serve("peer", 80, false)
	const docker = `table ip nat {; chain PREROUTING {; type nat hook prerouting priority dstnat; policy accept; tcp dport { 8080, 9999 } redirect to :3128; }
		chain OUTPUT {; type nat hook output priority -100; policy accept; ip daddr 10.84.0.2 tcp dport 80 redirect to :3128; }; }`
	r := build(t, all)
	want := func() {
		t.Helper()
		peer.Want(otherUser, "10.84.0.1:8080", "in 10.84.0.1:8080")
		peer.Want(otherUser, "10.84.0.1:9999", "docker 10.84.0.1:9999")
		h.Want(appUser, "10.84.0.2:80", "out 10.84.0.2:80")
		h.Want(otherUser, "10.84.0.2:80", "docker 10.84.0.2:80")
	}
	h.Load(docker)
	h.capture(r)
	want()
	h.NFT("", "delete", "table", "ip", "nat")
	h.Load(docker) // Docker was started again
	want()
}

// rounds is how often a table goes in and out beside others: each round takes the kernel some 70 ms.
var rounds = flag.Int("rounds", 100, "rounds of TestOtherTablesStayTheSame; 1000 once before a release")

// TestOtherTablesStayTheSame: many times in and out beside the tables of others, which stay byte
// for byte the same: like Docker's and firewalld's, and some that iptables-nft made.
func TestOtherTablesStayTheSame(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for _, rule := range []string{
		"-t filter -A INPUT -p tcp --dport 22 -m conntrack --ctstate NEW -j ACCEPT", "-t mangle -A OUTPUT -m owner --uid-owner 22001 -j MARK --set-mark 7",
		"-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "-t nat -A OUTPUT -p tcp --dport 81 -j REDIRECT --to-ports 3128",
	} {
		nethost.Run(t, nethost.Program(t, "ip"), append([]string{"netns", "exec", h.Name, nethost.Program(t, "iptables")}, strings.Fields(rule)...)...)
	}
	h.Load(`table ip docker {; chain PREROUTING {; type nat hook prerouting priority -100; policy accept; fib daddr type local counter jump DOCKER; }
		chain DOCKER {; tcp dport 5000 counter dnat to 172.17.0.2:80; }; }; table inet firewalld {; set zones {; type ifname; elements = { "eth0" }; }
		chain filter_INPUT {; type filter hook input priority 10; policy accept; ct status dnat accept; }; }
		table inet mine {; chain output {; type nat hook output priority -105; policy accept; }; }`)
	before := h.NFT("", "-a", "list", "ruleset")
	k, r := h.kernel(), build(t, nil)
	for range *rounds {
		_, err := k.Prepare(r)
		if err == nil {
			err = k.Apply(r)
		}
		if err == nil {
			_, err = k.Remove(t.Context(), r.envoys, 0)
		}
		if err == nil {
			err = k.Withdraw()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if after := h.NFT("", "-a", "list", "ruleset"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestForeignTablesAreKept: a table of our name without our mark is not replaced, removed or
// switched; a table of ours that was flushed is ours.
func TestForeignTablesAreKept(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.Load("table inet fairlead {; chain output {; type filter hook output priority 0; policy accept; counter; }; }")
	before := h.NFT("", "list", "ruleset")
	k, r := h.kernel(), build(t, nil)
	_, removed := k.Remove(t.Context(), nil, 0)
	_, read := k.State()
	for i, err := range []error{k.Apply(r), k.Switch(0), k.Confirm(nil), removed, read} {
		if !errors.Is(err, ErrForeign) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if after := h.NFT("", "list", "ruleset"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	h.NFT("", "delete", "table", "inet", Table)
	if err := k.Apply(r); err != nil {
		t.Fatal(err)
	}
	h.NFT("", "flush", "table", "inet", Table)
	if err := k.Apply(r); err != nil {
		t.Errorf("after a flush: %v", err)
	}
}
