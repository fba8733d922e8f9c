package mesh

import (
	"cmp"
	"slices"
)

// BoundSource is what a source that is bound to namespaces has, and what its objects ask for.
type BoundSource struct {
	*Binding
	Has  []Holding
	Asks []Ask
}

// What a holding is for, and what an object asks for.
const (
	// ForAll: to declare and route a name for everybody.
	ForAll = "everything"
	// ForRoutes: to route it.
	ForRoutes = "routes"
	// ForGateways: to route it at gateways of other namespaces.
	ForGateways = "routes at gateways"
	// ForDeclare: to declare a host.
	ForDeclare = "declares"
	// ForAddress: to declare or match an address.
	ForAddress = "address"
	// ForPort: to take the connections to a port that name no service.
	ForPort = "port"
	// ForShort: to have the short forms of a host.
	ForShort = "short names of"
	// ForSecret: to have gateways of other namespaces present a credential.
	ForSecret = "credential"
	// ForTables: to have tables for consistentHash.
	ForTables = "tables of"
	// ForThird: to route to the service of another tenant at gateways of other namespaces.
	ForThird = "destination"
)

// Holding is a name that a bound source has.
type Holding struct {
	Name Hostname
	For  string // ForAll, ForRoutes, ForGateways
	By   string // for people
}

// Ask is what an object asks for in other namespaces.
type Ask struct {
	Key    Key
	Origin *Origin
	Name   Hostname
	For    string
	// By is what gives it, for people; empty if nothing does. Then Owner is who has it instead, and Advice what
	// to do.
	By, Owner string
	Advice    Advice
	// Granted is the name of the grant from before patterns alone that gives it; empty if something else does.
	Granted Hostname
}

// BoundSources are the sources of the mesh that are bound to namespaces, in their order.
func (s *Snapshot) BoundSources() []BoundSource {
	r := &s.tables.restrictions
	o := r.owners
	o.cache = newDecisionCache()
	var out []BoundSource
	for i, b := range o.bindings {
		if b == nil {
			continue
		}
		x := BoundSource{Binding: b, Has: o.holdings(i)}
		for _, svc := range r.inputs[i].services() {
			if !onlyOwn(svc.ExportTo, r.exports[0], svc.Namespace) {
				x.Asks = append(x.Asks, o.asksOfService(i, svc)...)
			}
		}
		for _, vs := range r.inputs[i].virtualServices() {
			if !onlyOwn(vs.ExportTo, r.exports[1], vs.Namespace) && (routesSidecars(vs) || len(othersGateways(vs)) > 0) {
				x.Asks = append(x.Asks, o.asksOfRoutes(i, vs)...)
			}
		}
		x.Asks = append(x.Asks, r.asksOfConflicts(i, b, s.Conflicts)...)
		slices.SortStableFunc(x.Asks, compareAsks)
		x.Asks = slices.CompactFunc(x.Asks, func(a, b Ask) bool { return compareAsks(a, b) == 0 })
		out = append(out, x)
	}
	return out
}

func compareAsks(a, b Ask) int {
	return cmp.Or(a.Key.Compare(b.Key), compareOrigins(a.Origin, b.Origin), cmp.Compare(a.Name, b.Name), cmp.Compare(a.For, b.For))
}

func (o *owners) asksOfService(source int, svc *Service) []Ask {
	ask := func(h Hostname, what string, r *rival) Ask {
		a := Ask{Key: svc.Key, Origin: svc.Origin, Name: h, For: what}
		o.answer(source, &a, svc.Namespace, r, "")
		return a
	}
	h := svc.Hostname.canonical()
	var out []Ask
	if !isAddress(h) {
		out = append(out, ask(h, ForDeclare, o.host(source, svc)))
	}
	for _, a := range addressNames(svc) {
		out = append(out, ask(a, ForAddress, o.address(source, svc.Namespace, a)))
	}
	if o.lostNames(source, svc) != 0 && out[0].By != "" {
		out = append(out, Ask{
			Key: svc.Key, Origin: svc.Origin, Name: h, For: ForShort,
			Advice: Advice{Text: "a short form belongs to others, or NAMESPACE is not that of the object: clients have to use the whole name"},
		})
	}
	return out
}

