package dns

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	mdns "github.com/miekg/dns"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// Limits of one resource. What is beyond them is rejected.
const (
	maxAddresses = 4096
	maxServices  = 1024
	maxTTL       = time.Hour
	defaultTTL   = 30 * time.Second
)

// State says how much a Table knows.
type State string

// The states of a Table.
const (
	StateNone   State = "none"   // the control plane has not answered yet, and nothing is on disk
	StateAbsent State = "absent" // the control plane knows no names: it is of an earlier release
	StateLoaded State = "loaded"
)

// Table is what is answered. It implements relay.NameTable. The zero value is an empty table.
type Table struct {
	mu    sync.RWMutex // guards all following fields
	state State        // empty means StateNone
	// hosts are by name, lower case, with the final dot; those of wildcards begin with "*.".
	hosts map[string]*host
	// pointers are the names of addresses, sorted.
	pointers map[netip.Addr][]string
	// domain is that of short names, NAMESPACE.svc.DOMAIN. with the final dot, or empty.
	domain string
	// others are names that are never answered, lower case, with the final dot.
	others []string
}

// SetOthers says which names are never answered, whatever the mesh says: those by which the host
// finds the control plane. Whoever may declare a host could else keep all hosts from it, for good:
// what would take the name away again comes from there.
func (t *Table) SetOthers(names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others = nil
	for _, name := range names {
		t.others = append(t.others, mdns.CanonicalName(name))
	}
}

