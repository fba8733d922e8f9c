package manifest

import (
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

// prune takes the nulls out of the object that Kubernetes would, and warns where the object then
// applies to more than its author perhaps meant.
func (o *Object) prune(s *schema.Schema, r *reporter) {
	root, pruned := schema.Prune(o.root, s)
	o.root = root
	allows := o.Meta.Kind == mesh.KindAuthorizationPolicy && o.allows()
	for _, p := range pruned {
		absent := fmt.Sprintf("%q has no value and counts as absent, as in Kubernetes, ", p.Name)
		switch {
		case p.Entry && selects(o.Meta.Kind, p.In):
			so := "so this selects without looking at it"
			if p.Left == 0 {
				so = "and nothing else is selected by, so this selects everything"
			}
			r.warn(CodeLostSelector, p.Pos, p.Path, absent+so+"; write a value, or remove the line")
		case allows && isCondition(p.Path):
			r.warn(CodeLostCondition, p.Pos, p.Path, absent+"so the rule allows requests without this condition; write the condition, or remove the line")
		case !p.Entry:
			if open := openingAt(o.Meta.Kind, p.Path); open != nil && (open.only == nil || open.only(o)) {
				r.warn(open.code, p.Pos, p.Path, absent+open.so+"; "+open.write+", or remove the line")
			}
		}
	}
}

// allows reports whether the action of an AuthorizationPolicy is ALLOW.
func (o *Object) allows() bool {
	action := o.root.Get("spec").Get("action")
	return action == nil || action.Text == "ALLOW"
}

// isCondition reports whether a path is from, to or when of a rule, or lies in one of them.
func isCondition(path string) bool {
	rest, ok := strings.CutPrefix(path, "spec.rules[")
	if !ok {
		return false
	}
	_, rest, _ = strings.Cut(rest, "].")
	return within(rest, "from") || within(rest, "to") || within(rest, "when")
}

// selects reports whether the map at a path says to which workloads, endpoints or requests something
// applies: with an entry less, these are more.
func selects(kind mesh.Kind, path string) bool {
	last := path[strings.LastIndexByte(path, '.')+1:]
	outer := strings.TrimSuffix(path, "."+last)
	switch last {
	case "matchLabels", "sourceLabels", "withoutHeaders", "queryParams":
		return true
	case "headers":
		return strings.Contains(path, ".match[")
	case "metadata":
		return strings.HasSuffix(outer, ".match.proxy")
	case "labels":
		return strings.HasSuffix(outer, ".workloadSelector") || strings.HasPrefix(outer, "spec.subsets[")
	case "selector":
		return kind == mesh.KindGateway
	default:
		return false
	}
}
