package webhook

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const (
	maxLabelLen = 63
	maxNameLen  = 255
)

func isAlnum(b byte) bool {
	return b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z'
}

// isWord tells whether s begins and ends with a letter or digit and holds nothing
// between but letters, digits and the bytes of extra.
func isWord(s, extra string) bool {
	if s == "" || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !isAlnum(s[i]) && strings.IndexByte(extra, s[i]) < 0 {
			return false
		}
	}
	return true
}

// isDNSLabel tells whether s is one label of a DNS name; upper case is allowed.
func isDNSLabel(s string) bool {
	return len(s) <= maxLabelLen && isWord(s, "-")
}

// isWildcardLabel also takes "*", "*foo" and "*-foo".
func isWildcardLabel(s string) bool {
	if s == "*" || isDNSLabel(s) {
		return true
	}
	rest, star := strings.CutPrefix(s, "*")
	if !star || len(s) > maxLabelLen {
		return false
	}
	return isWord(rest, "-") || isWord(strings.TrimPrefix(rest, "-"), "-") && strings.HasPrefix(rest, "-")
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

func isWildcard(host string) bool { return strings.HasPrefix(host, "*") }

func whyNotLength(name string) string {
	switch {
	case name == "":
		return "the host name is empty; write a DNS name such as \"orders.example.com\""
	case len(name) > maxNameLen:
		return fmt.Sprintf("the host name has %d characters, DNS allows %d", len(name), maxNameLen)
	}
	return ""
}

// whyNotLabels says why the dotted labels at the end of name are no DNS name, or "".
// A last empty label ("example.com.") is fine, an all-numeric last one is not.
func whyNotLabels(name, end string) string {
	labels := strings.Split(end, ".")
	last := labels[len(labels)-1]
	if _, err := strconv.Atoi(last); err == nil {
		return fmt.Sprintf("%q is not a DNS name: its last part %q is a number; write a name that ends in letters", name, last)
	}
	for i, label := range labels {
		if label == "" && i == len(labels)-1 {
			return ""
		}
		if !isDNSLabel(label) {
			return fmt.Sprintf("%q is not a DNS name: %s", name, whyNotLabel(label))
		}
	}
	return ""
}

// whyNotLabel explains a label that isDNSLabel refused.
func whyNotLabel(label string) string {
	switch {
	case label == "":
		return "it has an empty part; remove the surplus dot"
	case len(label) > maxLabelLen:
		return fmt.Sprintf("the part %q has %d characters, at most %d are allowed", label, len(label), maxLabelLen)
	case strings.Contains(label, "*"):
		return fmt.Sprintf("the part %q holds a wildcard, which is not allowed there", label)
	}
	return fmt.Sprintf("the part %q may hold only letters, digits and inner hyphens", label)
}

// whyNotFQDN says why name is no DNS name without wildcards, or "".
func whyNotFQDN(name string) string {
	if why := whyNotLength(name); why != "" {
		return why
	}
	return whyNotLabels(name, name)
}

// whyNotHost says why name is no DNS name with at most a wildcard in front, or "".
func whyNotHost(name string) string {
	if why := whyNotLength(name); why != "" {
		return why
	}
	first, rest, dotted := strings.Cut(name, ".")
	switch {
	case !isWildcardLabel(first):
		if isWildcard(first) {
			return fmt.Sprintf("%q is not a host name: write the wildcard as \"*\" or in front of a name, as in \"*.example.com\"", name)
		}
		return fmt.Sprintf("%q is not a host name: %s", name, whyNotLabel(first))
	case dotted:
		return whyNotLabels(name, rest)
	}
	return ""
}

// sniForm is what a gateway in AUTO_PASSTHROUGH mode gets as server name.
const sniForm = "outbound_.<PORT>_._.<HOSTNAME>"

// whyNotGatewayHost is whyNotHost for a VirtualService bound to a gateway: when it
// matches by SNI, a name that Envoys make up for mesh traffic is allowed too.
func whyNotGatewayHost(name string, sni bool) string {
	if why := whyNotLength(name); why != "" {
		return why
	}
	if !sni || !strings.HasPrefix(name, "outbound_") {
		return whyNotHost(name)
	}
	parts := strings.Split(name, "_")
	if len(parts) < 4 {
		return fmt.Sprintf("%q is not a server name of the mesh; the form is %s", name, sniForm)
	}
	if !strings.ContainsAny(parts[1], "0123456789") {
		return fmt.Sprintf("%q has no port number; the form is %s", name, sniForm)
	}
	if !strings.ContainsFunc(strings.Trim(parts[3], "."), isLetter) {
		return fmt.Sprintf("%q has no host name; the form is %s", name, sniForm)
	}
	return ""
}

func isLetter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

// whyPartialWildcard refuses "*foo.example.com" where only "*.example.com" has a meaning.
func whyPartialWildcard(host string) string {
	if len(host) != 1 && strings.Contains(host, "*") && !strings.HasPrefix(host, "*.") {
		return fmt.Sprintf("%q: a wildcard must stand for whole labels; write \"*.\" and the rest of the name", host)
	}
	return ""
}

// overlap is two hosts of a list, by index, of which one has the other in it.
type overlap struct{ first, later int }

// overlapping are the hosts of a list that overlap, each with the widest one only: of many that are the same
// there would be as many pairs as their square.
func overlapping(hosts []string) []overlap {
	type host struct {
		backwards string // without the "*"
		wild      bool
		at        int
	}
	list := make([]host, len(hosts))
	for i, h := range hosts {
		text, wild := strings.CutPrefix(h, "*")
		backwards := []byte(text)
		slices.Reverse(backwards)
		list[i] = host{string(backwards), wild, i}
	}
	// Behind a wildcard come all hosts that it has, and nothing else.
	slices.SortFunc(list, func(a, b host) int {
		return cmp.Or(cmp.Compare(a.backwards, b.backwards), compareBools(b.wild, a.wild), cmp.Compare(a.at, b.at))
	})
	var out []overlap
	var widest *host
	for i := range list {
		h := &list[i]
		switch {
		case widest != nil && (h.backwards == widest.backwards || widest.wild && strings.HasPrefix(h.backwards, widest.backwards)):
			out = append(out, overlap{min(h.at, widest.at), max(h.at, widest.at)})
		default:
			widest = h
		}
	}
	slices.SortFunc(out, func(a, b overlap) int { return cmp.Or(cmp.Compare(a.later, b.later), cmp.Compare(a.first, b.first)) })
	return out
}

func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// hostSet is a list of hosts to find others in.
type hostSet struct {
	exact, wild map[string]bool // wildcards without the "*"
}

func newHostSet(hosts []string) hostSet {
	s := hostSet{map[string]bool{}, map[string]bool{}}
	for _, h := range hosts {
		if rest, wild := strings.CutPrefix(h, "*"); wild {
			s.wild[rest] = true
			continue
		}
		s.exact[h] = true
	}
	return s
}

// covers tells whether every host of h, which is no longer than a name may be, is a host of the set.
func (s hostSet) covers(h string) bool {
	if s.exact[h] {
		return true
	}
	rest := strings.TrimPrefix(h, "*")
	for i := range len(rest) + 1 {
		if s.wild[rest[i:]] {
			return true
		}
	}
	return false
}

// fewOf are some names for people: a message for each of many names would be as long as their square.
func fewOf(names []string) string {
	const most = 10
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
