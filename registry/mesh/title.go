package mesh

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// clusterDomain ends the names that belong to namespaces: NAME.NAMESPACE.svc.cluster.local, as manifests
// complete short names.
const clusterDomain = ".svc.cluster.local"

// Grant gives a name to a namespace: a host, a wildcard, an address or a range that it had before owners were
// decided by patterns alone; or a port at which its services come first, as ":7000" or, for HTTP, ":http:7000".
type Grant struct {
	Name      Hostname `json:"name"`
	Namespace string   `json:"namespace"`
	// Gateways says that it is for routes at gateways only.
	Gateways bool `json:"gateways,omitempty"`
}

// Grants are those of a mesh. They are immutable; nil has none.
type Grants struct {
	list []Grant
	// services are for everything, and gateways for routes at gateways only.
	services, gateways titles
	ports              map[sharedPort][]string
}

// NewGrants makes the grants of a list.
func NewGrants(list []Grant) *Grants {
	g := &Grants{list: slices.Clone(list), services: newTitles(), gateways: newTitles(), ports: map[sharedPort][]string{}}
	slices.SortFunc(g.list, compareGrants)
	g.list = slices.Compact(g.list)
	for i := range g.list {
		x := &g.list[i]
		if p, is := portOf(x.Name); is {
			g.ports[p] = append(g.ports[p], x.Namespace)
			continue
		}
		if x.Name = Hostname(strings.ToLower(string(x.Name))).canonical(); isAddress(x.Name) { // people edit them
			p, _ := prefixOf(x.Name)
			x.Name = nameOf(p)
		}
		if x.Gateways {
			g.gateways.add(x.Name, x.Namespace)
		} else {
			g.services.add(x.Name, x.Namespace)
		}
	}
	g.services.finish()
	g.gateways.finish()
	return g
}

func compareGrants(a, b Grant) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), trueLast(a.Gateways, b.Gateways))
}

// All are the grants, sorted; they are not to be changed.
func (g *Grants) All() []Grant {
	if g == nil {
		return nil
	}
	return g.list
}

// titles are names that belong to namespaces. A name may belong to several.
type titles struct {
	of     map[Hostname][]string
	order  sortedNames
	widths wideNames
}

func newTitles() titles { return titles{of: map[Hostname][]string{}} }

func (t *titles) add(h Hostname, namespace string) {
	if !slices.Contains(t.of[h], namespace) {
		t.of[h] = append(t.of[h], namespace)
	}
}

func (t *titles) finish() {
	names := map[Hostname]bool{}
	for h, list := range t.of {
		names[h] = true
		slices.Sort(list)
	}
	t.order, t.widths = t.order.with(names, nil), t.widths.with(names, nil)
}

// narrowest is the narrowest name that is or covers another one, and whose it is; empty if there is none.
// Names that are too wide count only if wide is true.
func (t *titles) narrowest(h Hostname, wide bool) (Hostname, []string) {
	if len(t.of) == 0 {
		return "", nil
	}
	if list := t.of[h]; len(list) > 0 && (wide || !tooWide(h)) {
		return h, list
	}
	var found Hostname
	t.widths.above(h, func(x Hostname) bool {
		if len(t.of[x]) > 0 && (wide || !tooWide(x)) {
			found = x
		}
		return found == ""
	})
	return found, t.of[found]
}

func (t *titles) equal(o *titles) bool { return maps.EqualFunc(t.of, o.of, slices.Equal) }

// gifts are the names that Gateways of unbound sources give to namespaces, by hosts as NAMESPACE/HOST.
type gifts struct {
	titles
	// at are the names that are too wide, which count at their Gateway alone, by its name. It has all these Gateways.
	at map[string]*titles
}

func (g *gifts) equal(o *gifts) bool {
	return g.titles.equal(&o.titles) && maps.EqualFunc(g.at, o.at, (*titles).equal)
}

// anyGateway stands for whichever Gateway gives most.
const anyGateway = "*"

// narrowestAt is the narrowest name that covers another one at a Gateway; with an empty one, for everything.
func (g *gifts) narrowestAt(gateway string, h Hostname) (Hostname, []string) {
	name, namespaces := g.narrowest(h, gateway == anyGateway)
	if at := g.at[gateway]; name == "" && at != nil { // what is too wide is wider than what is not
		return at.narrowest(h, true)
	}
	return name, namespaces
}

