package analysis

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest"
)

// maxCompared bounds with how many DENY rules one ALLOW rule is compared: a namespace of
// thousands of policies must not take the square of it. Few workloads have so many.
const maxCompared = 256

// shadowedRules warns of a rule that allows nothing, because a DENY policy denies all of it. Only
// what is certain is found: the DENY policy selects by the same labels or fewer, and each of its
// lists has what the ALLOW rule's has.
func shadowedRules(w *meshIndex, r *report) {
	c := coverage{plain: len(w.config().GetTrustDomainAliases()) == 0 && trustDomains(w.config())[0] == localDomain}
	for _, p := range w.policies.all {
		if !p.allows() || !p.decides {
			continue
		}
		for rule, field := range p.rules {
			left := maxCompared
			for d := range w.denyingFor(p) {
				if left <= 0 {
					break
				}
				if by := c.coveredBy(rule, p, d, &left); by >= 0 {
					r.warn(place{p.object, field}, "%s denies all that this rule allows, in spec.rules[%d] (%s), so the rule has no effect; remove it, or narrow the other one",
						d.object.Meta.Key, by, originOf(d.object, by))
					break
				}
			}
		}
	}
}

func originOf(o *manifest.Object, rule int) string {
	return o.Origin(fmt.Sprintf("spec.rules[%d]", rule)).String()
}

// denyingFor yields the DENY policies in force for all workloads that a policy is for.
func (w *meshIndex) denyingFor(p *policy) func(yield func(*policy) bool) {
	return func(yield func(*policy) bool) {
		for _, ns := range slices.Compact([]string{w.root, p.object.Meta.Namespace}) {
			of := w.policies.denying[ns]
			if of == nil {
				continue
			}
			for _, d := range of.every {
				if !yield(d) {
					return
				}
			}
			for d := range of.narrower(p.spec.GetSelector().GetMatchLabels()) {
				if !yield(d) {
					return
				}
			}
		}
	}
}

// coverage compares rules.
type coverage struct {
	// plain says that cluster.local is the mesh's trust domain and has no aliases, so that
	// principals are compared as they are written.
	plain bool
}

// coveredBy returns the rule of a DENY policy that matches whatever the rule of a policy does, or
// -1. It counts the rules that it looks at.
func (c coverage) coveredBy(rule *security.Rule, of, by *policy, left *int) int {
	for i, wide := range by.spec.GetRules() {
		if *left--; *left < 0 {
			break
		}
		if wide != nil && c.covers(wide, rule, by.object.Meta.Namespace, of.object.Meta.Namespace) {
			return i
		}
	}
	return -1
}

// covers reports whether a rule surely matches whatever another does. The namespaces are those
// of their policies.
func (c coverage) covers(wide, narrow *security.Rule, wideIn, narrowIn string) bool {
	to := func(t *security.Rule_To) []pair { return operationLists(t.GetOperation()) }
	from := func(f *security.Rule_From) []pair { return sourceLists(f.GetSource()) }
	return eachCovered(wide.GetTo(), narrow.GetTo(), func(a, b *security.Rule_To) bool { return c.all(to(a), to(b), wideIn, narrowIn) }) &&
		eachCovered(wide.GetFrom(), narrow.GetFrom(), func(a, b *security.Rule_From) bool { return c.all(from(a), from(b), wideIn, narrowIn) }) &&
		!slices.ContainsFunc(wide.GetWhen(), func(a *security.Condition) bool {
			return !slices.ContainsFunc(narrow.GetWhen(), func(b *security.Condition) bool {
				return a.GetKey() == b.GetKey() && c.pair(
					pair{name: a.GetKey(), values: a.GetValues(), except: a.GetNotValues()},
					pair{name: b.GetKey(), values: b.GetValues(), except: b.GetNotValues()}, wideIn, narrowIn)
			})
		})
}

// eachCovered reports whether each of narrow is covered by one of wide. None means all.
func eachCovered[T any](wide, narrow []T, covers func(wide, narrow T) bool) bool {
	if len(wide) == 0 {
		return true
	}
	return len(narrow) > 0 && !slices.ContainsFunc(narrow, func(n T) bool {
		return !slices.ContainsFunc(wide, func(w T) bool { return covers(w, n) })
	})
}

