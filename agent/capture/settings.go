package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Mode says what happens to captured connections while Envoy is not there.
type Mode string

// The modes.
const (
	// Closed refuses them until Envoy listens again. It is the default.
	Closed Mode = "closed"
	// Open lets them go directly, after [OpenTimeout] without a beat.
	Open Mode = "open"
)

// Outbound says which connections of the programs of this host are captured.
type Outbound string

// The ways of capturing outbound connections.
const (
	// OutboundVIP captures those of the declared users to the virtual ranges. It is the default.
	OutboundVIP Outbound = "vip"
	// OutboundUID captures all of the declared users.
	OutboundUID Outbound = "uid"
	// OutboundAll captures those of all users that are not excluded.
	OutboundAll Outbound = "all"
)

// Inbound says which connections to this host are captured.
type Inbound string

// The ways of capturing inbound connections.
const (
	// InboundDeclared captures those to the declared ports. It is the default.
	InboundDeclared Inbound = "declared"
	// InboundAll captures those to all ports that are not excluded.
	InboundAll Inbound = "all"
)

// Settings are those of one host. All values are numbers and addresses: nothing of them is
// text that could become a rule.
type Settings struct {
	Mode     Mode     `json:"mode"`
	Outbound Outbound `json:"outbound"`
	Inbound  Inbound  `json:"inbound"`
	// Ranges are the addresses that only Envoys answer for: the virtual addresses of services.
	Ranges []netip.Prefix `json:"ranges"`
	// Proxies are the users that Envoys and agents run as. They are never captured.
	Proxies []uint32 `json:"proxies"`
	// ExcludeUsers are further users that are never captured.
	ExcludeUsers []uint32 `json:"exclude_users,omitempty"`
	// ExcludePorts are further ports that are never captured, in either direction.
	ExcludePorts []uint16 `json:"exclude_ports,omitempty"`
	// ControlPlanePorts are those of the control plane. They are never captured.
	ControlPlanePorts []uint16   `json:"control_plane_ports"`
	Workloads         []Workload `json:"workloads"`
}

// Workload is one workload of a host, with an Envoy of its own.
type Workload struct {
	Name string `json:"name"`
	// Users are the numbers of the users whose connections are captured.
	Users []uint32 `json:"users,omitempty"`
	// Ports are those of the application whose inbound connections are captured.
	Ports []uint16 `json:"ports,omitempty"`
	// OutboundPort and InboundPort are those of its Envoy: 15001 and 15006 for the first.
	OutboundPort uint16 `json:"outbound_port"`
	InboundPort  uint16 `json:"inbound_port"`
	// ProxyUser is the one of Proxies that its Envoy and agent run as, who alone may report for it; nil
	// means the one who listens at its ports.
	ProxyUser *uint32 `json:"proxy_user,omitempty"`
	// DNSPort is where its agent answers DNS queries, at 127.0.0.1 and ::1: those of Users go there,
	// whatever nameserver they are for. 0 means that they are not captured.
	DNSPort uint16 `json:"dns_port,omitempty"`
}

// Facts are what was found on the host.
type Facts struct {
	// SSHPorts are the ports of sshd. They are never captured; port 22 never is, in any case.
	SSHPorts []uint16 `json:"ssh_ports,omitempty"`
	// Resolvers are users that nameservers of the host run as. Their queries are never captured: the
	// agent may ask them.
	Resolvers []Resolver `json:"resolvers,omitempty"`
}

// Resolver is a user that a nameserver of the host runs as.
type Resolver struct {
	User uint32 `json:"user"`
	// Name is the program's.
	Name string `json:"name"`
}

// Bounds of the settings.
const (
	maxWorkloads = 64
	maxListed    = 256 // users, ports or ranges in one list
)

// Istio's ports of an Envoy that gets captured connections.
const (
	defaultOutboundPort = 15001
	defaultInboundPort  = 15006
)