// givenBy are the gifts of Gateways.
func givenBy(fragments []*Fragment, bindings []*Binding) gifts {
	t := gifts{newTitles(), map[string]*titles{}}
	for i, f := range fragments {
		if f == nil || bindings[i] != nil {
			continue
		}
		for _, g := range f.Gateways {
			name := g.Namespace + "/" + g.Name
			if t.at[name] == nil {
				at := newTitles()
				t.at[name] = &at
			}
			for _, s := range g.Spec.GetServers() {
				for _, x := range s.GetHosts() {
					ns, host, is := strings.Cut(x, "/")
					if !is || ns == "*" || ns == "~" || host == "" {
						continue
					}
					if ns == "." {
						ns = g.Namespace
					}
					h := Hostname(strings.ToLower(host)).canonical()
					if t.add(h, ns); tooWide(h) {
						t.at[name].add(h, ns)
					}
				}
			}
		}
	}
	t.finish()
	for _, at := range t.at {
		at.finish()
	}
	return t
}

// sameGateways reports whether the Gateways of unbound sources are the same objects in two lists of fragments.
func sameGateways(a, b []*Fragment, bindings []*Binding) bool {
	gateways := func(f *Fragment) []*Gateway {
		if f == nil {
			return nil
		}
		return f.Gateways
	}
	for i := range b {
		if bindings[i] == nil && (len(a) <= i || !slices.Equal(gateways(a[i]), gateways(b[i]))) {
			return false
		}
	}
	return true
}

// namespaceOf is the namespace of a name NAME.NAMESPACE.svc.cluster.local, or of a wildcard of such names; empty
// for any other.
func namespaceOf(h Hostname) string {
	head, is := strings.CutSuffix(string(h), clusterDomain)
	if !is {
		return ""
	}
	i := strings.LastIndexByte(head, '.')
	if i <= 0 || strings.Contains(head[i+1:], "*") {
		return ""
	}
	return head[i+1:]
}

// ownsByName reports whether a source is bound to the namespace that a name has in it.
func (b *Binding) ownsByName(h Hostname) bool {
	ns := namespaceOf(h)
	return ns != "" && b.has(ns)
}

// settled reports whether a name is a bound source's whatever anybody but an unbound source declares: by a
// pattern, or as its namespace is a part of the name and no pattern has it.
func (o *owners) settled(source int, h Hostname) bool {
	b := o.bindings[source]
	return b.covers(h) || b.ownsByName(h) && o.pattern(source, h) == nil
}

// title is a name that belongs to namespaces, and why.
type title struct {
	name       Hostname
	namespaces []string
	who, what  string // for people
	granted    bool
}

// titleOf is the narrowest title that covers a name; at a Gateway there are more. It has no name if there is none.
func (o *owners) titleOf(h Hostname, gateway string) title {
	var best title
	try := func(t title) {
		if len(t.namespaces) > 0 && (best.name == "" || compareWidth(t.name, best.name) < 0) {
			best = t
		}
	}
	if ns := namespaceOf(h); ns != "" {
		try(title{name: Hostname("*." + ns + clusterDomain), namespaces: []string{ns}, who: "of which it is a name", what: "namespace"})
	}
	name, namespaces := o.given.narrowestAt(gateway, h)
	try(title{name: name, namespaces: namespaces, who: "to which a Gateway gives it", what: "Gateway"})
	if o.grants != nil {
		name, namespaces = o.grants.services.narrowest(h, true)
		try(title{name, namespaces, "which had it before", "host-grants.json", true})
		if gateway != "" {
			name, namespaces = o.grants.gateways.narrowest(h, true)
			try(title{name, namespaces, "which routed it before", "host-grants.json", true})
		}
	}
	return best
}

// titled reports whether a name belongs to one of the namespaces of a binding, other than by a pattern: the
// narrowest title counts that covers the name. who says whose it is otherwise.
func (o *owners) titled(b *Binding, h Hostname, gateway string) (own bool, who string) {
	best := o.titleOf(h, gateway)
	if best.name == "" {
		return false, ""
	}
	if slices.ContainsFunc(best.namespaces, b.has) {
		return true, ""
	}
	return false, "namespace " + best.namespaces[0] + ", " + best.who
}