// all compares the lists of two sources, or of two operations, which are in the same order.
func (c coverage) all(wide, narrow []pair, wideIn, narrowIn string) bool {
	for i := range wide {
		if !c.pair(wide[i], narrow[i], wideIn, narrowIn) {
			return false
		}
	}
	return true
}

// pair reports whether all that one attribute may be by narrow it may be by wide.
func (c coverage) pair(wide, narrow pair, wideIn, narrowIn string) bool {
	// each reports whether each text that a pattern of few stands for is one that some pattern of
	// many stands for.
	each := func(few []string, fewIn string, many []string, manyIn string) bool {
		return !slices.ContainsFunc(few, func(f string) bool {
			return !slices.ContainsFunc(many, func(m string) bool {
				return c.value(wide.name, written(wide.name, m, manyIn), written(wide.name, f, fewIn))
			})
		})
	}
	return (len(wide.values) == 0 || len(narrow.values) > 0 && each(narrow.values, narrowIn, wide.values, wideIn)) &&
		each(wide.except, wideIn, narrow.except, narrowIn)
}

// written is a value as it is compared: hosts without regard to case, accounts with their
// namespace.
func written(name, v, namespace string) string {
	switch name {
	case "hosts":
		return strings.ToLower(v)
	case "serviceAccounts", "source.serviceAccount":
		if !strings.Contains(v, "/") {
			return namespace + "/" + v
		}
	}
	return v
}

// value reports whether a value of an attribute surely stands for all that another does.
func (c coverage) value(name, wide, narrow string) bool {
	if wide == narrow {
		return true
	}
	switch name {
	case "ipBlocks", "remoteIpBlocks", "source.ip", "remote.ip", "destination.ip":
		return blockCovers(wide, narrow)
	case "ports", "destination.port":
		return portNumber(wide) == portNumber(narrow)
	case "principals", "source.principal":
		return c.principal(wide, narrow)
	case "methods", "hosts":
		return patternCovers(wide, narrow)
	case "paths":
		return wide == "*" || !isTemplate(wide) && !isTemplate(narrow) && patternCovers(wide, narrow)
	case "namespaces", "source.namespace": // a star in the middle is a wildcard there
		return strings.Count(wide, "*") < 2 && strings.Count(narrow, "*") < 2 && patternCovers(wide, narrow)
	case "request.auth.audiences", "request.auth.presenter", "connection.sni":
		return patternCovers(wide, narrow)
	}
	return (strings.HasPrefix(name, "request.headers") || strings.HasPrefix(name, "request.auth.claims")) && patternCovers(wide, narrow)
}

// principal compares principals. Aliases of the trust domain stand for each other in values that
// are whole, and not in patterns.
func (c coverage) principal(wide, narrow string) bool {
	switch {
	case wide == "*" || c.plain && !strings.HasPrefix(wide, "*"):
		return patternCovers(wide, narrow)
	case strings.HasPrefix(wide, "*") && !strings.Contains(narrow, "*"):
		_, afterDomain, _ := strings.Cut(narrow, "/")
		return strings.HasSuffix("/"+afterDomain, wide[1:])
	}
	return false
}

// patternCovers compares texts that may have a star at one end.
func patternCovers(wide, narrow string) bool {
	stem, suffix := strings.CutPrefix(narrow, "*")
	if !suffix {
		stem, _ = strings.CutSuffix(narrow, "*")
	}
	prefix := !suffix && stem != narrow
	switch {
	case wide == "*":
		return narrow != ""
	case strings.HasPrefix(wide, "*"):
		return !prefix && strings.HasSuffix(stem, wide[1:])
	case strings.HasSuffix(wide, "*"):
		return !suffix && strings.HasPrefix(stem, wide[:len(wide)-1])
	}
	return false
}

func blockCovers(wide, narrow string) bool {
	w, okWide := block(wide)
	n, okNarrow := block(narrow)
	return okWide && okNarrow && w.Bits() <= n.Bits() && w.Contains(n.Addr())
}

func block(v string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(v); err == nil {
		return p, true
	}
	a, err := netip.ParseAddr(v)
	return netip.PrefixFrom(a, a.BitLen()), err == nil
}
