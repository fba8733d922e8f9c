package analysis

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// inboundIndex finds the ports at which a workload takes requests.
type inboundIndex struct {
	// services and sidecars are by namespace.
	services map[string]*bySelector[*service]
	sidecars map[string]*bySelector[*networking.Sidecar]
	// inline are the services with an endpoint of their own at an address, and at the
	// workloads that share one: a proxy has the ports of all of its address.
	inline map[address][]inlinePort
	at     map[address][]*workload
	known  map[*workload]*portFacts
	// shared are the ports that services have at an address, found out once for all workloads there.
	shared map[address]*portFacts
}

// address is one of a namespace.
type address struct{ namespace, text string }

type inlinePort struct {
	port     *networking.ServicePort
	endpoint *networking.WorkloadEntry
}

// portFacts are the ports of one workload, or of several. Nil is for those that are not known.
type portFacts struct {
	// tcp are those at which no workload sees requests of HTTP, with a workload that has it;
	// other are those where one does, or may.
	tcp   map[uint32]*workload
	other map[uint32]bool
	// unknown says that there may be more.
	unknown bool
	text    string // the ports of TCP, for people, once they were asked for
}

// allTCP reports whether there is nothing but TCP.
func (f *portFacts) allTCP() bool { return !f.unknown && len(f.tcp) > 0 && len(f.other) == 0 }

// add takes a port.
func (f *portFacts) add(number uint32, protocol string, x *workload) {
	switch p := mesh.Protocol(strings.ToUpper(protocol)); p {
	case mesh.UDP:
	case mesh.TCP, mesh.TLS, mesh.HTTPS, mesh.Mongo, mesh.Redis, mesh.MySQL:
		if !f.other[number] {
			f.tcp[number] = x
		}
	default: // one without a protocol may be HTTP
		f.other[number] = true
		delete(f.tcp, number)
	}
}

func newPortFacts() *portFacts {
	return &portFacts{tcp: map[uint32]*workload{}, other: map[uint32]bool{}}
}

func newInboundIndex(w *meshIndex) *inboundIndex {
	x := &inboundIndex{
		services: map[string]*bySelector[*service]{}, sidecars: map[string]*bySelector[*networking.Sidecar]{},
		inline: map[address][]inlinePort{}, at: map[address][]*workload{}, known: map[*workload]*portFacts{},
		shared: map[address]*portFacts{},
	}
	for _, s := range w.services {
		ns := s.object.Meta.Namespace
		if selector := s.spec.GetWorkloadSelector().GetLabels(); len(selector) > 0 {
			in(x.services, ns).add(selector, s)
		}
		for _, e := range s.spec.GetEndpoints() {
			for _, p := range s.spec.GetPorts() {
				at := address{ns, e.GetAddress()}
				x.inline[at] = append(x.inline[at], inlinePort{p, e})
			}
		}
	}
	for o, spec := range specs[*networking.Sidecar](w) {
		in(x.sidecars, o.Meta.Namespace).add(spec.GetWorkloadSelector().GetLabels(), spec)
	}
	for _, one := range w.workloads.in[""] {
		if a := one.spec.GetAddress(); a != "" {
			at := address{one.object.Meta.Namespace, a}
			x.at[at] = append(x.at[at], one)
		}
	}
	return x
}

// portsOf are the ports of a workload's proxy: those of the ingress of its Sidecar, or else
// those at which services expect it.
func (w *meshIndex) portsOf(x *workload) *portFacts {
	if f := w.inbound.known[x]; f != nil {
		return f
	}
	f := newPortFacts()
	w.inbound.known[x] = f
	sidecar, sure := w.sidecarOf(x)
	if f.unknown = !sure; f.unknown {
		return f
	}
	if len(sidecar.GetIngress()) > 0 {
		for _, l := range sidecar.GetIngress() {
			f.add(l.GetPort().GetNumber(), l.GetPort().GetProtocol(), x)
		}
		return f
	}
	f = w.portsAt(x)
	w.inbound.known[x] = f
	return f
}

