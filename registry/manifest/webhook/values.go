package webhook

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"
)

const (
	maxPort     = 65535
	maxRegexLen = 1024
	unixPrefix  = "unix://"
)

// integer is any number that comes as a port.
type integer interface{ ~int | ~int32 | ~uint32 }

func whyNotPort[N integer](n N) string {
	if n >= 1 && int64(n) <= maxPort {
		return ""
	}
	return fmt.Sprintf("port %d is out of range; use 1 to 65535", n)
}

// whyNotDuration wants whole milliseconds, and at least one.
func whyNotDuration(d *durationpb.Duration) string {
	switch v := d.AsDuration(); {
	case v < time.Millisecond:
		return fmt.Sprintf("the duration %s is too short; use at least 1ms", v)
	case v%time.Millisecond != 0:
		return fmt.Sprintf("the duration %s is finer than a millisecond; round it", v)
	}
	return ""
}

// duration judges an optional duration.
func (c cursor) duration(field string, d *durationpb.Duration) {
	if d != nil {
		c.at(field).because(whyNotDuration(d))
	}
}

// notNegative judges a number where zero means unset.
func (c cursor) notNegative(field string, n int32) {
	if n < 0 {
		c.at(field).wrong("%d is negative; use 0 or more", n)
	}
}

func (c cursor) percent(field string, n int32) {
	if n < 0 || n > 100 {
		c.at(field).wrong("%d %% is out of range; use 0 to 100", n)
	}
}

// fraction judges a percentage that Envoy keeps in parts of a million.
func (c cursor) fraction(field string, p *networking.Percent) {
	if p == nil {
		return
	}
	if v := p.Value; v < 0 || v > 100 || v > 0 && v < 0.0001 {
		c.at(field).wrong("%v %% is out of range; use 0, or 0.0001 to 100", v)
	}
}

func whyNotIP(s string) string {
	if isIP(s) {
		return ""
	}
	if strings.Contains(s, "/") {
		return fmt.Sprintf("%q is a network; write one IP address", s)
	}
	return fmt.Sprintf("%q is not an IP address; write one such as \"10.0.0.1\" or \"::1\"", s)
}

// whyNotSubnet takes one address or a CIDR block.
func whyNotSubnet(s string) string {
	if strings.Count(s, "/") != 1 {
		if isIP(s) {
			return ""
		}
		return fmt.Sprintf("%q is neither an IP address nor a CIDR block such as \"10.0.0.0/8\"", s)
	}
	if _, err := netip.ParsePrefix(s); err != nil {
		return fmt.Sprintf("%q is not a CIDR block; write an address, a slash and the number of fixed bits, as in \"10.0.0.0/8\"", s)
	}
	return ""
}

// whyNotUnixPath judges what follows "unix://". A name that begins with @ is an
// abstract socket.
func whyNotUnixPath(p string) string {
	switch {
	case p == "":
		return "the unix socket has no path; write unix:///absolute/path"
	case strings.HasPrefix(p, "@"):
		return ""
	case !path.IsAbs(p) || strings.HasSuffix(p, "/"):
		return fmt.Sprintf("%q is not an absolute path of a file; write unix:///absolute/path", p)
	}
	return ""
}

// whyNotRegex holds Istio's bound on length, which stands in for RE2's program size.
func whyNotRegex(re string) string {
	if len(re) > maxRegexLen {
		return fmt.Sprintf("the regular expression has %d characters, at most %d are allowed", len(re), maxRegexLen)
	}
	if _, err := regexp.Compile(re); err != nil {
		return fmt.Sprintf("%q is not a regular expression of RE2: %s (no look-around, no back references)", re, regexFault(err))
	}
	return ""
}

func regexFault(err error) string {
	return strings.TrimPrefix(err.Error(), "error parsing regexp: ")
}

// stringMatch judges how a string is matched; an empty prefix or expression would
// match everything and is refused.
func (c cursor) stringMatch(m *networking.StringMatch) {
	if p, ok := m.GetMatchType().(*networking.StringMatch_Prefix); ok && p.Prefix == "" {
		c.at("prefix").wrong("an empty prefix matches everything; remove the match or write a prefix")
		return
	}
	c.regexMatch(m)
}

// regexMatch judges only the expression, for places where an empty prefix has a meaning.
func (c cursor) regexMatch(m *networking.StringMatch) {
	r, ok := m.GetMatchType().(*networking.StringMatch_Regex)
	if !ok {
		return
	}
	if r.Regex == "" {
		c.at("regex").wrong("the regular expression is empty; remove the match or write an expression")
		return
	}
	c.at("regex").because(whyNotRegex(r.Regex))
}

// labels judges a map of labels as Kubernetes would.
func (c cursor) labels(field string, m map[string]string) {
	for _, k := range sorted(m) {
		at := c.entry(field, k)
		at.because(whyNotLabelKey(k))
		if v := m[k]; v != "" && !isWord(v, "-_.") {
			at.wrong("the label value %q may hold only letters, digits and inner \"-\", \"_\" and \".\"", v)
		}
	}
}

func whyNotLabelKey(key string) string {
	prefix, name, prefixed := strings.Cut(key, "/")
	if !prefixed {
		prefix, name = "", key
	}
	if prefixed {
		for part := range strings.SplitSeq(prefix, ".") {
			if !isWord(part, "-") {
				return fmt.Sprintf("the label key %q has no DNS name before its slash", key)
			}
		}
		if len(prefix) > 253 {
			return fmt.Sprintf("the part of the label key before the slash has %d characters, at most 253 are allowed", len(prefix))
		}
	}
	if !isWord(name, "-_.") {
		return fmt.Sprintf("the label key %q may hold only letters, digits and inner \"-\", \"_\" and \".\"", key)
	}
	if len(name) > maxLabelLen {
		return fmt.Sprintf("the label key %q is longer than %d characters", key, maxLabelLen)
	}
	return ""
}

func (c cursor) portName(name string) {
	if !isDNSLabel(name) {
		c.wrong("%q is not a port name; use letters, digits and inner hyphens, at most 63, as in \"http-web\"", name)
	}
}

// subsetName judges the name of a subset where one must be.
func (c cursor) subsetName(name string) {
	switch {
	case name == "":
		c.wrong("the subset has no name")
	case !isDNSLabel(name):
		c.wrong("%q is not a subset name; use letters, digits and inner hyphens, at most 63", name)
	}
}
