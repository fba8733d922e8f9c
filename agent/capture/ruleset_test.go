package capture

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files")

func noUsers(name string) (uint32, error) { return 0, fmt.Errorf("unknown user %s", name) }

// TestGolden compares tables with golden files.
func TestGolden(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatal(paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var s *Settings
			var f Facts
			i := -1
			for n, file := range a.Files {
				switch file.Name {
				case "capture.yaml":
					s, err = Parse(file.Name, file.Data, noUsers)
				case "ssh":
					var p uint64
					p, err = strconv.ParseUint(strings.TrimSpace(string(file.Data)), 10, 16)
					f.SSHPorts = append(f.SSHPorts, uint16(p))
				case "table.nft":
					i = n
				default:
					err = fmt.Errorf("a section %q", file.Name)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			r, err := Build(s, &f)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if i < 0 {
					a.Files, i = append(a.Files, txtar.File{Name: "table.nft"}), len(a.Files)
				}
				a.Files[i].Data = []byte(r.String())
				if err := os.WriteFile(path, txtar.Format(a), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if i < 0 {
				t.Fatal("no section table.nft: go test ./agent/capture -run Golden -update")
			}
			if diff := gocmp.Diff(string(a.Files[i].Data), r.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// random are settings that may be right or wrong.
func random(rnd *rand.Rand) (*Settings, *Facts) {
	pick := func(of ...uint32) uint32 { return of[rnd.IntN(len(of))] }
	s := usual()
	s.Workloads = nil
	s.Mode = []Mode{Closed, Open}[rnd.IntN(2)]
	s.Outbound = []Outbound{OutboundVIP, OutboundUID, OutboundAll}[rnd.IntN(3)]
	s.Inbound = []Inbound{InboundDeclared, InboundAll}[rnd.IntN(2)]
	for range rnd.IntN(3) {
		s.ExcludeUsers = append(s.ExcludeUsers, pick(0, 1, 2, appUser, highestUser))
		s.ExcludePorts = append(s.ExcludePorts, uint16(pick(1, 80, 8080, 65535)))
	}
	for i := range 1 + rnd.IntN(3) {
		w := Workload{Name: fmt.Sprint("w", i), OutboundPort: uint16(15001 + 10*i), InboundPort: uint16(15006 + 10*i)}
		for range rnd.IntN(4) {
			if s.Outbound != OutboundAll {
				w.Users = append(w.Users, pick(0, 1, proxyUser, appUser, appUser+1, appUser+2, highestUser))
			}
			if s.Inbound != InboundAll {
				w.Ports = append(w.Ports, uint16(pick(1, 22, 80, 81, 82, 8080, 8301, 15001, 15011, 15021, 15090, 65535)))
			}
		}
		if rnd.IntN(4) == 0 {
			w.DNSPort = uint16(pick(0, 53, 8080, 15001, 15053, 15054, 15055))
		}
		s.Workloads = append(s.Workloads, w)
		if s.Outbound == OutboundAll || s.Inbound == InboundAll {
			break
		}
	}
	return s, &Facts{SSHPorts: []uint16{uint16(pick(22, 2222, 8080))}, Resolvers: []Resolver{{User: pick(1, 101), Name: "dnsmasq"}}}
}

// TestNothingExcludedIsEverCaptured: whatever the settings say, no map has a user or a port that
// must not be captured, and each IPv4 condition has its IPv6 twin beside it.
func TestNothingExcludedIsEverCaptured(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	right := 0
	for range 20_000 {
		s, f := random(rnd)
		r, err := Build(s, f)
		if err != nil {
			continue
		}
		right++
		var users, ports []interval
		for _, x := range r.sets {
			switch {
			case strings.HasPrefix(x.name, usersOf):
				users = append(users, x.intervals...)
			case strings.HasPrefix(x.name, portsOf):
				ports = append(ports, x.intervals...)
			}
		}
		has := func(x []interval, k uint32) bool {
			return slices.ContainsFunc(x, func(i interval) bool { return i.lo <= k && k <= i.hi })
		}
		for _, u := range slices.Concat(s.Proxies, s.ExcludeUsers, []uint32{noUser}) {
			if has(users, u) {
				t.Fatalf("user %d is captured: %+v", u, s)
			}
		}
		fixed := []uint16{22, 8300, 8301, 8302, 8500, 8501, 8502, 8503, 8600, 15012, 15020, 15021, 15090, 0}
		for _, p := range slices.Concat(fixed, f.SSHPorts, s.ExcludePorts, r.envoys) {
			if has(ports, uint32(p)) {
				t.Fatalf("port %d is captured: %+v", p, s)
			}
		}
		for _, w := range s.Workloads {
			for _, u := range w.Users {
				if !has(users, u) {
					t.Fatalf("user %d is not captured: %+v", u, s)
				}
			}
			for _, p := range w.Ports {
				if !has(ports, uint32(p)) {
					t.Fatalf("port %d is not captured: %+v", p, s)
				}
			}
		}
		for _, w := range s.Workloads {
			switch {
			case w.DNSPort == 0:
			case has(ports, uint32(w.DNSPort)) || s.Outbound == OutboundAll || slices.Contains(w.Users, 0) || slices.Contains(w.Users, f.Resolvers[0].User):
				t.Fatalf("DNS queries are captured that must not be: %+v %+v", s, f)
			}
		}
		wantDisjoint(t, users, ports)
		wantTwins(t, r)
		if again, err := Build(s, f); err != nil || again.String() != r.String() {
			t.Fatal("the same settings make another table", err)
		}
	}
	if right < 1000 {
		t.Errorf("%d of the settings are right: they test nothing", right)
	}
}

func wantDisjoint(t *testing.T, sets ...[]interval) {
	t.Helper()
	for _, s := range sets {
		slices.SortFunc(s, func(a, b interval) int { return cmp.Compare(a.lo, b.lo) })
		for i := 1; i < len(s); i++ {
			if s[i].lo <= s[i-1].hi {
				t.Fatalf("intervals overlap: %+v", s)
			}
		}
	}
}

// wantTwins wants beside each rule with an IPv4 condition the same one for IPv6.
func wantTwins(t *testing.T, r *Ruleset) {
	t.Helper()
	twin := strings.NewReplacer("ip daddr", "ip6 daddr", "ip saddr", "ip6 saddr", "@vips4", "@vips6", "@local4", "@local6",
		"127.0.0.6", "::6", "127.0.0.0/8", "::1", "reject with icmp port", "reject with icmpv6 port", " comment \""+Owner+"\"", "")
	for i := range r.chains {
		var lines []string
		for _, rl := range r.chains[i].rules {
			var words []string
			for _, s := range rl {
				words = append(words, s.text())
			}
			lines = append(lines, strings.Join(words, " "))
		}
		v4, v6 := 0, 0
		for _, l := range lines {
			if strings.Contains(l, "ip6 ") {
				v6++
				continue
			}
			if strings.Contains(l, "ip ") {
				v4++
				if want := strings.TrimSpace(twin.Replace(l)); !slices.ContainsFunc(lines, func(x string) bool { return strings.TrimSpace(x) == want }) {
					t.Fatalf("chain %s: %q has no twin %q", r.chains[i].name, l, want)
				}
			}
		}
		if v4 != v6 {
			t.Fatalf("chain %s: %d rules of IPv4, %d of IPv6", r.chains[i].name, v4, v6)
		}
	}
}

// TestWrongSettings: each error says what is wrong, where, and what to do.
func TestWrongSettings(t *testing.T) {
	t.Parallel()
	const good = "proxy-users: [21337]\nworkloads: [{name: web, users: [22001], ports: [8080]}]\n"
	for name, c := range map[string]struct{ text, want string }{
		"empty":            {"", "c.yaml: it is empty: write at least workloads"},
		"not_yaml":         {"\t", "c.yaml: "},
		"list":             {"[]", "c.yaml:1:1: write keys and values"},
		"unknown":          {good + "rules: [flush ruleset]\n", `c.yaml:3:1: there is no setting "rules" of capture`},
		"twice":            {good + "mode: open\nmode: closed\n", "c.yaml:"},
		"mode":             {good + "mode: ajar\n", `mode "ajar": write closed or open`},
		"inject_mode":      {good + "mode: \"closed; } flush ruleset\"\n", "write closed or open"},
		"outbound":         {good + "outbound: some\n", "write vip, uid or all"},
		"inbound":          {good + "inbound: some\n", "write declared or all"},
		"port":             {"proxy-users: [1]\nworkloads: [{name: web, ports: [70000]}]\n", `c.yaml:2:33: "70000" is not a port`},
		"inject_port":      {"proxy-users: [1]\nworkloads: [{name: web, ports: [\"80 } accept\"]}]\n", "is not a port"},
		"port_zero":        {"proxy-users: [1]\nworkloads: [{name: web, ports: [0]}]\n", `"0" is not a port`},
		"proxy-user":       {"proxy-users: [7]\nworkloads: [{name: web, ports: [80], proxy-user: 8}]\n", "proxy-user 8 is none of proxy-users: add it there"},
		"user":             {"proxy-users: [nobody-here]\nworkloads: [{name: web, ports: [80]}]\n", `c.yaml:1:15: user "nobody-here": unknown user nobody-here: create it first`},
		"no_workloads":     {"proxy-users: [1]\n", "write from 1 to 64 workloads"},
		"no_proxy":         {"workloads: [{name: web, ports: [80]}]\n", "proxy-users: write the user"},
		"nothing":          {"proxy-users: [1]\nworkloads: [{name: web}]\n", "nothing of it is captured"},
		"name":             {"proxy-users: [1]\nworkloads: [{name: \"a b\", ports: [80]}]\n", "write letters, digits"},
		"same_name":        {"proxy-users: [1]\nworkloads: [{name: a, ports: [80]}, {name: a, ports: [81], outbound-port: 1, inbound-port: 2}]\n", "two workloads of this name"},
		"same_user":        {"proxy-users: [1]\nworkloads: [{name: a, users: [5]}, {name: b, users: [5], outbound-port: 15011, inbound-port: 15016}]\n", `user 5 is one of workload "a" already`},
		"same_port":        {"proxy-users: [1]\nworkloads: [{name: a, ports: [80]}, {name: b, ports: [80], outbound-port: 15011, inbound-port: 15016}]\n", `port 80 is one of workload "a" already`},
		"same_envoy":       {"proxy-users: [1]\nworkloads: [{name: a, ports: [80]}, {name: b, ports: [81]}]\n", "such as outbound-port: 15011"},
		"proxy_captured":   {"proxy-users: [5]\nworkloads: [{name: a, users: [5]}]\n", "would come back to it"},
		"excluded_user":    {"proxy-users: [1]\nexclude-users: [5]\nworkloads: [{name: a, users: [5]}]\n", "is one of exclude-users, too"},
		"root":             {"proxy-users: [1]\noutbound: uid\nworkloads: [{name: a, users: [0]}]\n", "user root"},
		"no_user":          {"proxy-users: [1]\nworkloads: [{name: a, users: [4294967295]}]\n", "is not a user"},
		"ssh":              {"proxy-users: [1]\nworkloads: [{name: a, ports: [22]}]\n", "port 22 is never captured: it is sshd's"},
		"ssh_found":        {"proxy-users: [1]\nworkloads: [{name: a, ports: [2222]}]\n", "port 2222 is never captured: it is sshd's"},
		"consul":           {"proxy-users: [1]\nworkloads: [{name: a, ports: [8500]}]\n", "it is Consul's"},
		"plane":            {"proxy-users: [1]\nworkloads: [{name: a, ports: [15012]}]\n", "it is the control plane's"},
		"health":           {"proxy-users: [1]\nworkloads: [{name: a, ports: [15021]}]\n", "it is Envoy's, for health"},
		"envoys_own":       {"proxy-users: [1]\nworkloads: [{name: a, ports: [15006]}]\n", "it is an Envoy's"},
		"excluded_port":    {"proxy-users: [1]\nexclude-ports: [80]\nworkloads: [{name: a, ports: [80]}]\n", "excluded by exclude-ports"},
		"all_of_two":       {"proxy-users: [1]\noutbound: all\nworkloads: [{name: a, ports: [80]}, {name: b, ports: [81], outbound-port: 15011, inbound-port: 15016}]\n", "write outbound: uid"},
		"all_and_users":    {"proxy-users: [1]\noutbound: all\nworkloads: [{name: a, users: [5]}]\n", "remove users, or write outbound: uid"},
		"all_and_ports":    {"proxy-users: [1]\ninbound: all\nworkloads: [{name: a, ports: [80]}]\n", "remove ports, or write inbound: declared"},
		"dns_port":         {"proxy-users: [1]\nworkloads: [{name: a, users: [5], dns-port: 0}]\n", `"0" is not a port`},
		"dns_53":           {"proxy-users: [1]\nworkloads: [{name: a, users: [5], dns-port: 53}]\n", "write the port of the agent's DNS"},
		"dns_of_envoy":     {"proxy-users: [1]\nworkloads: [{name: a, users: [5], dns-port: 15006}]\n", "port 15006 is an Envoy's or an agent's already"},
		"dns_of_health":    {"proxy-users: [1]\nworkloads: [{name: a, users: [5], dns-port: 15021}]\n", "it is Envoy's, for health"},
		"dns_same":         {"proxy-users: [1]\nworkloads: [{name: a, users: [5], dns-port: 15053}, {name: b, users: [6], outbound-port: 15011, inbound-port: 15016, dns-port: 15053}]\n", "such as 15054"},
		"dns_captured":     {"proxy-users: [1]\nworkloads: [{name: a, users: [5], ports: [15053], dns-port: 15053}]\n", "it is an agent's, for DNS"},
		"dns_of_all":       {"proxy-users: [1]\noutbound: all\nworkloads: [{name: a, dns-port: 15053}]\n", "the queries of the host's own nameservers"},
		"dns_of_nobody":    {"proxy-users: [1]\nworkloads: [{name: a, ports: [80], dns-port: 15053}]\n", "write users"},
		"dns_of_root":      {"proxy-users: [1]\nworkloads: [{name: a, users: [0], dns-port: 15053}]\n", "nameservers of the host may run as root"},
		"dns_of_resolver":  {"proxy-users: [1]\nworkloads: [{name: a, users: [5, 101], dns-port: 15053}]\n", "user 101 is that of systemd-resolve, a nameserver of this host"},
		"range":            {good + "virtual-ranges: [10.0.0.0]\n", "is not a range of addresses"},
		"range_bits":       {good + "virtual-ranges: [240.240.0.1/16]\n", "write 240.240.0.0/16"},
		"range_wide":       {good + "virtual-ranges: [0.0.0.0/0]\n", "is too wide"},
		"range_wide6":      {good + "virtual-ranges: [\"::/0\"]\n", "is too wide"},
		"range_loopback":   {good + "virtual-ranges: [127.1.0.0/16]\n", "has addresses of 127.0.0.0/8"},
		"range_link_local": {good + "virtual-ranges: [\"fe80::/32\"]\n", "has addresses of fe80::/10"},
		"huge":             {strings.Repeat("#", MaxFile+1), "settings of capture have at most"},
	} {
		s, err := Parse("c.yaml", []byte(c.text), noUsers)
		if err == nil {
			_, err = Build(s, &Facts{SSHPorts: []uint16{2222}, Resolvers: []Resolver{{User: 101, Name: "systemd-resolve"}}})
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestRangesOfOthersAreRefused: a route of somebody else to a part of a range.
func TestRangesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	for to, bad := range map[string]bool{
		"0.0.0.0/0": false, "240.0.0.0/4": false, "240.240.0.0/16": true, "240.240.7.0/24": true, "240.241.0.0/16": false, "2001:2::/64": true, "::/0": false,
	} {
		err := conflictingRoute([]route{{to: netip.MustParsePrefix(to), iface: 7, table: 254}}, DefaultRanges(), 1)
		if (err != nil) != bad {
			t.Errorf("%s: %v", to, err)
		}
	}
}