// portsAt are the ports that services have at the address of a workload. All workloads there
// have the same.
func (w *meshIndex) portsAt(x *workload) *portFacts {
	at := address{x.object.Meta.Namespace, x.spec.GetAddress()}
	beside := w.inbound.at[at]
	if len(beside) == 0 {
		beside = []*workload{x}
	} else if f := w.inbound.shared[at]; f != nil {
		return f
	}
	f := newPortFacts()
	for _, y := range beside {
		for p := range w.servicePorts(y) {
			f.add(targetPort(p, y.spec), p.GetProtocol(), x)
		}
	}
	for _, i := range w.inbound.inline[at] {
		f.add(targetPort(i.port, i.endpoint), i.port.GetProtocol(), x)
	}
	if len(w.inbound.at[at]) > 0 {
		w.inbound.shared[at] = f
	}
	return f
}

// sidecarOf is the Sidecar for a workload, or nil. sure is false where several may be.
func (w *meshIndex) sidecarOf(x *workload) (s *networking.Sidecar, sure bool) {
	own := w.inbound.sidecars[x.object.Meta.Namespace]
	found := slices.Collect(own.narrower(x.labels))
	for _, ns := range []string{x.object.Meta.Namespace, w.root} {
		if of := w.inbound.sidecars[ns]; len(found) == 0 && of != nil {
			found = of.every
		}
	}
	if len(found) == 0 {
		return nil, true
	}
	return found[0], len(found) == 1
}

