package manifest

import (
	"fmt"
	"strings"
)

// ParseBound reads PLACE or PLACE=NAMESPACE,…: a place that manifests are in, and
// the namespaces that it is bound to. form is what people call the place, such as
// "DIR".
func ParseBound(s, form string) (place string, namespaces []string, err error) {
	place, list, bound := strings.Cut(s, "=")
	if place == "" {
		return "", nil, fmt.Errorf("reading %q: %s is missing; write %s or %s=NAMESPACE,…", s, form, form, form)
	}
	if !bound {
		return place, nil, nil
	}
	for ns := range strings.SplitSeq(list, ",") {
		if ns = strings.TrimSpace(ns); ns == "" {
			return "", nil, fmt.Errorf("reading %q: a namespace is empty; write %s or %s=NAMESPACE,…", s, form, form)
		}
		if !isNamespace(ns) {
			return "", nil, fmt.Errorf("reading %q: %q is not a namespace: lower-case letters, digits and inner hyphens, at most 63", s, ns)
		}
		namespaces = append(namespaces, ns)
	}
	return place, namespaces, nil
}

// isNamespace reports whether an object could be in a namespace of that name.
func isNamespace(ns string) bool {
	return len(ns) <= 63 && strings.Trim(ns, "-") == ns && ns != "" &&
		strings.Trim(ns, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
