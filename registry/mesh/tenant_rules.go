package mesh

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// RefusedCredential is the credentialName of a policy by which no connection may be made: the source of its
// DestinationRule may not use the credential that it names at this proxy. It is no name of a folder, so
// that no host can have it.
const RefusedCredential = "//refused"

// tenantRules are the DestinationRules of sources that are bound to namespaces, as they count.
type tenantRules struct {
	in, out   [][]*DestinationRule
	services  [][]*Service
	defaults  []string
	made      []map[tenantRule]*DestinationRule // by source, what was made of each object
	conflicts []Conflict
}

// tenantRule is what is made of a rule.
type tenantRule struct {
	rule *DestinationRule
	// noTables: its tables are refused.
	noTables bool
}

// next makes the rules of other fragments; bindings are as before.
func (r *tenantRules) next(fragments []*Fragment, bindings []*Binding, defaults []string) tenantRules {
	next := tenantRules{
		in:       lists(fragments, func(f *Fragment) []*DestinationRule { return f.DestinationRules }),
		services: lists(fragments, func(f *Fragment) []*Service { return f.Services }), defaults: defaults,
	}
	counts := next.countsTables(bindings)
	if slices.Equal(r.defaults, defaults) && sameLists(r.in, next.in) && (!counts || sameLists(r.services, next.services)) {
		return *r
	}
	next.out, next.made = make([][]*DestinationRule, len(next.in)), make([]map[tenantRule]*DestinationRule, len(next.in))
	ports := &servicePorts{}
	if counts {
		ports = countPorts(next.in, next.services, bindings)
	}
	for i, list := range next.in {
		if b := bindings[i]; b == nil || len(list) == 0 {
			next.out[i] = list
		} else {
			next.decide(i, b, ports, r)
		}
	}
	slices.SortFunc(next.conflicts, compareConflicts)
	return next
}

// decide decides for the rules of one source.
func (r *tenantRules) decide(i int, b *Binding, ports *servicePorts, before *tenantRules) {
	list := r.in[i]
	known := len(before.made) == len(r.in)
	refused, sum := ports.tooManyTables(list)
	r.made[i] = make(map[tenantRule]*DestinationRule, len(list))
	for _, dr := range list {
		entries, noTables := refused[dr]
		key := tenantRule{dr, noTables}
		var made *DestinationRule
		if known {
			made = before.made[i][key]
		}
		if made == nil {
			made = dr.ofTenant(b, noTables)
		}
		r.made[i][key] = made
		r.out[i] = append(r.out[i], made)
		if noTables {
			r.conflicts = append(r.conflicts, refusedTables(dr, entries, sum))
		}
		if !onlyOwn(dr.ExportTo, r.defaults, dr.Namespace) {
			r.conflicts = append(r.conflicts, b.refusedCredentials(dr)...)
		}
	}
	if known && slices.Equal(r.out[i], before.out[i]) {
		r.out[i] = before.out[i]
	}
}

func sameLists[T any](a, b [][]T) bool {
	return len(a) == len(b) && !slices.ContainsFunc(zip(a, b), func(p [2][]T) bool { return !sameSlice(p[0], p[1]) })
}

// countsTables reports whether a bound source has a rule with consistentHash: only then do
// services matter.
func (r *tenantRules) countsTables(bindings []*Binding) bool {
	for i, list := range r.in {
		if bindings[i] != nil && slices.ContainsFunc(list, func(dr *DestinationRule) bool { return hasHashTables(dr.Spec) }) {
			return true
		}
	}
	return false
}

// put puts the rules into the fragments, in which they replace those of bound sources.
func (r *tenantRules) put(fragments []*Fragment, bindings []*Binding) {
	for i, f := range fragments {
		if bindings[i] == nil || f == nil || len(r.out[i]) == 0 {
			continue
		}
		next := *f
		next.DestinationRules = r.out[i]
		fragments[i] = &next
	}
}