// servicePorts yields the ports of the services that have the workload.
func (w *meshIndex) servicePorts(x *workload) func(yield func(*networking.ServicePort) bool) {
	return func(yield func(*networking.ServicePort) bool) {
		for s := range w.inbound.services[x.object.Meta.Namespace].narrower(x.labels) {
			if !mesh.ServiceSelects(s.spec.GetWorkloadSelector().GetLabels(), x.labels) {
				continue
			}
			for _, p := range s.spec.GetPorts() {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// portsOfAll are the ports of the workloads of a selection. A port is TCP where it is TCP for
// all that have it.
func (w *meshIndex) portsOfAll(s *selection) *portFacts {
	if s.facts.ports != nil {
		return s.facts.ports
	}
	all := newPortFacts()
	s.facts.ports = all
	all.unknown = !s.sure || w.in.OtherSources || len(s.workloads) == 0
	seen := map[*portFacts]bool{}
	for _, x := range s.workloads {
		f := w.portsOf(x)
		if seen[f] {
			continue
		}
		seen[f] = true
		all.unknown = all.unknown || f.unknown || len(f.tcp)+len(f.other) == 0
		for n := range f.other {
			all.other[n] = true
			delete(all.tcp, n)
		}
		for n := range f.tcp {
			if !all.other[n] && all.tcp[n] == nil {
				all.tcp[n] = x
			}
		}
	}
	return all
}

// ofHTTP names the first list of a rule that only requests of HTTP have, or is "". In rules for
// TCP, Envoy has no such list, and an ALLOW rule with one allows nothing (package xds/authz).
func ofHTTP(r *security.Rule) string {
	for l := range lists(r, "") {
		switch l.name {
		case "hosts", "methods", "paths", "requestPrincipals":
			return strings.TrimPrefix(l.field[strings.LastIndex(l.field, ".")+1:], ".")
		}
		if strings.HasPrefix(l.name, "request.") {
			return l.name
		}
	}
	return ""
}

// rulesForTCP warns of ALLOW rules that a port of TCP never meets, and of workloads that allow
// nothing because of it.
func rulesForTCP(w *meshIndex, r *report) {
	warned := map[string]bool{}
	for _, p := range w.policies.all {
		if !p.allows() || !p.decides {
			continue
		}
		for rule, field := range p.rules {
			http := ofHTTP(rule)
			if http == "" {
				p.selection.facts.allowsTCP = true
				continue
			}
			for at, port := range neverMet(w.portsOfAll(p.selection), rule, field) {
				warned[p.object.Meta.String()] = true
				r.warn(place{p.object, at}, "it allows nothing: the rule has %s, which only HTTP has, and %s is for TCP; name principals, namespaces, addresses and ports alone in a rule for it, or declare the port's protocol if it is HTTP",
					http, port)
			}
		}
	}
	w.markDenied()
	for _, p := range w.policies.all {
		if denied := p.selection.facts.denied; p.allows() && p.decides && len(denied) > 0 && len(p.spec.GetRules()) > 0 && !warned[p.object.Meta.String()] {
			names := p.selection.namesOf(denied)
			p.selection.facts.denied = nil // once for all policies that select the same
			r.warn(place{p.object, p.field}, "%s every connection: the ports there are for TCP, and each rule that could allow something has what only HTTP has (here %s); allow by principals, namespaces, addresses and ports alone in a policy for them",
				denying(names), ofHTTP(p.spec.GetRules()[0]))
		}
	}
}

// neverMet yields the operations of an ALLOW rule that speaks of HTTP which are for nothing but
// ports of TCP, or the rule if it has none, and names such a port.
func neverMet(f *portFacts, r *security.Rule, field string) func(yield func(at, port string) bool) {
	var ports []string
	for _, c := range r.GetWhen() {
		if c.GetKey() == "destination.port" {
			ports = c.GetValues()
		}
	}
	return func(yield func(at, port string) bool) {
		if len(r.GetTo()) == 0 {
			if port := f.onlyTCP(ports, nil); port != "" {
				yield(field, port)
			}
			return
		}
		for i, t := range r.GetTo() {
			of := ports
			if own := t.GetOperation().GetPorts(); len(own) > 0 {
				of = own
			}
			if port := f.onlyTCP(of, t.GetOperation().GetNotPorts()); port != "" && !yield(fmt.Sprintf("%s.to[%d].operation", field, i), port) {
				return
			}
		}
	}
}

// onlyTCP names a port if all of those that a rule is for are TCP; values are empty for a rule
// that is for all.
func (f *portFacts) onlyTCP(values, except []string) string {
	if f.unknown {
		return ""
	}
	if len(values) == 0 {
		others := len(f.other)
		for _, v := range slices.Compact(slices.Sorted(slices.Values(except))) {
			if f.other[portNumber(v)] {
				others--
			}
		}
		if others > 0 || len(f.tcp) == 0 {
			return ""
		}
		return f.name(slices.Min(slices.Collect(maps.Keys(f.tcp))))
	}
	for _, v := range values {
		if f.tcp[portNumber(v)] == nil {
			return ""
		}
	}
	return f.name(portNumber(values[0]))
}

// name is "port 5432 of db-1".
func (f *portFacts) name(port uint32) string {
	return fmt.Sprintf("port %d of %s", port, f.tcp[port].object.Meta.Name)
}

func portNumber(v string) uint32 {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// markDenied finds the workloads with nothing but TCP ports that ALLOW policies select, and no
// rule for TCP.
func (w *meshIndex) markDenied() {
	selecting := map[*workload][]*selection{}
	seen := map[*selection]bool{}
	for _, p := range w.policies.all {
		if s := p.selection; p.allows() && p.decides && !seen[s] {
			seen[s] = true
			for _, x := range s.workloads {
				selecting[x] = append(selecting[x], s)
			}
		}
	}
	for _, x := range w.workloads.in[""] {
		of := selecting[x]
		if len(of) == 0 || !w.portsOf(x).allTCP() || slices.ContainsFunc(of, func(s *selection) bool { return s.facts.allowsTCP }) {
			continue
		}
		for _, s := range of {
			s.facts.denied = append(s.facts.denied, x)
		}
	}
}

// longLivedPorts names the TCP ports under a policy: connections there are kept open, as a rule,
// and end when the rules change.
func longLivedPorts(w *meshIndex, r *report) {
	for _, p := range w.policies.all {
		if !p.inForce {
			continue
		}
		f := w.portsOfAll(p.selection)
		if len(f.tcp) == 0 {
			continue
		}
		if f.text == "" {
			names := make([]string, 0, len(f.tcp))
			for _, n := range slices.Sorted(maps.Keys(f.tcp)) {
				names = append(names, f.name(n))
			}
			f.text = listed(names)
		}
		r.add(place{p.object, p.field}, Info, "open connections end within 45 s after a change of the rules there, those that are still allowed, too: "+f.text)
	}
}
