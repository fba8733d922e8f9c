package intentions

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Options says how services of Consul look in the mesh. All fields are required.
type Options struct {
	// TrustDomain is the mesh's.
	TrustDomain string
	// Mapper is that of the server's settings.
	Mapper *mapping.Mapper
}

// Policy is an AuthorizationPolicy.
type Policy struct {
	Namespace, Name string
	Spec            *security.AuthorizationPolicy
}

// Note is something without a counterpart.
type Note struct {
	// Destination is the entry that it is about, Source the source in it; each is empty if it
	// is about all.
	Destination, Source string
	// Message says what it is, and what that means.
	Message string
}

// String is "source → destination: message".
func (n Note) String() string {
	switch {
	case n.Destination == "":
		return n.Message
	case n.Source == "":
		return n.Destination + ": " + n.Message
	}
	return n.Source + " → " + n.Destination + ": " + n.Message
}

const (
	// DefaultName is the name of the policies that deny what no other one allows; prefix begins
	// the names of the others, and DefaultName does not.
	DefaultName = "intentions"
	prefix      = "intentions-"
	wildcard    = "*"
	// root is the namespace whose policies are for the whole mesh.
	root = "istio-system"
)

// Convert makes policies of what Consul says, sorted by namespace and name.
func Convert(s *State, o Options) ([]Policy, []Note) {
	c := newConverter(s, o)
	denied := map[string]bool{}
	policies := map[string]Policy{} // by the label of the destination
	for _, name := range slices.Sorted(maps.Keys(c.exact)) {
		w := c.who[name]
		if w.reason != "" {
			if len(c.exact[name]) > 0 {
				c.notes = append(c.notes, Note{Destination: name, Message: "the service is not in the mesh, so that it has no policy: " + w.reason})
			}
			continue
		}
		if slices.Contains(s.Outside, name) {
			c.notes = append(c.notes, Note{Destination: name, Message: "it is reached through a terminating gateway, which enforces its intentions. Here the proxies of its clients call it, " +
				"and no policy is enforced: route it through a workload of the mesh with this policy"})
		}
		p := Policy{Namespace: w.Namespace, Name: prefix + w.ID, Spec: &security.AuthorizationPolicy{
			Selector: &typev1beta1.WorkloadSelector{MatchLabels: map[string]string{mesh.LabelConsulService: w.ID}},
		}}
		switch spellings, others := c.byFold[strings.ToLower(name)], c.byLabel[w.ID]; {
		case len(spellings) > 1:
			c.notes = append(c.notes, Note{Destination: name, Message: fmt.Sprintf("names that differ in capital letters only (%s) are the same for Consul: the service is denied", strings.Join(spellings, ", "))})
		case len(others) > 1:
			c.notes = append(c.notes, Note{Destination: name, Message: fmt.Sprintf("the settings give the name %s to several services (%s): all of them are denied", w.ID, strings.Join(others, ", "))})
		default:
			p.Spec.Rules = c.rules(c.exact[name])
		}
		policies[w.Namespace+"/"+w.ID] = p
		if w.Namespace == root {
			c.notes = append(c.notes, Note{Destination: name, Message: "its namespace is " + root + ", whose policies are for the whole mesh: services that are registered there later are not denied"})
			continue
		}
		denied[w.Namespace] = true
	}
	out := slices.Collect(maps.Values(policies))
	for ns := range denied {
		out = append(out, Policy{Namespace: ns, Name: DefaultName, Spec: &security.AuthorizationPolicy{}})
	}
	slices.SortFunc(out, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return out, c.sortedNotes()
}

// who is a service in the mesh; reason is not empty if it is not.
type who struct {
	mapping.Identity
	reason string
}

type converter struct {
	options      Options
	state        *State
	defaultAllow bool
	// exact are the entries by destination, also of services that have none; wild those for all.
	exact map[string][]*api.ServiceIntentionsConfigEntry
	wild  []*api.ServiceIntentionsConfigEntry
	// who are all services that are known by name; the others are their names, byFold without
	// capitals: for Consul, names that differ in them only are the same.
	who                         map[string]who
	byLabel, byIdentity, byFold map[string][]string
	// everybody are the principals of all services.
	everybody []string
	notes     []Note
}

func newConverter(s *State, o Options) *converter {
	c := &converter{
		options: o, state: s, defaultAllow: s.Default == api.IntentionActionAllow, exact: map[string][]*api.ServiceIntentionsConfigEntry{},
		who: map[string]who{}, byLabel: map[string][]string{}, byIdentity: map[string][]string{}, byFold: map[string][]string{},
	}
	if s.Enterprise {
		c.notes = append(c.notes, Note{Message: "intentions of other namespaces and partitions of Consul Enterprise are not read: what only they or Consul's default allow is denied"})
		c.defaultAllow = false
	}
	if s.MayAllow {
		c.notes = append(c.notes, Note{Message: "Consul may allow what no intention is about (default_intention_policy, or the default policy of ACLs), and the policies deny it. " +
			"Choose one: --default-policy allow, or deny"})
	}
	if slices.Contains(s.Outside, wildcard) {
		c.notes = append(c.notes, Note{Message: "a terminating gateway is for all services: where none of them runs in the mesh, no policy is enforced"})
	}
	names := map[string]bool{}
	for _, name := range slices.Concat(s.Services, s.Outside) {
		if name == wildcard {
			continue
		}
		names[name], c.exact[name] = true, nil
	}
	for _, e := range s.Entries {
		if !s.home(e.Namespace, e.Partition) {
			c.note(e, "", "namespaces and partitions of Consul Enterprise have no counterpart: the entry is not used")
			continue
		}
		if e.Name == wildcard {
			c.wild = append(c.wild, e)
		} else {
			c.exact[e.Name], names[e.Name] = append(c.exact[e.Name], e), true
		}
		for _, src := range e.Sources {
			if s.foreign(src) == "" && src.Name != wildcard {
				names[src.Name] = true
			}
		}
	}
	c.identify(names)
	return c
}

// identify finds out who all services are.
func (c *converter) identify(names map[string]bool) {
	namespaces := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		id, reason := c.options.Mapper.Identify(name, c.state.Namespace, c.state.Partition)
		c.who[name] = who{id, reason}
		c.byFold[strings.ToLower(name)] = append(c.byFold[strings.ToLower(name)], name)
		if reason != "" {
			continue
		}
		c.byLabel[id.ID] = append(c.byLabel[id.ID], name)
		principal := c.principal(id)
		c.byIdentity[principal] = append(c.byIdentity[principal], name)
		namespaces[id.Namespace] = true
	}
	for _, ns := range slices.Sorted(maps.Keys(namespaces)) {
		c.everybody = append(c.everybody, c.options.TrustDomain+"/ns/"+ns+"/sa/*")
	}
}