// ofTenant is the rule as one of a source that is bound to namespaces: itself, if nothing differs.
func (r *DestinationRule) ofTenant(b *Binding, noTables bool) *DestinationRule {
	out, changed := *r, ""
	switch {
	case noTables:
		out.Spec, changed = withoutTables(r.Spec), "without tables\n"
	case hasHashTables(r.Spec):
		out.LimitTables, changed = true, "limited tables\n"
	}
	if names := b.ungranted(r.Spec); len(names) > 0 {
		out.Elsewhere = withoutCredentials(out.Spec, b)
		changed += "without credentials\n" + strings.Join(names, "\n")
	}
	if changed == "" {
		return r
	}
	out.Hash = hashAs(r.Hash, changed)
	return &out
}

// grants reports whether the source may have proxies of other namespaces use a credential.
func (b *Binding) grants(credential string) bool { return slices.Contains(b.Credentials, credential) }

// ungranted are the credentials that a rule names and that only proxies of its own namespace
// may use for it; sorted.
func (b *Binding) ungranted(spec *networking.DestinationRule) []string {
	var out []string
	for _, tls := range clientTLS(spec) {
		if name := usedCredential(tls); name != "" && !b.grants(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// refusedCredentials are the conflicts of a rule that names such credentials.
func (b *Binding) refusedCredentials(r *DestinationRule) []Conflict {
	var out []Conflict
	for field, tls := range clientTLS(r.Spec) {
		name := usedCredential(tls)
		if name == "" || b.grants(name) || r.Spec.GetWorkloadSelector() != nil { // with a selector, it is for its own namespace
			continue
		}
		out = append(out, Conflict{
			Key: r.Key, Dropped: r.Origin, Kind: ConflictCredential, Field: field + ".credentialName", Credential: name,
			Reason: fmt.Sprintf("the credential %q is not given to this source, which is bound to namespaces: gateways of namespaces other than %s make no connection to %s by this policy; "+
				"give it the credential (%s), or write exportTo: [\".\"]", name, r.Namespace, r.Spec.GetHost(), cmp.Or(b.CredentialsFlag(name), "--config-credentials")),
		})
	}
	return out
}

// withoutCredentials is a rule in which policies with a credential that is not given refuse connections.
func withoutCredentials(spec *networking.DestinationRule, b *Binding) *networking.DestinationRule {
	out, _ := proto.Clone(spec).(*networking.DestinationRule)
	for _, tls := range clientTLS(out) {
		if name := usedCredential(tls); name != "" && !b.grants(name) {
			tls.CredentialName = RefusedCredential
		}
	}
	return out
}

// usedCredential is the credential by which TLS is begun; empty if there is none.
func usedCredential(tls *networking.ClientTLSSettings) string {
	switch tls.GetMode() {
	case networking.ClientTLSSettings_SIMPLE, networking.ClientTLSSettings_MUTUAL:
		return tls.GetCredentialName()
	case networking.ClientTLSSettings_DISABLE, networking.ClientTLSSettings_ISTIO_MUTUAL:
	}
	return ""
}

// clientTLS yields all TLS settings of a rule, and their paths.
func clientTLS(spec *networking.DestinationRule) iter.Seq2[string, *networking.ClientTLSSettings] {
	return func(yield func(string, *networking.ClientTLSSettings) bool) {
		for at, p := range trafficPolicies(spec) {
			if tls := p.GetTls(); tls != nil && !yield(at+".tls", tls) {
				return
			}
			for i, s := range p.GetPortLevelSettings() {
				if tls := s.GetTls(); tls != nil && !yield(fmt.Sprintf("%s.portLevelSettings[%d].tls", at, i), tls) {
					return
				}
			}
		}
	}
}

// trafficPolicies yields the traffic policies of a rule, and their paths.
func trafficPolicies(spec *networking.DestinationRule) iter.Seq2[string, *networking.TrafficPolicy] {
	return func(yield func(string, *networking.TrafficPolicy) bool) {
		if p := spec.GetTrafficPolicy(); p != nil && !yield("spec.trafficPolicy", p) {
			return
		}
		for i, s := range spec.GetSubsets() {
			if p := s.GetTrafficPolicy(); p != nil && !yield(fmt.Sprintf("spec.subsets[%d].trafficPolicy", i), p) {
				return
			}
		}
	}
}
