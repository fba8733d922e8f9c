package intentions

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"
	security "istio.io/api/security/v1beta1"
)

// maxRules bounds the rules for one source: permissions that exclude one another multiply.
const maxRules = 128

// literal is one thing that a request has to be, or must not be.
type literal struct {
	// field is "path", "method", or the name of a header in "header:NAME".
	field string
	// values are patterns of AuthorizationPolicies; one is enough.
	values []string
	not    bool
}

func (l literal) negated() literal {
	l.not = !l.not
	return l
}

// match is what a request has to be, all of it; none means any request.
type match []literal

// allowed are the requests that an intention allows. Permissions count in their order; requests
// that none matches get Consul's default.
func (c *converter) allowed(e *api.ServiceIntentionsConfigEntry, s *api.SourceIntention) []match {
	if e.JWT != nil {
		c.note(e, s.Name, "JWT has no counterpart here: it allows nothing; write a RequestAuthentication and a rule with requestPrincipals")
		return nil
	}
	if len(s.Permissions) == 0 {
		if s.Action == api.IntentionActionAllow {
			return []match{{}}
		}
		return nil
	}
	var out []match
	rest := []match{{}} // what no permission has matched yet
	for i, p := range s.Permissions {
		allows := p.Action == api.IntentionActionAllow
		all, exactly := c.literals(e, s, i, p)
		if allows && exactly {
			for _, r := range rest {
				out = append(out, slices.Concat(r, all))
			}
		}
		// What is matched, and perhaps more, gets nothing from the permissions behind it.
		var next []match
		for _, l := range all {
			for _, r := range rest {
				next = append(next, append(slices.Clone(r), l.negated()))
			}
		}
		if rest = next; len(rest)+len(out) > maxRules {
			c.note(e, s.Name, "the permissions from number %d on take more than %d rules: they allow nothing", i, maxRules)
			return out
		}
	}
	if c.defaultAllow {
		out = append(out, rest...)
	}
	return out
}

// literals are what a permission asks for. exactly is false where something has no counterpart:
// then it is left out, so that more requests are matched, and the permission may only deny.
func (c *converter) literals(e *api.ServiceIntentionsConfigEntry, s *api.SourceIntention, i int, p *api.IntentionPermission) (all match, exactly bool) {
	exactly = true
	add := func(field string, values []string, not bool) { all = append(all, literal{field, values, not}) }
	lost := func(what string) {
		exactly = false
		effect := "it denies more than in Consul"
		if p.Action == api.IntentionActionAllow {
			effect = "it allows nothing"
		}
		c.note(e, s.Name, "permission %d: %s has no counterpart: %s", i, what, effect)
	}
	if p.JWT != nil {
		lost("JWT")
	}
	h := p.HTTP
	if h == nil || h.PathExact == "" && h.PathPrefix == "" && h.PathRegex == "" && len(h.Methods) == 0 && len(h.Header) == 0 {
		lost("a permission without conditions") // Consul takes none; a rule without conditions would be for TCP, too
		return all, exactly
	}
	if h.PathExact != "" && h.PathPrefix != "" {
		lost("a permission with several paths")
		return all, exactly
	}
	for _, one := range []struct{ name, text, pattern string }{{"PathExact", h.PathExact, h.PathExact}, {"PathPrefix", h.PathPrefix, h.PathPrefix + "*"}} {
		switch {
		case one.text == "":
		case !plain(one.text) || one.name == "PathPrefix" && strings.Contains(one.text, "{*"):
			lost(fmt.Sprintf("%s %q, which would be a pattern,", one.name, one.text))
		default:
			add("path", []string{one.pattern}, false)
		}
	}
	if h.PathRegex != "" {
		lost("PathRegex")
	}
	if len(h.Methods) > 0 {
		if slices.ContainsFunc(h.Methods, func(m string) bool { return !plain(m) }) {
			lost("a method with a star")
		} else {
			add("method", h.Methods, false)
		}
	}
	for _, header := range h.Header {
		values, why := headerValues(header)
		switch {
		case why != "":
			lost(why)
		case header.Present && header.Invert:
			add("header:"+header.Name, []string{wildcard}, true)
		case header.Invert: // Envoy does not match a header that is not there
			add("header:"+header.Name, []string{wildcard}, false)
			add("header:"+header.Name, values, true)
		default:
			add("header:"+header.Name, values, false)
		}
	}
	return all, exactly
}

// plain reports whether a text means itself in a policy: a star at an end and braces are
// patterns there.
func plain(s string) bool {
	return s != "" && !strings.HasPrefix(s, "*") && !strings.HasSuffix(s, "*") && !strings.Contains(s, "{*}") && !strings.Contains(s, "{**}")
}

// headerName is what the name of a header can be. Names with a colon are no headers of requests.
var headerName = regexp.MustCompile(`^[-A-Za-z0-9!#$%&'*+.^_|~]+$`)

// headerValues are the values that a header may have, or why they cannot be said.
func headerValues(h api.IntentionHTTPHeaderPermission) (values []string, why string) {
	name := "the condition on the header " + h.Name
	switch {
	case !headerName.MatchString(h.Name):
		return nil, fmt.Sprintf("the condition on the header %q", h.Name)
	case h.IgnoreCase && !h.Present:
		return nil, "IgnoreCase in " + name
	case h.Present:
		return []string{wildcard}, ""
	case h.Regex != "" || h.Contains != "":
		return nil, name + " (Regex, Contains)"
	case plain(h.Exact):
		return []string{h.Exact}, ""
	case plain(h.Prefix):
		return []string{h.Prefix + "*"}, ""
	case plain(h.Suffix):
		return []string{"*" + h.Suffix}, ""
	}
	return nil, name
}

// operation is the part of a rule about path and method; nil if there is none.
func (m match) operation() *security.Operation {
	o := &security.Operation{}
	some := false
	for _, l := range m {
		switch {
		case l.field == "path" && l.not:
			o.NotPaths = append(o.NotPaths, l.values...)
		case l.field == "path":
			o.Paths = append(o.Paths, l.values...)
		case l.field == "method" && l.not:
			o.NotMethods = append(o.NotMethods, l.values...)
		case l.field == "method":
			o.Methods = append(o.Methods, l.values...)
		default:
			continue
		}
		some = true
	}
	if !some {
		return nil
	}
	return o
}

// when are the conditions on headers.
func (m match) when() []*security.Condition {
	var out []*security.Condition
	for _, l := range m {
		name, ok := strings.CutPrefix(l.field, "header:")
		if !ok {
			continue
		}
		one := &security.Condition{Key: "request.headers[" + name + "]"}
		if l.not {
			one.NotValues = l.values
		} else {
			one.Values = l.values
		}
		out = append(out, one)
	}
	return out
}