// DefaultRanges are the ranges of virtual addresses: a part of class E that Istio uses, too,
// and IPv6's range for benchmarks.
func DefaultRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("240.240.0.0/16"), netip.MustParsePrefix("2001:2::/48")}
}

// never is a port that must not be captured, and whose it is.
type never struct {
	port uint16
	of   string
}

// neverPorts are all ports that must not be captured, without those of DNS.
func neverPorts(s *Settings, f *Facts) []never {
	out := fixedPorts(s, f)
	for i := range s.Workloads {
		w := &s.Workloads[i]
		out = append(out, never{w.OutboundPort, "an Envoy's"}, never{w.InboundPort, "an Envoy's"})
		if w.DNSPort != 0 {
			out = append(out, never{w.DNSPort, "an agent's, for DNS"})
		}
	}
	return out
}

// fixedPorts are those of them that are not the workloads' Envoys'.
func fixedPorts(s *Settings, f *Facts) []never {
	out := []never{
		{usualSSHPort, "sshd's"},
		{15020, "the agent's"},
		{15021, "Envoy's, for health"},
		{15090, "Envoy's, for metrics"},
	}
	for _, p := range []uint16{8300, 8301, 8302, 8500, 8501, 8502, 8503, 8600} {
		out = append(out, never{p, "Consul's"})
	}
	for _, p := range f.SSHPorts {
		out = append(out, never{p, "sshd's"})
	}
	for _, p := range s.ControlPlanePorts {
		out = append(out, never{p, "the control plane's"})
	}
	for _, p := range s.ExcludePorts {
		out = append(out, never{p, "excluded by exclude-ports"})
	}
	return out
}

// dnsPort is that of nameservers.
const dnsPort = 53

// dnsPorts are not captured by Envoy where nobody declared the destination.
func dnsPorts() []uint16 { return []uint16{dnsPort, 853} }

// check returns all that is wrong with settings.
func (s *Settings) check(f *Facts) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch s.Mode {
	case Closed, Open:
	default:
		add("mode %q: write closed or open", s.Mode)
	}
	switch s.Outbound {
	case OutboundVIP, OutboundUID, OutboundAll:
	default:
		add("outbound %q: write vip, uid or all", s.Outbound)
	}
	switch s.Inbound {
	case InboundDeclared, InboundAll:
	default:
		add("inbound %q: write declared or all", s.Inbound)
	}
	if n := len(s.Workloads); n == 0 || n > maxWorkloads {
		add("workloads: %d: write from 1 to %d workloads", n, maxWorkloads)
		return errors.Join(errs...)
	}
	if n := max(len(s.Proxies), len(s.ExcludeUsers), len(s.ExcludePorts), len(s.ControlPlanePorts), len(s.Ranges), len(f.SSHPorts), len(f.Resolvers)); n > maxListed {
		add("a list has %d values: write at most %d", n, maxListed)
	}
	if len(s.Proxies) == 0 {
		add("proxy-users: write the user that Envoy and the agent run as: otherwise Envoy's own connections come back to it")
	}
	for _, r := range s.Ranges {
		errs = append(errs, checkRange(r))
	}
	errs = append(errs, s.checkWorkloads(f))
	return errors.Join(errs...)
}

