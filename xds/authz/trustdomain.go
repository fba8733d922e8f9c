package authz

import (
	"slices"
	"strings"
)

// localDomain stands for the mesh's own trust domain in policies, whatever its name.
const localDomain = "cluster.local"

// principalParts is how many parts a principal with a trust domain has:
// DOMAIN/ns/NAMESPACE/sa/ACCOUNT.
const principalParts = 5

// withAliases returns the principals, and those of the mesh's trust domain once for each
// name that it has (Istio's pilot/pkg/security/trustdomain). The list is as long as before
// or longer: an empty one would match all.
func withAliases(list, domains []string) []string {
	var out []string
	for _, p := range list {
		parts := strings.Split(p, "/")
		if len(parts) != principalParts || parts[0] == "*" || len(domains) == 0 ||
			parts[0] != localDomain && !slices.ContainsFunc(domains, func(d string) bool { return overlap(parts[0], d) }) {
			out = append(out, p)
			continue
		}
		var aliases []string
		for _, d := range domains {
			alias := p
			if !hasSuffixPattern(d, parts[0]) {
				alias = d + "/" + strings.Join(parts[1:], "/")
			}
			if !slices.Contains(aliases, alias) {
				aliases = append(aliases, alias)
			}
		}
		out = append(out, aliases...)
	}
	return out
}

// domainsWithAliases returns the trust domains, and for one of the mesh all names that it
// has.
func domainsWithAliases(list, domains []string) []string {
	var out []string
	add := func(d string) {
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	for _, d := range list {
		if !slices.Contains(domains, d) {
			add(d)
			continue
		}
		for _, alias := range domains {
			add(alias)
		}
	}
	return out
}

// overlap tells whether one of two trust domains is the other, or a pattern of it.
func overlap(a, b string) bool {
	return a == b || b == "*" || hasPrefixPattern(a, b) || hasPrefixPattern(b, a) || hasSuffixPattern(a, b) || hasSuffixPattern(b, a)
}

func hasPrefixPattern(s, pattern string) bool {
	p, star := strings.CutSuffix(pattern, "*")
	return star && strings.HasPrefix(s, p)
}

func hasSuffixPattern(s, pattern string) bool {
	p, star := strings.CutPrefix(pattern, "*")
	return star && strings.HasSuffix(s, p)
}