func (c *converter) note(e *api.ServiceIntentionsConfigEntry, source, format string, args ...any) {
	c.notes = append(c.notes, Note{Destination: e.Name, Source: source, Message: fmt.Sprintf(format, args...)})
}

// sortedNotes are the notes, each once: an entry for all destinations is used for each of them.
func (c *converter) sortedNotes() []Note {
	slices.SortFunc(c.notes, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Message, b.Message))
	})
	return slices.Compact(c.notes)
}

// sources are the intentions for one destination of one precedence.
type sources struct {
	entries []*api.ServiceIntentionsConfigEntry
	// all says that those are meant whose source is "*".
	all bool
}

// rules are those of an ALLOW policy for a destination. Intentions count by precedence: an exact
// destination before "*", and then an exact source before "*". The first one whose source is the
// caller's decides.
func (c *converter) rules(exact []*api.ServiceIntentionsConfigEntry) []*security.Rule {
	var out []*security.Rule
	seen := map[string]bool{} // sources that have been decided
	doubt := false            // a caller that cannot be named is denied
	for _, group := range []sources{{exact, false}, {exact, true}, {c.wild, false}, {c.wild, true}} {
		for _, e := range group.entries {
			for _, s := range e.Sources {
				if (s.Name == wildcard) != group.all || seen[s.Name] {
					continue
				}
				if why := c.unnamed(s); why != "" {
					if s.Action == api.IntentionActionAllow && e.JWT == nil { // "*" may allow it, too
						c.note(e, s.Name, "%s: it allows nothing", why)
					} else {
						c.note(e, s.Name, "%s: it allows nothing, and callers that only \"*\" or the default allows are denied", why)
						doubt = true
					}
					continue
				}
				allowed := c.allowed(e, s)
				if group.all {
					if doubt || e.Name != wildcard && c.overruled(e, allowed, seen) {
						return out
					}
					return append(out, c.from(allowed, c.everybody, c.principals(seen))...)
				}
				seen[s.Name] = true
				out = append(out, c.from(allowed, []string{c.principal(c.who[s.Name].Identity)}, nil)...)
			}
		}
	}
	if c.defaultAllow && !doubt {
		for _, e := range slices.Concat(exact, c.wild) {
			if e.JWT != nil {
				c.note(e, "", "JWT has no counterpart here: callers without an intention are denied")
				return out
			}
		}
		out = append(out, c.from([]match{{}}, c.everybody, c.principals(seen))...)
	}
	return out
}