// reserved are addresses that no range may have a part of.
func reserved() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "255.255.255.255/32", "::/96", "::ffff:0:0/96", "fe80::/10", "ff00::/8"} {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// The widest ranges: a host that loses more addresses than this loses the network.
const (
	widestRange4 = 8
	widestRange6 = 32
)

func checkRange(r netip.Prefix) error {
	switch {
	case !r.IsValid() || r.Addr().Zone() != "" || r.Addr().Is4In6():
		return fmt.Errorf("virtual-ranges: %q is not a range: write one such as 240.240.0.0/16 or 2001:2::/48", r)
	case r != r.Masked():
		return fmt.Errorf("virtual-ranges: %s has bits beyond its length: write %s", r, r.Masked())
	case r.Addr().Is4() && r.Bits() < widestRange4:
		return fmt.Errorf("virtual-ranges: %s is too wide: write at least /%d", r, widestRange4)
	case r.Addr().Is6() && r.Bits() < widestRange6:
		return fmt.Errorf("virtual-ranges: %s is too wide: write at least /%d", r, widestRange6)
	}
	for _, p := range reserved() {
		if p.Overlaps(r) {
			return fmt.Errorf("virtual-ranges: %s has addresses of %s, which are not for services: write a range of its own", r, p)
		}
	}
	return nil
}

// owners are the workloads by what only one of them may have.
type owners[K comparable] map[K]string

// take gives a value to a workload, and returns the other workload that has it already.
func (o owners[K]) take(k K, name string) (other string, taken bool) {
	other, taken = o[k]
	if !taken {
		o[k] = name
	}
	return other, taken
}

func (s *Settings) checkWorkloads(f *Facts) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	names, users, ports, envoys := owners[string]{}, owners[uint32]{}, owners[uint16]{}, owners[uint16]{}
	if len(s.Workloads) > 1 && s.Outbound == OutboundAll {
		add("outbound all: one workload gets the connections of all users, and there are %d: write outbound: uid, with the users of each", len(s.Workloads))
	}
	if len(s.Workloads) > 1 && s.Inbound == InboundAll {
		add("inbound all: one workload gets the connections to all ports, and there are %d: write inbound: declared, with the ports of each", len(s.Workloads))
	}
	others := fixedPorts(s, f)
	for i := range s.Workloads {
		w := &s.Workloads[i]
		if !validName(w.Name) {
			add("workload %q: name: write letters, digits, dots and hyphens, at most 63", w.Name)
		}
		if _, taken := names.take(w.Name, w.Name); taken {
			add("workload %q: there are two workloads of this name", w.Name)
		}
		for _, p := range []uint16{w.OutboundPort, w.InboundPort} {
			if p == 0 {
				add("workload %q: port 0 is not a port of an Envoy", w.Name)
			} else if i := slices.IndexFunc(others, func(n never) bool { return n.port == p }); i >= 0 {
				add("workload %q: port %d cannot be its Envoy's: it is %s", w.Name, p, others[i].of)
			} else if other, taken := envoys.take(p, w.Name); taken {
				add("workload %q: port %d of its Envoy is one of workload %q already: each Envoy has ports of its own, such as outbound-port: 15011, inbound-port: 15016", w.Name, p, other)
			}
		}
		errs = append(errs, s.checkUsers(w, users), s.checkPorts(w, f, ports), s.checkDNS(w, f, envoys))
	}
	return errors.Join(errs...)
}

func (s *Settings) checkUsers(w *Workload, users owners[uint32]) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case len(w.Users) > maxListed:
		add("workload %q: %d users: write at most %d", w.Name, len(w.Users), maxListed)
	case s.Outbound == OutboundAll && len(w.Users) > 0:
		add("workload %q: outbound: all captures every user: remove users, or write outbound: uid", w.Name)
	case len(w.Users) == 0 && len(w.Ports) == 0 && s.Outbound != OutboundAll && s.Inbound != InboundAll:
		add("workload %q: nothing of it is captured: write users for its outbound connections, or ports for its inbound ones", w.Name)
	}
	if w.ProxyUser != nil && !slices.Contains(s.Proxies, *w.ProxyUser) {
		add("workload %q: proxy-user %d is none of proxy-users: add it there", w.Name, *w.ProxyUser)
	}
	for _, u := range w.Users {
		switch other, taken := users.take(u, w.Name); {
		case slices.Contains(s.Proxies, u):
			add("workload %q: user %d is one of proxy-users: Envoy's own connections would come back to it: run the application as a user of its own", w.Name, u)
		case slices.Contains(s.ExcludeUsers, u):
			add("workload %q: user %d is one of exclude-users, too: remove it from one of them", w.Name, u)
		case u == 0 && s.Outbound != OutboundVIP:
			add("workload %q: user root: daemons of the host run as root, and would be captured: run the application as a user of its own, or write outbound: vip", w.Name)
		case u == noUser:
			add("workload %q: %d is not a user", w.Name, u)
		case taken && other != w.Name:
			add("workload %q: user %d is one of workload %q already: a user's connections can go to one Envoy only: run each application as a user of its own", w.Name, u, other)
		}
	}
	return errors.Join(errs...)
}