func (o *owners) asksOfRoutes(source int, vs *VirtualService) []Ask {
	sidecars := routesSidecars(vs)
	what, gateway := ForRoutes, ""
	if !sidecars {
		what, gateway = ForGateways, o.judgedGateways(vs)[0]
	}
	var out []Ask
	add := func(h Hostname, what string, r *rival) {
		a := Ask{Key: vs.Key, Origin: vs.Origin, Name: h, For: what}
		o.answer(source, &a, vs.Namespace, r, gateway)
		out = append(out, a)
	}
	for _, h := range routedNames(vs) {
		r := o.routes(source, vs, h)
		if r == nil && slices.Contains(sniNames(vs), h) {
			r = o.shortName(source, h)
		}
		add(h, what, r)
	}
	if sidecars {
		for _, a := range subnetNames(vs) {
			add(a, ForAddress, o.matchedAddress(source, vs, a))
		}
	}
	return out
}

// asksOfConflicts are those that are not about owners of names.
func (r *restrictions) asksOfConflicts(source int, b *Binding, list []Conflict) []Ask {
	origins := map[*Origin]bool{}
	for _, svc := range r.inputs[source].services() {
		origins[svc.Origin] = true
	}
	for _, vs := range r.inputs[source].virtualServices() {
		origins[vs.Origin] = true
	}
	for _, dr := range r.inputs[source].DestinationRules {
		origins[dr.Origin] = true
	}
	var out []Ask
	for _, c := range list {
		if !origins[c.Dropped] {
			continue
		}
		a := Ask{Key: c.Key, Origin: c.Dropped, Name: Hostname(c.Field), Advice: Advice{Text: c.Reason}}
		switch {
		case c.Kind == ConflictCredential:
			a.For, a.Name = ForSecret, Hostname(c.Credential)
			if a.Advice.Flag = b.CredentialsFlag(c.Credential); a.Advice.Flag != "" {
				a.Advice.Text = "if gateways of other namespaces are to present it, write " + a.Advice.Flag
			}
		case c.Kind == ConflictTables:
			a.For = ForTables
		case c.Kind == ConflictRoute && c.Refused:
			a.For = ForThird
		case c.Foreign && c.Host != "" && c.Host[0] == ':':
			a.For, a.Name = ForPort, c.Host
		default:
			continue
		}
		out = append(out, a)
	}
	return out
}

// answer says what gives a name to a source or, with a rival, who has it instead.
func (o *owners) answer(source int, a *Ask, namespace string, r *rival, gateway string) {
	if r != nil {
		a.Owner = r.who
		a.Advice = o.advise(source, a.Name, namespace, a.For == ForDeclare || a.For == ForAddress)
		return
	}
	b := o.bindings[source]
	if i := slices.IndexFunc(b.Hosts, func(p Hostname) bool { return covering(p, a.Name) }); i >= 0 {
		a.By = "pattern " + string(b.Hosts[i])
		return
	}
	if t := o.titleOf(a.Name, gateway); slices.ContainsFunc(t.namespaces, b.has) {
		if a.By = t.what + " " + string(t.name); t.granted {
			a.Granted = t.name
		}
		return
	}
	a.By = "declared in its namespace"
}

// holdings are the names that a source has, and those that it may route.
func (o *owners) holdings(source int) []Holding {
	b := o.bindings[source]
	var out []Holding
	for _, p := range b.Hosts {
		out = append(out, Holding{p, ForAll, "pattern"})
	}
	for _, ns := range b.Namespaces {
		out = append(out, Holding{Hostname("*." + ns + clusterDomain), ForAll, "namespace " + ns})
	}
	titled := func(t *titles, forWide, forAll, by string) {
		for h, namespaces := range t.of {
			if slices.ContainsFunc(namespaces, b.has) {
				what := forAll
				if tooWide(h) {
					what = forWide
				}
				out = append(out, Holding{h, what, by})
			}
		}
	}
	titled(&o.given.titles, ForGateways, ForAll, "a Gateway")
	if o.grants != nil {
		titled(&o.grants.services, ForAll, ForAll, "host-grants.json")
		titled(&o.grants.gateways, ForGateways, ForGateways, "host-grants.json")
	}
	for i := range o.claims {
		if o.bindings[i] != nil {
			continue
		}
		for h, list := range o.claims[i].services.named.all {
			for _, svc := range list {
				if b.has(svc.Namespace) {
					by := svc.String() + ", of a source without a namespace"
					if svc.Catalog {
						by = "the Consul catalog, in the namespace " + svc.Namespace
					}
					out = append(out, Holding{h, ForRoutes, by})
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(orderOf(a.For), orderOf(b.For)), cmp.Compare(a.By, b.By), cmp.Compare(a.Name, b.Name))
	})
	return slices.Compact(out)
}

func orderOf(what string) int { return slices.Index([]string{ForAll, ForGateways, ForRoutes}, what) }
