package analysis

import (
	"maps"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/nearname"
)

// localDomain stands for the mesh's trust domain in policies, whatever its name.
const localDomain = "cluster.local"

// identities are those that workloads of the mesh have.
type identities struct {
	// domains are the trust domain and its aliases.
	domains []string
	// accounts are NAMESPACE/ACCOUNT, names the same as a list.
	accounts map[string]bool
	names    []string
	// namespaces are those of workloads, spaces the same as a list. In unsaid, one does not say
	// its account.
	namespaces, unsaid map[string]bool
	spaces             []string
}

func newIdentities(w *meshIndex) *identities {
	x := &identities{domains: trustDomains(w.config()), accounts: map[string]bool{}, namespaces: map[string]bool{}, unsaid: map[string]bool{}}
	for _, p := range []*pool{w.workloads, w.groups} {
		for _, one := range p.in[""] {
			x.add(one.object.Meta.Namespace, one.spec.GetServiceAccount())
		}
	}
	for o, spec := range specs[*networking.ServiceEntry](w) {
		for _, e := range spec.GetEndpoints() {
			x.add(o.Meta.Namespace, e.GetServiceAccount())
		}
		for _, san := range spec.GetSubjectAltNames() {
			if ns, account, ok := accountOf(strings.TrimPrefix(san, "spiffe://")); ok {
				x.add(ns, account)
			}
		}
	}
	x.names, x.spaces = slices.Sorted(maps.Keys(x.accounts)), slices.Sorted(maps.Keys(x.namespaces))
	return x
}

func (x *identities) add(namespace, account string) {
	x.namespaces[namespace] = true
	if account == "" {
		x.unsaid[namespace] = true
		return
	}
	x.accounts[namespace+"/"+account] = true
}

// has reports whether a workload may have the account.
func (x *identities) has(namespace, account string) bool {
	return x.accounts[namespace+"/"+account] || x.unsaid[namespace]
}

func (w *meshIndex) config() *meshconfig.MeshConfig {
	if w.in.MeshConfig == nil {
		return nil
	}
	return w.in.MeshConfig.Spec
}

func trustDomains(c *meshconfig.MeshConfig) []string {
	own := c.GetTrustDomain()
	if own == "" {
		own = localDomain
	}
	return append([]string{own}, c.GetTrustDomainAliases()...)
}

// accountOf reads DOMAIN/ns/NAMESPACE/sa/ACCOUNT.
func accountOf(principal string) (namespace, account string, ok bool) {
	parts := strings.Split(principal, "/")
	const all = 5
	if len(parts) != all || parts[1] != "ns" || parts[3] != "sa" {
		return "", "", false
	}
	return parts[2], parts[4], true
}

// unknownIdentities warns of a rule that names who nobody in the mesh is. Only names that are
// written out and of this mesh are judged: patterns may be for later, and other trust domains
// have workloads of their own.
func unknownIdentities(w *meshIndex, r *report) {
	if w.in.OtherSources || len(w.policies.all) == 0 {
		return
	}
	known := newIdentities(w)
	for _, p := range w.policies.all {
		for rule, field := range p.rules {
			for l := range lists(rule, field) {
				why := known.judge(l.name, p.object.Meta.Namespace)
				if why == nil {
					continue
				}
				for i, v := range l.values {
					if text := why(w, v); text != "" {
						r.warn(place{p.object, item(l.field, i)}, "%s", text)
					}
				}
			}
		}
	}
}

// judge returns what says of the values of an attribute why nobody has them; nil for other
// attributes.
func (x *identities) judge(name, namespace string) func(w *meshIndex, value string) string {
	switch name {
	case "principals", "source.principal":
		return x.principal
	case "namespaces", "source.namespace":
		return x.namespace
	case "serviceAccounts", "source.serviceAccount":
		return func(w *meshIndex, v string) string {
			ns, account, full := strings.Cut(v, "/")
			if !full {
				ns, account = namespace, v
			}
			return x.account(w, ns, account, func(s string) string { return s })
		}
	}
	return nil
}

func (x *identities) principal(w *meshIndex, v string) string {
	if bare, has := strings.CutPrefix(v, "spiffe://"); has {
		return "no certificate has this name: principals are written without spiffe://; write \"" + bare + "\""
	}
	domain, _, _ := strings.Cut(v, "/")
	if strings.Contains(v, "*") || domain != localDomain && !slices.Contains(x.domains, domain) {
		return ""
	}
	ns, account, ok := accountOf(v)
	if !ok {
		return "no workload of the mesh has the identity \"" + v + "\", as identities are TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT; write it so"
	}
	return x.account(w, ns, account, func(s string) string {
		ns, account, _ := strings.Cut(s, "/")
		return domain + "/ns/" + ns + "/sa/" + account
	})
}

// account says that no workload has an account, in the words in which it was written.
func (x *identities) account(w *meshIndex, namespace, account string, written func(string) string) string {
	if x.has(namespace, account) {
		return ""
	}
	name := namespace + "/" + account
	text := "no workload of the mesh has the service account " + name
	for _, other := range x.names {
		if !w.mayGuess() {
			break
		}
		if nearname.Slip(name, other) {
			return text + " (did you mean \"" + written(other) + "\"?)"
		}
	}
	return text + "; correct the name, or remove it from the rule"
}

func (x *identities) namespace(w *meshIndex, v string) string {
	if strings.Contains(v, "*") || x.namespaces[v] {
		return ""
	}
	for _, other := range x.spaces {
		if !w.mayGuess() {
			break
		}
		if nearname.Slip(v, other) {
			return "no workload of the mesh is in namespace \"" + v + "\" (did you mean \"" + other + "\"?)"
		}
	}
	return "no workload of the mesh is in namespace \"" + v + "\"; correct the name, or remove it from the rule"
}
