package analysis

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	security "istio.io/api/security/v1beta1"
)

// pathsWithoutSlash warns of a path that begins with neither a slash nor a star. Paths of
// requests begin with a slash.
func pathsWithoutSlash(w *meshIndex, r *report) {
	for at, v := range w.paths {
		if strings.HasPrefix(v.text, "/") || strings.HasPrefix(v.text, "*") || isTemplate(v.text) {
			continue // a template without a slash keeps its policy out of force
		}
		instead := fmt.Sprintf("write %q", "/"+v.text)
		if strings.Contains(v.text, "://") {
			instead = "write the path alone"
		}
		r.warn(at, "the path %q begins with no slash, so no request has it; %s; %s", v.text, v.effect(), instead)
	}
}

// impossiblePaths warns of a path that no request has once Envoy has normalized it.
func impossiblePaths(w *meshIndex, r *report) {
	n := normalizationOf(w)
	for at, v := range w.paths {
		if why := n.never(v.text); why != "" {
			r.warn(at, "no request has the path %q: %s; %s", v.text, why, v.effect())
		}
	}
}

// pathValue is a path in a rule.
type pathValue struct {
	text   string
	not    bool
	policy *policy
}

// effect is what comes of a path that never matches.
func (v pathValue) effect() string {
	switch action := v.policy.spec.GetAction(); {
	case v.not:
		return "as an exception it has no effect"
	case action == security.AuthorizationPolicy_ALLOW:
		return "it allows nothing"
	case action == security.AuthorizationPolicy_DENY:
		return "it denies nothing"
	default:
		return "it has no effect"
	}
}

// paths yields all paths in rules, and where they stand.
func (w *meshIndex) paths(yield func(place, pathValue) bool) {
	for _, p := range w.policies.all {
		for rule, field := range p.rules {
			for l := range lists(rule, field) {
				if l.name != "paths" {
					continue
				}
				for i, v := range l.values {
					if !yield(place{p.object, item(l.field, i)}, pathValue{v, l.not, p}) {
						return
					}
				}
			}
		}
	}
}

func item(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

func isTemplate(path string) bool {
	return strings.Contains(path, "{*}") || strings.Contains(path, "{**}")
}

// normalization is what Envoy does with the path of a request before rules see it: MeshConfig's
// pathNormalization.
type normalization struct {
	// base resolves dots, decodes characters that need no escape, and escapes others.
	base bool
	// merge merges slashes; decode decodes %2F and %5C before.
	merge, decode bool
	name          string
}

func normalizationOf(w *meshIndex) normalization {
	switch name := w.config().GetPathNormalization().GetNormalization().String(); name {
	case "NONE":
		return normalization{name: name}
	case "MERGE_SLASHES":
		return normalization{base: true, merge: true, name: name}
	case "DECODE_AND_MERGE_SLASHES":
		return normalization{base: true, merge: true, decode: true, name: name}
	default:
		return normalization{base: true, name: "BASE"}
	}
}

var (
	escapedSlash = regexp.MustCompile(`(?i)%2f|%5c`)
	// unreserved are escapes of the characters that need none (RFC 3986, 2.3).
	unreserved = regexp.MustCompile(`(?i)%(?:2d|2e|5f|7e|3[0-9]|[46][1-9a-f]|[57][0-9a])`)
	// escaped are the characters that Envoy writes as escapes.
	escaped = regexp.MustCompile("[^!-~]|[\"<>^`{|}]")
)

// never says why no normalized path is one of those that a value of paths stands for; "" if one
// may be. Requests that are made to look so by escapes in escapes (%%341 becomes %41) are not
// looked at: nobody means them.
func (n normalization) never(value string) string {
	literal, open := value, 0 // which end of it goes on: -1 the first, 1 the last
	switch {
	case isTemplate(value) || value == "*":
	case strings.HasPrefix(value, "*"):
		literal, open = value[1:], -1
	case strings.HasSuffix(value, "*"):
		literal, open = value[:len(value)-1], 1
	}
	setting := "pathNormalization " + n.name
	switch {
	case strings.ContainsAny(literal, "?#"):
		return "rules compare the path without query and fragment; write what stands before"
	case n.merge && strings.Contains(literal, "//") && literal != "//":
		return setting + " merges slashes; write one"
	case n.decode && escapedSlash.MatchString(literal):
		return setting + " decodes " + escapedSlash.FindString(literal) + "; write a slash"
	case n.base && strings.Contains(literal, `\`):
		return setting + ` makes a slash of \; write a slash`
	case n.base && unreserved.MatchString(literal):
		return setting + " decodes " + unreserved.FindString(literal) + "; write the character itself"
	case n.base && !isTemplate(value) && escaped.MatchString(literal):
		c := escaped.FindString(literal)
		return fmt.Sprintf("%s escapes %q; write %s", setting, c, escapes(c))
	case n.base && hasDots(literal, open):
		return setting + " resolves . and ..; write the path that they lead to"
	}
	return ""
}

// escapes is a character as percent-encoded bytes.
func escapes(c string) string {
	var out strings.Builder
	for i := range len(c) {
		fmt.Fprintf(&out, "%%%02X", c[i])
	}
	return out.String()
}

// hasDots tells whether a whole segment is "." or "..". With parameters ("..;a") newer Envoys
// resolve it, and 1.36 does not.
func hasDots(literal string, open int) bool {
	segments := strings.Split(literal, "/")
	if open < 0 { // the first may be the end of a longer one
		segments = segments[1:]
	}
	if open > 0 { // the last may be the beginning of one
		segments = segments[:len(segments)-1]
	}
	return slices.Contains(segments, ".") || slices.Contains(segments, "..")
}
