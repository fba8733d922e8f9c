package capture

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// listed is what nft lists, without what differs between two lists of one table.
func listed(s string) string {
	s = regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(s, "packets 0 bytes 0")
	s = regexp.MustCompile(` expires [0-9a-z]+`).ReplaceAllString(s, "")
	s = regexp.MustCompile(`,\s+`).ReplaceAllString(s, ", ")
	s = regexp.MustCompile(`\n\n+`).ReplaceAllString(s, "\n")
	// The kernel has sets in the order in which they were added, also by tables before.
	block := regexp.MustCompile(`(?ms)^\tset .*?^\t}\n`)
	sets := block.FindAllString(s, -1)
	slices.Sort(sets)
	s = block.ReplaceAllStringFunc(s, func(string) (next string) {
		next, sets = sets[0], sets[1:]
		return next
	})
	return strings.TrimSpace(s)
}

// TestKernelHasWhatIsPrinted: nft lists every table as it was printed.
func TestKernelHasWhatIsPrinted(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for name, change := range variants() {
		r := build(t, change)
		if err := h.kernel().Apply(r); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := listed(h.NFT("", "list", "table", "inet", Table)), listed(r.String()); got != want {
			t.Errorf("%s: nft lists\n%s\nprinted was\n%s", name, got, want)
		}
	}
}

// variants are settings that make tables of all kinds.
func variants() map[string]func(*Settings) {
	two := func(s *Settings) {
		s.Workloads = append(s.Workloads, Workload{Name: "db", Users: []uint32{22002}, Ports: []uint16{8081, 3306}, OutboundPort: 15011, InboundPort: 15016})
	}
	return map[string]func(*Settings){
		"vip":  nil,
		"open": func(s *Settings) { s.Mode = Open },
		"two":  two,
		"uid":  func(s *Settings) { two(s); s.Outbound, s.ExcludePorts = OutboundUID, []uint16{9999} },
		"all": func(s *Settings) {
			s.Outbound, s.Inbound, s.ExcludeUsers = OutboundAll, InboundAll, []uint32{0, 110, 111}
			s.Workloads[0].Users, s.Workloads[0].Ports = nil, nil
		},
		"dns":        func(s *Settings) { two(s); s.Workloads[0].DNSPort, s.Workloads[1].DNSPort = 15053, 15054 },
		"dns_uid":    func(s *Settings) { s.Outbound, s.Mode, s.Workloads[0].DNSPort = OutboundUID, Open, 15053 },
		"one_family": func(s *Settings) { s.Ranges = s.Ranges[:1] },
	}
}

// TestCaptures: what is declared goes to the proxy, over IPv4 and IPv6, and nothing else does.
func TestCaptures(t *testing.T) {
	t.Parallel()
	h, peer := newHost(t), newHost(t)
	link(h, peer, 71)
	h.Serve("out", 15001, true)
	h.Serve("in", 15006, true)
	h.Serve("app", 8080, false)
	h.Serve("ssh", 22, false)
	h.Serve("free", 9090, false)
	h.Serve("page", 15021, false)
	peer.Serve("peer", 80, false)
	h.capture(build(t, nil))
	h.Want(appUser, "240.240.0.7:80", "out 240.240.0.7:80")
	h.Want(appUser, "[2001:2::7]:80", "out [2001:2::7]:80")
	h.Want(appUser, "10.71.0.2:80", "peer")
	h.Want(otherUser, "10.71.0.2:80", "peer")
	h.Want(otherUser, "240.240.0.7:80", "refused")
	h.Want(otherUser, "[2001:2::7]:80", "refused")
	h.Want(proxyUser, "240.240.0.7:80", "refused")
	h.Want(otherUser, "127.0.0.1:8080", "app")
	h.Want(otherUser, "10.71.0.1:8080", "app")
	h.Want(proxyUser, "127.0.0.1:8080", "app")
	h.Want(proxyUser, "10.71.0.1:8080", "in 10.71.0.1:8080")
	h.Want(proxyUser, "[fd00:71::1]:8080", "in [fd00:71::1]:8080")
	for to, want := range map[string]string{
		"10.71.0.1:8080": "in 10.71.0.1:8080", "[fd00:71::1]:8080": "in [fd00:71::1]:8080",
		"10.71.0.1:22": "ssh", "10.71.0.1:9090": "free", "[fd00:71::1]:9090": "free", "10.71.0.1:15021": "page",
		"10.71.0.1:15001": "refused", "10.71.0.1:15006": "refused", "[fd00:71::1]:15001": "refused", "[fd00:71::1]:15006": "refused",
	} {
		peer.Want(otherUser, to, want)
	}
	st, err := h.kernel().State()
	if err != nil || !st.Present || !st.Capturing || st.Remaining != 0 || st.Draining {
		t.Errorf("%+v %v", st, err)
	}
	for name, want := range map[string]uint64{counterDirect: 4, counterVIPs: 3} {
		if st.Counts[name] != want {
			t.Errorf("counter %s: %d, want %d", name, st.Counts[name], want)
		}
	}
}
