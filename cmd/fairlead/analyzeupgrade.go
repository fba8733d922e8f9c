package main

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry/mesh"
)

// upgradeReport is what the first start of this release would take from bound sources.
type upgradeReport struct {
	// Lost stops working at that start; Granted works until host-grants.json is removed.
	Lost    []boundAsk `json:"lost"`
	Granted []boundAsk `json:"granted"`
	// Flags keep all of it for which a flag was found.
	Flags []string `json:"flags"`
}

// forReserved is a name on the record that no object names.
const forReserved = "no object"

// upgradeReport compares the mesh with grants, as the first start makes it, with that of settings alone. What has a flag is
// tried: the flags of all are given, and what is still missing has none.
func (t *tree) upgradeReport(in mesh.Input, with *mesh.Snapshot, owners *server.Owners, sources []boundSource) *upgradeReport {
	r := &upgradeReport{Lost: []boundAsk{}, Granted: []boundAsk{}, Flags: []string{}}
	had := newRecordOf(owners.Recorded)
	for _, s := range sources {
		for _, a := range s.Asks {
			switch {
			case a.Granted:
				r.Granted = append(r.Granted, a)
			case a.By == "" && lostByUpgrade(a, had, owners.Made):
				r.Lost = append(r.Lost, a)
			}
		}
	}
	r.Granted = append(r.Granted, reserved(with, r.Granted, sources)...)
	r.choosePatterns(in.Bindings)
	r.try(in, with)
	r.Flags = flagsOf(append(slices.Clone(r.Lost), r.Granted...))
	return r
}

// recordOf is the record of an earlier release.
type recordOf map[mesh.Hostname][]mesh.Recorded

func newRecordOf(list []mesh.Recorded) recordOf {
	out := recordOf{}
	for _, x := range list {
		out[x.Name] = append(out[x.Name], x)
	}
	return out
}

// has reports whether a namespace had a name, or one that covers it.
func (r recordOf) has(a *boundAsk) bool {
	of := func(name mesh.Hostname) bool {
		return slices.ContainsFunc(r[name], func(x mesh.Recorded) bool {
			return x.Namespace == a.Namespace && (!x.Routes || a.For == mesh.ForRoutes || a.For == mesh.ForGateways)
		})
	}
	if of(a.ask.Name) || a.For == mesh.ForPort {
		return of(a.ask.Name)
	}
	if a.For != mesh.ForRoutes && a.For != mesh.ForGateways {
		return false
	}
	for h := string(a.ask.Name); strings.Contains(h, "."); {
		_, h, _ = strings.Cut(strings.TrimPrefix(h, "*."), ".")
		if of(mesh.Hostname("*." + h)) {
			return true
		}
	}
	return false
}

// lostByUpgrade reports whether something that is not given was, in the release before.
func lostByUpgrade(a boundAsk, had recordOf, upgraded bool) bool {
	switch a.For {
	case mesh.ForDeclare, mesh.ForAddress, mesh.ForRoutes, mesh.ForGateways, mesh.ForPort:
		return !upgraded && had.has(&a)
	case mesh.ForShort, mesh.ForSecret, mesh.ForTables, mesh.ForThird, forSize:
		return true
	default: // as in the release before
		return false
	}
}

// reserved are names on the record that no object needs now.
func reserved(with *mesh.Snapshot, granted []boundAsk, sources []boundSource) []boundAsk {
	var out []boundAsk
	for _, g := range with.OpenGrants() {
		if slices.ContainsFunc(granted, func(a boundAsk) bool {
			return a.ask.Granted == g.Name && slices.Contains(a.source.Namespaces, g.Namespace)
		}) {
			continue
		}
		i := slices.IndexFunc(sources, func(s boundSource) bool {
			return slices.Contains(s.Namespaces, g.Namespace) && (len(g.Sources) == 0 || slices.Contains(g.Sources, s.Source))
		})
		if i < 0 {
			continue // nothing is bound to the namespace any more
		}
		a := boundAsk{
			Name: string(g.Name), For: forReserved, Namespace: g.Namespace, By: "host-grants.json " + string(g.Name), Granted: true,
			source: sources[i].binding, ask: mesh.Ask{Name: g.Name, Granted: g.Name},
		}
		if _, is := g.Port(); is {
			a.For, a.Advice = mesh.ForPort, "no flag puts services of a namespace first at a port: give them an address by a pattern, or another port"
		}
		out = append(out, a)
	}
	return out
}