// notTitled is who owns a name that no unbound source declares, and no pattern has; nil if the binding does.
func (o *owners) notTitled(b *Binding, h Hostname, gateway string) *rival {
	own, who := o.titled(b, h, gateway)
	switch {
	case own && gateway != "":
		return nil
	case own:
		return o.titledBelow(b, h)
	case who != "":
		return &rival{who: who}
	default:
		return &rival{who: "nobody whom the settings name", nobody: true}
	}
}

// notRouted is notTitled for a VirtualService. For one that is for gateways alone, a rival may be one at some of them
// only.
func (o *owners) notRouted(b *Binding, vs *VirtualService, h Hostname) *rival {
	if o.routesSidecars(vs) {
		return o.notTitled(b, h, "")
	}
	asked := o.judgedGateways(vs)
	refused := map[string]bool{}
	var found *rival
	for _, g := range asked {
		if r := o.notTitled(b, h, g); r != nil {
			found, refused[o.sameTitles(g)] = cmp.Or(found, r), true
		}
	}
	if found == nil || len(refused) == len(asked) {
		return found
	}
	partly := *found
	for _, g := range vs.Spec.GetGateways() {
		if o.isJudged(vs, g) && !refused[o.sameTitles(g)] {
			partly.elsewhere = append(partly.elsewhere, g)
		}
	}
	return &partly
}

// judgedGateways are the Gateways of a VirtualService that may be for gateways of other namespaces: one of those that
// have the same titles.
func (o *owners) judgedGateways(vs *VirtualService) []string {
	return cached(o.cache, func(a *decisionCache) map[*VirtualService][]string { return a.gateways }, vs, func() []string {
		var out []string
		seen := map[string]bool{}
		for _, g := range vs.Spec.GetGateways() {
			if same := o.sameTitles(g); o.isJudged(vs, g) && !seen[same] {
				seen[same], out = true, append(out, g)
			}
		}
		if len(out) == 0 {
			return []string{anyGateway}
		}
		return out
	})
}

// isJudged reports whether a Gateway of a VirtualService is of another namespace, or of an unbound source.
func (o *owners) isJudged(vs *VirtualService, gateway string) bool {
	ns, _, named := strings.Cut(gateway, "/")
	return named && (ns != vs.Namespace || o.given.at[gateway] != nil)
}

// sameTitles is a Gateway with names of its own, or empty for all others.
func (o *owners) sameTitles(gateway string) string {
	if at := o.given.at[gateway]; at == nil || len(at.of) == 0 {
		return ""
	}
	return gateway
}

// hasTitle reports whether a binding has a name that no unbound source declares, and no pattern has.
func (o *owners) hasTitle(b *Binding, h Hostname, gateways bool) bool {
	if gateways {
		return o.notTitled(b, h, anyGateway) == nil
	}
	return o.notTitled(b, h, "") == nil
}

// titledBelow looks for a name of others below a wildcard or within a range, of which its owner would take the
// requests as well: by a grant, or by a Gateway unless the owner has the wildcard from before, when Gateways gave nothing.
func (o *owners) titledBelow(b *Binding, h Hostname) *rival {
	if !isWide(h) {
		return nil
	}
	granted := false
	if o.grants != nil {
		_, namespaces := o.grants.services.narrowest(h, true)
		granted = slices.ContainsFunc(namespaces, b.has)
		if x, ns := o.grants.services.othersBelow(b, h, true); x != "" {
			return &rival{who: fmt.Sprintf("namespace %s, which had %q before", ns, x)}
		}
	}
	if granted {
		return nil
	}
	if x, ns := o.given.othersBelow(b, h, false); x != "" {
		return &rival{who: fmt.Sprintf("namespace %s, to which a Gateway gives %q", ns, x)}
	}
	return nil
}

// othersBelow is a name below a wildcard or within a range that belongs to none of a binding's namespaces, and one to
// which it does; empty if there is none. Names that are too wide count only if wide is true.
func (t *titles) othersBelow(b *Binding, h Hostname, wide bool) (name Hostname, namespace string) {
	t.order.below(h, func(x Hostname) bool {
		if namespaces := t.of[x]; (wide || !tooWide(x)) && !slices.ContainsFunc(namespaces, b.has) {
			name, namespace = x, namespaces[0]
		}
		return name == ""
	})
	return name, namespace
}

