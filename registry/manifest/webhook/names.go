package webhook

import (
	"fmt"
	"net/netip"
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

// overlap tells whether some host is covered by both names.
func overlap(a, b string) bool {
	return covers(a, b) || covers(b, a)
}

// covers tells whether every host of b is a host of a.
func covers(a, b string) bool {
	if !isWildcard(a) {
		return a == b
	}
	if isWildcard(b) {
		return len(b) >= len(a) && strings.HasSuffix(b[1:], a[1:])
	}
	return strings.HasSuffix(b, a[1:])
}