// choosePatterns gives each granted name the flag of its source: of the grant or, if that overlaps with a name of another
// source, of the name itself. If that overlaps, too, a Gateway can give both.
func (r *upgradeReport) choosePatterns(bindings []*mesh.Binding) {
	names := make([]mesh.Hostname, len(r.Granted))
	ports := func(a *boundAsk) bool { return a.For == mesh.ForPort }
	for i, a := range r.Granted {
		names[i] = a.ask.Granted
	}
	// A name that no object has gives way to those that one has.
	overlaps := func() []bool {
		by := map[*mesh.Binding]*mesh.Binding{}
		for _, b := range bindings {
			if b != nil {
				by[b] = &mesh.Binding{Namespaces: b.Namespaces, Hosts: slices.Clone(b.Hosts)}
			}
		}
		for i, a := range r.Granted {
			if a.For != forReserved && !ports(&a) {
				by[a.source].Hosts = append(by[a.source].Hosts, names[i])
			}
		}
		out := make([]bool, len(names))
		for i, a := range r.Granted {
			for b, others := range by {
				if b != a.source && !ports(&a) {
					_, _, is := mesh.Overlap(&mesh.Binding{Namespaces: a.source.Namespaces, Hosts: names[i : i+1]}, others)
					out[i] = out[i] || is
				}
			}
		}
		return out
	}
	for i, is := range overlaps() {
		if is {
			names[i] = r.Granted[i].ask.Name
		}
	}
	for i, is := range overlaps() {
		a := &r.Granted[i]
		if ports(a) {
			continue
		}
		a.Flag = ""
		if !is {
			a.Flag, a.pattern = a.source.HostsFlag(names[i]), names[i]
		}
		if a.Flag == "" && a.For == forReserved {
			a.Advice = "nothing is in force by it now, and no pattern can give it without taking a name of another source"
		} else if a.Flag == "" {
			a.Advice = "no pattern gives it without taking a name of another source: in a directory without a namespace, a Gateway can give it, with hosts: [\"" + a.Namespace + "/" + string(names[i]) + "\"]"
		}
	}
}

// try gives all flags, and takes them from what they do not keep. What they would take is lost, too.
func (r *upgradeReport) try(in mesh.Input, with *mesh.Snapshot) {
	now := slices.Clone(in.Bindings)
	names := map[*mesh.Binding]*mesh.Binding{} // the one before, by the one that is tried
	for i, b := range in.Bindings {
		if b == nil {
			continue
		}
		next := *b
		for _, a := range slices.Concat(r.Lost, r.Granted) {
			if a.source == b {
				next.Hosts = append(slices.Clone(next.Hosts), a.patterns()...)
				next.Credentials = append(slices.Clone(next.Credentials), a.credentials()...)
			}
		}
		now[i], names[&next] = &next, b
	}
	in.Bindings, in.Grants, in.Prev = now, nil, nil
	missing := map[askID]bool{}
	for _, s := range mesh.Merge(in).BoundSources() {
		for _, a := range s.Asks {
			if a.By == "" {
				missing[idOf(names[s.Binding], a)] = true
			}
		}
	}
	known := map[askID]bool{}
	check := func(list []boundAsk) {
		for i := range list {
			id := idOf(list[i].source, list[i].ask)
			if known[id] = true; missing[id] && list[i].Flag != "" && list[i].For != forSize {
				list[i].Advice = list[i].Flag + " does not keep it: " + list[i].Advice
				list[i].Flag = ""
			}
		}
	}
	check(r.Lost)
	check(r.Granted)
	for _, s := range with.BoundSources() {
		for _, a := range s.Asks {
			if id := idOf(s.Binding, a); a.By != "" && missing[id] && !known[id] {
				x := askOf(s.Binding, a)
				x.Advice = "the flags for others would take it"
				r.Lost = append(r.Lost, x)
			}
		}
	}
}

// askID tells asks apart.
type askID struct {
	source *mesh.Binding
	key    mesh.Key
	name   mesh.Hostname
	what   string
}

func idOf(b *mesh.Binding, a mesh.Ask) askID { return askID{b, a.Key, a.Name, a.For} }

// patterns are those of the flag that gives it.
func (a *boundAsk) patterns() []mesh.Hostname {
	switch {
	case a.Flag == "" || a.For == mesh.ForSecret || a.refused():
		return nil
	case a.pattern != "":
		return []mesh.Hostname{a.pattern}
	default:
		return []mesh.Hostname{a.ask.Name}
	}
}

func (a *boundAsk) credentials() []string {
	if a.Flag == "" || a.For != mesh.ForSecret {
		return nil
	}
	return []string{a.Name}
}

// flagsOf are the flags of a list, one for each source and kind.
func flagsOf(list []boundAsk) []string {
	type of struct {
		hosts       []mesh.Hostname
		credentials []string
	}
	var order []*mesh.Binding
	by := map[*mesh.Binding]*of{}
	var out []string
	for _, a := range list {
		if by[a.source] == nil {
			by[a.source] = &of{}
			order = append(order, a.source)
		}
		x := by[a.source]
		x.hosts = append(x.hosts, a.patterns()...)
		x.credentials = append(x.credentials, a.credentials()...)
		if a.refused() && a.Flag != "" && !slices.Contains(out, a.Flag) {
			out = append(out, a.Flag)
		}
	}
	for _, b := range order {
		x := by[b]
		slices.Sort(x.hosts)
		slices.Sort(x.credentials)
		if flag := b.HostsFlag(x.hosts...); flag != "" {
			out = append(out, flag)
		}
		if flag := b.CredentialsFlag(slices.Compact(x.credentials)...); flag != "" {
			out = append(out, flag)
		}
	}
	slices.Sort(out)
	return out
}

func (p *printer) upgrade(r *upgradeReport) {
	p.line("")
	if len(r.Lost)+len(r.Granted) == 0 {
		p.line("the upgrade takes nothing")
		return
	}
	if len(r.Lost) > 0 {
		p.line("LOST BY THE UPGRADE")
		for _, a := range r.Lost {
			p.ask(a)
		}
		p.line("")
	}
	if len(r.Granted) > 0 {
		p.line("KEPT BY host-grants.json, UNTIL FLAGS GIVE IT")
		for _, a := range r.Granted {
			p.ask(a)
		}
		p.line("")
	}
	if len(r.Flags) > 0 {
		p.line("FLAGS THAT KEEP IT")
		for _, f := range r.Flags {
			p.line("%s", f)
		}
	}
}