// never reports whether a name is never answered. Called with mu held.
func (t *Table) never(name string) bool {
	switch {
	case strings.Contains(name, `\`): // no host has such a name, and its dots may be within labels
		return true
	case strings.HasSuffix(name, ".localhost."), name == "localhost.", strings.HasSuffix(name, ".arpa."): // this host's, and names of others' addresses
		return true
	}
	// A search domain may follow.
	return slices.ContainsFunc(t.others, func(o string) bool { return strings.HasPrefix(name, o) })
}

// host is one name. It is immutable.
type host struct {
	name     string
	ttl      uint32
	v4, v6   []netip.Addr
	services []service
	// hasAddresses is false if only the ports are known.
	hasAddresses bool
	// whole says that no short name stands for it: the control plane wrote the name with a final dot.
	whole bool
}

// service is a port of a host.
type service struct {
	label string // _NAME._PROTOCOL., lower case
	port  uint16
}

// SetDomain says in which domain short names are, NAMESPACE.svc.DOMAIN.
func (t *Table) SetDomain(domain string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.domain = ""
	if domain != "" {
		t.domain = mdns.CanonicalName(domain)
	}
}

// State says how much the table knows.
func (t *Table) State() State {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.state == "" {
		return StateNone
	}
	return t.state
}

// Len is the number of names.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.hosts)
}

// Absent implements relay.NameTable.
func (t *Table) Absent() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state != StateLoaded {
		t.state = StateAbsent
	}
}

// Update implements relay.NameTable.
func (t *Table) Update(changed []*stream.Resource, removed []string, whole bool) (refused []stream.RejectedResource) {
	parsed := make([]*host, 0, len(changed))
	names := make([]string, 0, len(changed))
	for _, r := range changed {
		if r.Name == bootstrap.NameTable {
			continue
		}
		h, err := parse(r)
		if err != nil {
			refused = append(refused, stream.RejectedResource{Name: r.Name, Reason: err.Error()})
			continue
		}
		parsed, names = append(parsed, h), append(names, r.Name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.state = StateLoaded
	was := t.hosts
	if whole || was == nil {
		t.hosts, t.pointers = make(map[string]*host, len(parsed)), map[netip.Addr][]string{}
		for _, r := range refused { // its last good version stays
			key, ports := keyOf(r.Name)
			if old := was[key]; old != nil {
				t.set(key, t.hosts[key].with(old.half(ports), ports))
			}
		}
	}
	for i, h := range parsed {
		key, ports := keyOf(names[i])
		t.set(key, t.hosts[key].with(h, ports))
	}
	for _, name := range removed {
		key, ports := keyOf(name)
		t.set(key, t.hosts[key].without(ports))
	}
	return refused
}

// keyOf is the name in the table of a resource, and whether the resource has the ports of a name.
func keyOf(resource string) (key string, ports bool) {
	name, ports := strings.CutPrefix(resource, bootstrap.NamePorts)
	return mdns.CanonicalName(name), ports
}

// set changes a name; nil removes it. Called with mu held.
func (t *Table) set(key string, h *host) {
	if old := t.hosts[key]; old != nil {
		for _, a := range old.addresses() {
			t.pointers[a] = slices.DeleteFunc(slices.Clone(t.pointers[a]), func(n string) bool { return n == key })
			if len(t.pointers[a]) == 0 {
				delete(t.pointers, a)
			}
		}
	}
	if h == nil {
		delete(t.hosts, key)
		return
	}
	t.hosts[key] = h
	for _, a := range h.addresses() {
		if i, found := slices.BinarySearch(t.pointers[a], key); !found {
			t.pointers[a] = slices.Insert(slices.Clone(t.pointers[a]), i, key)
		}
	}
}

// addresses are those that PTR queries may ask for.
func (h *host) addresses() (out []netip.Addr) {
	if strings.HasPrefix(h.name, "*.") {
		return nil
	}
	for _, list := range [][]netip.Addr{h.v4, h.v6} {
		for _, a := range list {
			if nobodysElse(a) {
				out = append(out, a)
			}
		}
	}
	return out
}

// nobodysElse reports whether an address is in a range that has no other owner than the mesh: class
// E, and the block of IPv6 in which the control plane allocates. Names of other addresses are not
// ours to say.
func nobodysElse(a netip.Addr) bool {
	if a.Is4() {
		return a.As4()[0] >= 240 && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0x20, 0x01, 0, 2}), 48).Contains(a)
}

// with returns the host with the addresses or ports of another one.
func (h *host) with(o *host, ports bool) *host {
	switch {
	case h == nil:
		return o
	case o == nil:
		return h
	}
	next := *h
	if ports {
		next.services = o.services
	} else {
		next.ttl, next.v4, next.v6, next.hasAddresses, next.whole = o.ttl, o.v4, o.v6, true, o.whole
	}
	return &next
}

// without returns the host without its addresses or ports; nil if nothing is left.
func (h *host) without(ports bool) *host {
	if h == nil {
		return nil
	}
	return h.half(!ports)
}

// half returns the host with its ports or its addresses only; nil if it has none.
func (h *host) half(ports bool) *host {
	next := &host{name: h.name, ttl: h.ttl}
	if ports {
		if next.services = h.services; next.services == nil {
			return nil
		}
		return next
	}
	if next.v4, next.v6, next.hasAddresses, next.whole = h.v4, h.v6, h.hasAddresses, h.whole; !next.hasAddresses {
		return nil
	}
	return next
}

// parse reads a resource.
func parse(r *stream.Resource) (*host, error) {
	d := &dnsv3.DnsTable_DnsVirtualDomain{}
	if err := proto.Unmarshal(r.Body, d); err != nil {
		return nil, fmt.Errorf("decoding the domain: %w", err)
	}
	key, ports := keyOf(r.Name)
	if d.GetName() == "" || mdns.CanonicalName(d.GetName()) != key {
		return nil, fmt.Errorf("the domain is %.80q", d.GetName())
	}
	if _, ok := mdns.IsDomainName(key); !ok || strings.ContainsAny(key, `\ `) || key == "." || key == "*." || strings.Contains(key[1:], "*") || key[0] == '*' && key[1] != '.' {
		return nil, errors.New("that is no host name")
	}
	h := &host{name: key, ttl: uint32(defaultTTL / time.Second)}
	if ttl := d.GetAnswerTtl(); ttl != nil {
		h.ttl = uint32(min(max(ttl.AsDuration(), 0), maxTTL) / time.Second)
	}
	if ports {
		return h, h.readServices(d.GetEndpoint().GetServiceList().GetServices())
	}
	h.hasAddresses, h.whole = true, strings.HasSuffix(d.GetName(), ".")
	list := d.GetEndpoint().GetAddressList().GetAddress()
	if len(list) == 0 || len(list) > maxAddresses {
		return nil, fmt.Errorf("it has %d addresses, and must have 1 to %d", len(list), maxAddresses)
	}
	for _, text := range list {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%.80q is no address", text)
		}
		if a = a.Unmap(); a.Is4() {
			h.v4 = append(h.v4, a)
		} else {
			h.v6 = append(h.v6, a)
		}
	}
	return h, nil
}

func (h *host) readServices(list []*dnsv3.DnsTable_DnsService) error {
	if len(list) == 0 || len(list) > maxServices {
		return fmt.Errorf("it has %d services, and must have 1 to %d", len(list), maxServices)
	}
	for _, s := range list {
		label := mdns.CanonicalName("_" + s.GetServiceName() + "._" + s.GetProtocol().GetName())
		if _, ok := mdns.IsDomainName(label); !ok || s.GetServiceName() == "" || strings.ContainsAny(label, `\ *`) || mdns.CountLabel(label) != 2 {
			return fmt.Errorf("%.80q is no service", s.GetServiceName())
		}
		for _, target := range s.GetTargets() {
			if target.GetPort() == 0 || target.GetPort() > 65535 || len(h.services) >= maxServices {
				return fmt.Errorf("service %.80q: %d is no port, or there are too many", s.GetServiceName(), target.GetPort())
			}
			h.services = append(h.services, service{label, uint16(target.GetPort())})
		}
	}
	return nil
}

// find finds a name, which is lower case and has a final dot. Full names come first, then short
// names of the host's own domain, then wildcards, the longest first.
func (t *Table) find(name string) *host {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.never(name) {
		return nil
	}
	if h := t.hosts[name]; h.answers() {
		return h
	}
	if full := t.full(name); full != "" {
		if h := t.hosts[full]; h.answers() && !h.whole {
			return h
		}
	}
	if strings.HasPrefix(name, "*.") {
		return nil
	}
	for rest := name; ; {
		_, parent, ok := strings.Cut(rest, ".")
		if !ok || parent == "" {
			return nil
		}
		if h := t.hosts["*."+parent]; h.answers() {
			return h
		}
		rest = parent
	}
}

func (h *host) answers() bool { return h != nil && h.hasAddresses }

// full is the host name NAME.NAMESPACE.svc.DOMAIN. that a short name may stand for: NAME.,
// NAME.NAMESPACE. and NAME.NAMESPACE.svc.; empty if there is none. Called with mu held.
func (t *Table) full(name string) string {
	own, suffix, ok := strings.Cut(t.domain, ".svc.")
	if !ok || strings.HasPrefix(name, "*.") {
		return ""
	}
	switch head := strings.TrimSuffix(name, "."); strings.Count(head, ".") {
	case 0:
		return head + "." + own + ".svc." + suffix
	case 1:
		return head + ".svc." + suffix
	case 2:
		if strings.HasSuffix(head, ".svc") {
			return head + "." + suffix
		}
	}
	return ""
}

// namesOf are the names of an address; they are not to be changed.
func (t *Table) namesOf(a netip.Addr) []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pointers[a]
}

// Names are all names, sorted.
func (t *Table) Names() []string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Sorted(maps.Keys(t.hosts))
}