func (s *Settings) checkPorts(w *Workload, f *Facts, ports owners[uint16]) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	switch {
	case len(w.Ports) > maxListed:
		add("workload %q: %d ports: write at most %d", w.Name, len(w.Ports), maxListed)
	case s.Inbound == InboundAll && len(w.Ports) > 0:
		add("workload %q: inbound: all captures every port: remove ports, or write inbound: declared", w.Name)
	}
	not := neverPorts(s, f)
	for _, p := range w.Ports {
		if p == 0 {
			add("workload %q: 0 is not a port", w.Name)
			continue
		}
		if i := slices.IndexFunc(not, func(n never) bool { return n.port == p }); i >= 0 {
			add("workload %q: port %d is never captured: it is %s: remove it", w.Name, p, not[i].of)
		}
		if other, taken := ports.take(p, w.Name); taken && other != w.Name {
			add("workload %q: port %d is one of workload %q already: connections to a port can go to one Envoy only", w.Name, p, other)
		}
	}
	return errors.Join(errs...)
}

// checkDNS is about the capture of DNS queries. envoys are the ports of Envoys and of agents' DNS.
func (s *Settings) checkDNS(w *Workload, f *Facts, envoys owners[uint16]) error {
	if w.DNSPort == 0 {
		return nil
	}
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.Outbound == OutboundAll {
		add("workload %q: dns-port: with outbound: all it would take the queries of the host's own nameservers: write outbound: vip or uid, with users", w.Name)
	} else if len(w.Users) == 0 {
		add("workload %q: dns-port: the queries of users are captured, and there are none: write users", w.Name)
	}
	others := fixedPorts(s, f)
	if w.DNSPort == dnsPort {
		add("workload %q: dns-port 53: queries to it are what is captured: write the port of the agent's DNS, such as 15053", w.Name)
	} else if i := slices.IndexFunc(others, func(n never) bool { return n.port == w.DNSPort }); i >= 0 {
		add("workload %q: dns-port: port %d cannot be its agent's: it is %s", w.Name, w.DNSPort, others[i].of)
	} else if _, taken := envoys.take(w.DNSPort, w.Name); taken {
		add("workload %q: dns-port: port %d is an Envoy's or an agent's already: each has ports of its own, such as 15054", w.Name, w.DNSPort)
	}
	for _, u := range w.Users {
		if u == 0 {
			add("workload %q: dns-port: user root: nameservers of the host may run as root, and their queries would come back: run the application as a user of its own", w.Name)
		} else if i := slices.IndexFunc(f.Resolvers, func(r Resolver) bool { return r.User == u }); i >= 0 {
			add("workload %q: dns-port: user %d is that of %s, a nameserver of this host: its queries would come back to the agent: remove the user, or dns-port", w.Name, u, f.Resolvers[i].Name)
		}
	}
	return errors.Join(errs...)
}

// noUser is what Linux calls no user, (uid_t)-1.
const noUser = 1<<32 - 1

func validName(name string) bool {
	const most = 63
	return name != "" && len(name) <= most && !strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '.'
	})
}

// excludes is what tells people which ports are never captured, in order.
func (s *Settings) excludes(f *Facts) []uint16 {
	var out []uint16
	for _, n := range neverPorts(s, f) {
		out = append(out, n.port)
	}
	if s.Outbound != OutboundVIP || s.Inbound == InboundAll {
		out = append(out, dnsPorts()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func portText(p uint16) string { return strconv.Itoa(int(p)) }
