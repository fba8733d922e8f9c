package mesh

import (
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
	defaults  []string
	made      []map[*DestinationRule]*DestinationRule // by source, what was made of each object
	conflicts []Conflict
}

// next makes the rules of other lists; bindings are as before.
func (r *tenantRules) next(lists [][]*DestinationRule, bindings []*Binding, defaults []string) tenantRules {
	known := len(r.in) == len(lists) && slices.Equal(r.defaults, defaults)
	if known && !slices.ContainsFunc(zip(r.in, lists), func(p [2][]*DestinationRule) bool { return !sameSlice(p[0], p[1]) }) {
		return *r
	}
	next := tenantRules{in: lists, out: make([][]*DestinationRule, len(lists)), defaults: defaults, made: make([]map[*DestinationRule]*DestinationRule, len(lists))}
	for i, list := range lists {
		b := bindings[i]
		if b == nil || len(list) == 0 {
			next.out[i] = list
			continue
		}
		next.made[i] = make(map[*DestinationRule]*DestinationRule, len(list))
		for _, dr := range list {
			var made *DestinationRule
			if known {
				made = r.made[i][dr]
			}
			if made == nil {
				made = dr.ofTenant(b)
			}
			next.made[i][dr] = made
			next.out[i] = append(next.out[i], made)
			if !onlyOwn(dr.ExportTo, defaults, dr.Namespace) {
				next.conflicts = append(next.conflicts, b.refusedCredentials(dr)...)
			}
		}
		if known && slices.Equal(next.out[i], r.out[i]) {
			next.out[i] = r.out[i]
		}
	}
	slices.SortFunc(next.conflicts, compareConflicts)
	return next
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
func (r *DestinationRule) ofTenant(b *Binding) *DestinationRule {
	names := b.ungranted(r.Spec)
	if len(names) == 0 {
		return r
	}
	out := *r
	out.Elsewhere, out.Hash = withoutCredentials(r.Spec, b), hashAs(r.Hash, "without credentials\n"+strings.Join(names, "\n"))
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
			Key: r.Key, Dropped: r.Origin, Kind: ConflictCredential, Field: field + ".credentialName",
			Reason: fmt.Sprintf("the credential %q is not given to this source, which is bound to namespaces: gateways of namespaces other than %s make no connection to %s by this policy; "+
				"give it the credential (--config-credentials, --consul-kv-credentials), or write exportTo: [\".\"]", name, r.Namespace, r.Spec.GetHost()),
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