// overruled looks for intentions of single sources for all destinations, which come after the one
// of an entry for all sources. Consul's answers and its documentation have that order, and its
// Envoys do not: there, an intention with the default's action is left out, and stops no other one
// (agent/xds/rbac.go of Consul 1.20). What either of them denies is denied: overruled adds to seen
// whom the intention for all sources may not allow, or reports that it may allow nobody.
func (c *converter) overruled(e *api.ServiceIntentionsConfigEntry, allowed []match, seen map[string]bool) (all bool) {
	everything := len(allowed) == 1 && len(allowed[0]) == 0
	for _, w := range c.wild {
		for _, s := range w.Sources {
			if s.Name == wildcard || seen[s.Name] || c.state.foreign(s) != "" {
				continue
			}
			denies := s.Action != api.IntentionActionAllow
			switch {
			case denies && len(allowed) > 0 && c.state.Default != api.IntentionActionDeny:
				c.note(e, s.Name, "the intention for %q as the destination denies it. In Consul's order the one for %q as the source comes first, but Envoys of a Consul that allows by default deny it: it is denied", wildcard, wildcard)
				if c.unnamed(s) != "" {
					all = true
				} else {
					seen[s.Name] = true
				}
			case !denies && !everything && !c.defaultAllow:
				c.note(e, s.Name, "the intention for %q as the destination allows it. In Consul's order the one for %q as the source comes first, which counts here, but Envoys of a Consul that denies by default allow it", wildcard, wildcard)
			}
		}
	}
	return all
}

// foreign says why a source is no service of Consul's home namespace; empty if it is.
func (s *State) foreign(src *api.SourceIntention) string {
	switch {
	case src.Peer != "":
		return fmt.Sprintf("the peer %q has no counterpart", src.Peer)
	case src.SamenessGroup != "":
		return fmt.Sprintf("the sameness group %q has no counterpart", src.SamenessGroup)
	case !s.home(src.Namespace, src.Partition):
		return "namespaces and partitions of Consul Enterprise have no counterpart"
	case src.Type != "" && src.Type != api.IntentionSourceConsul:
		return fmt.Sprintf("sources of type %q have no counterpart", src.Type)
	}
	return ""
}

// unnamed says why a source cannot be named by a principal of its own; empty if it can.
func (c *converter) unnamed(s *api.SourceIntention) string {
	if why := c.state.foreign(s); why != "" || s.Name == wildcard {
		return why
	}
	w := c.who[s.Name]
	others, spellings := c.byIdentity[c.principal(w.Identity)], c.byFold[strings.ToLower(s.Name)]
	switch {
	case len(spellings) > 1:
		return "names that differ in capital letters only (" + strings.Join(spellings, ", ") + ") are the same for Consul"
	case w.reason != "":
		return "the source is not in the mesh: " + w.reason
	case w.Shared != "":
		return "the source has no identity of its own: " + w.Shared
	case len(others) > 1:
		return "the settings give one identity to several services (" + strings.Join(others, ", ") + ")"
	}
	return ""
}

func (c *converter) principal(id mapping.Identity) string {
	return c.options.TrustDomain + "/ns/" + id.Namespace + "/sa/" + id.ServiceAccount
}

func (c *converter) principals(services map[string]bool) []string {
	var out []string
	for _, s := range slices.Sorted(maps.Keys(services)) {
		out = append(out, c.principal(c.who[s].Identity))
	}
	return out
}

// from are the rules that allow requests to these callers.
func (c *converter) from(requests []match, principals, except []string) []*security.Rule {
	if len(principals) == 0 { // a rule without principals would be for everybody
		return nil
	}
	out := make([]*security.Rule, 0, len(requests))
	for _, m := range requests {
		r := &security.Rule{
			From: []*security.Rule_From{{Source: &security.Source{Principals: principals, NotPrincipals: except}}}, When: m.when(),
		}
		if o := m.operation(); o != nil {
			r.To = []*security.Rule_To{{Operation: o}}
		}
		out = append(out, r)
	}
	return out
}