// withoutPorts is the owners without grants of ports.
func (o owners) withoutPorts() *owners {
	if o.grants != nil && len(o.grants.ports) > 0 {
		without := *o.grants
		without.ports = nil
		o.grants, o.cache = &without, newDecisionCache()
	}
	return &o
}

// OpenGrant is a grant that nothing else gives to its namespace: no pattern, no Gateway, and not the name.
type OpenGrant struct {
	Grant
	// Sources are what settings call the sources that need the name as a pattern; see [Binding.Source].
	Sources []string
	// Overlaps is a name of another namespace that overlaps with it, so that they cannot both be patterns; or
	// empty.
	Overlaps string
}

// OpenGrants are those of the mesh.
func (s *Snapshot) OpenGrants() []OpenGrant {
	o := s.tables.restrictions.owners
	all, ports := o.grants, o.withoutPorts()
	o.grants = nil
	var out []OpenGrant
	for _, g := range all.All() {
		if p, is := portOf(g.Name); is {
			if ports.needsPort(g.Namespace, p) {
				out = append(out, OpenGrant{Grant: g})
			}
			continue
		}
		heirs := o.heirsOf(g)
		if len(heirs) == 0 {
			continue
		}
		x := OpenGrant{Grant: g}
		for _, i := range heirs {
			if i >= 0 {
				x.Sources = append(x.Sources, o.bindings[i].Source)
				x.Overlaps = cmp.Or(x.Overlaps, o.overlapping(i, g, all))
			}
		}
		out = append(out, x)
	}
	return out
}

// heirsOf are the sources of a grant's namespace that name it and would not have it otherwise. If none names it, and
// none has it, it is the first one of the namespace, or -1.
func (o *owners) heirsOf(g Grant) []int {
	var out []int
	first, has := -1, false
	for i, b := range o.bindings {
		if b == nil || !b.has(g.Namespace) {
			continue
		}
		if first < 0 {
			first = i
		}
		switch {
		case o.hasTitle(b, g.Name, g.Gateways) && !o.partlyGiven(i, g) || b.covers(g.Name):
			has = true
		case o.claims[i].names(g.Name):
			out = append(out, i)
		}
	}
	if len(out) == 0 && !has {
		out = []int{first}
	}
	return out
}

// partlyGiven reports whether a source has routes for a name of a grant at a Gateway that does not give it.
func (o *owners) partlyGiven(source int, g Grant) bool {
	c := &o.claims[source].gateways
	return g.Gateways && !c.names(g.Name, true, func(name Hostname) bool {
		return !covering(g.Name, name) || !slices.ContainsFunc(c.get(name), func(vs *VirtualService) bool { return o.notRouted(o.bindings[source], vs, name) != nil })
	})
}

// names reports whether an object of a source has a name, or one below it.
func (c *claims) names(h Hostname) bool {
	return namesBelow(&c.services, h) || namesBelow(&c.addresses, h) || namesBelow(&c.routes, h) || namesBelow(&c.gateways, h) || namesBelow(&c.subnets, h)
}

func namesBelow[T comparable](x *nameIndex[T], h Hostname) bool {
	return !x.names(h, true, func(name Hostname) bool { return len(x.get(name)) == 0 || !covering(h, name) })
}

// overlapping is a name of others that overlaps with a grant: a pattern, or a grant of another namespace.
func (o *owners) overlapping(source int, g Grant, all *Grants) string {
	for i, b := range o.bindings {
		if i == source || b == nil || b.has(g.Namespace) {
			continue
		}
		if p, is := b.overlaps(g.Name); is {
			return fmt.Sprintf("the pattern %s of %s", p, placeOf(b.Source))
		}
	}
	found := ""
	for _, t := range []*titles{&all.services, &all.gateways} {
		note := func(x Hostname) bool {
			if i := slices.IndexFunc(t.of[x], func(ns string) bool { return !o.bindings[source].has(ns) }); i >= 0 {
				found = fmt.Sprintf("%s of the namespace %s", x, t.of[x][i])
			}
			return found == ""
		}
		if note(g.Name); found == "" {
			t.widths.above(g.Name, note)
		}
		if found == "" && isWide(g.Name) {
			t.order.below(g.Name, note)
		}
	}
	return found
}
