package mapping

import "strings"

// The limits and forms are those of Kubernetes for names and labels: what lies
// outside them, no manifest can name.
const (
	maxLabel     = 63
	maxSubdomain = 253
)

func isLowerAlnum(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }

func isAlnum(c byte) bool { return isLowerAlnum(c) || c >= 'A' && c <= 'Z' }

// isDNSLabel is RFC 1123 in lower case.
func isDNSLabel(s string) bool {
	if s == "" || len(s) > maxLabel || !isLowerAlnum(s[0]) || !isLowerAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if !isLowerAlnum(s[i]) && s[i] != '-' {
			return false
		}
	}
	return true
}

// isSubdomain reports whether s is DNS labels with dots between them.
func isSubdomain(s string) bool {
	if len(s) > maxSubdomain {
		return false
	}
	for {
		label, rest, more := strings.Cut(s, ".")
		if !isDNSLabel(label) {
			return false
		}
		if !more {
			return true
		}
		s = rest
	}
}

// isLabelName is the name part of a label's key.
func isLabelName(s string) bool {
	if s == "" || len(s) > maxLabel || !isAlnum(s[0]) || !isAlnum(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlnum(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

// isLabelKey is a name, or a DNS name, a slash and a name.
func isLabelKey(s string) bool {
	prefix, name, found := strings.Cut(s, "/")
	if !found {
		return isLabelName(s)
	}
	return isSubdomain(prefix) && isLabelName(name)
}

func isLabelValue(s string) bool { return s == "" || isLabelName(s) }

// isNumeric reports whether a part of a name would be read as a number of an IP
// address, as resolvers do: 1, 0x7f.
func isNumeric(label string) bool {
	if hex, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}
