package webhook

import (
	"net/netip"
	"strconv"
	"strings"

	security "istio.io/api/security/v1beta1"
)

func authorizationPolicy(c cursor, _ Object, p *security.AuthorizationPolicy) {
	c.target(p)
	custom := p.Action == security.AuthorizationPolicy_CUSTOM
	switch {
	case len(p.Rules) > 0:
	case custom:
		c.at("rules").wrong("action CUSTOM without rules never asks the provider; write rules (one empty rule {} means every request)")
	case p.Action == security.AuthorizationPolicy_DENY:
		c.at("rules").wrong("action DENY without rules denies nothing; write rules (one empty rule {} means every request)")
	}
	switch {
	case !custom && p.GetProvider() != nil:
		c.at("provider").wrong("a provider decides only with action CUSTOM, not with %s; remove it, or change the action", p.Action)
	case custom && len(p.Rules) > 0 && p.GetProvider().GetName() == "":
		c.at("provider").wrong("action CUSTOM needs a provider; write provider.name as in the mesh's extensionProviders")
	}
	for i, r := range p.Rules {
		at := c.item("rules", i)
		if r == nil {
			at.wrong("the rule is null; write {} for every request")
			continue
		}
		at.rule(r, p.Action)
	}
}

func (c cursor) rule(r *security.Rule, action security.AuthorizationPolicy_Action) {
	custom := action == security.AuthorizationPolicy_CUSTOM
	fromL4, toL4 := false, false
	for i, f := range r.From {
		at := c.item("from", i)
		if f.GetSource() == nil {
			at.wrong("there is no source; write source")
			continue
		}
		at = at.at("source")
		at.source(f.Source)
		if custom {
			at.notCustom(f.Source)
		}
		fromL4 = fromL4 || seenInL4(f.Source)
	}
	for i, t := range r.To {
		at := c.item("to", i)
		if t.GetOperation() == nil {
			at.wrong("there is no operation; write operation")
			continue
		}
		at.at("operation").operation(t.Operation)
		toL4 = toL4 || len(t.Operation.Ports)+len(t.Operation.NotPorts) > 0
	}
	for i, w := range r.When {
		c.item("when", i).condition(w, custom)
	}
	httpOnly := len(r.To) > 0 && !toL4 || len(r.From) > 0 && len(r.To) == 0 && !fromL4
	if httpOnly && action == security.AuthorizationPolicy_DENY {
		c.warn("the rule speaks of HTTP alone, so on TCP ports it denies everything; name the ports it is for in operation.ports")
	}
}

// seenInL4 tells whether a plain connection shows what the source asks for.
func seenInL4(s *security.Source) bool {
	return len(s.Principals)+len(s.NotPrincipals)+len(s.IpBlocks)+len(s.NotIpBlocks)+len(s.Namespaces)+len(s.NotNamespaces)+
		len(s.RemoteIpBlocks)+len(s.NotRemoteIpBlocks)+len(s.ServiceAccounts)+len(s.NotServiceAccounts) > 0
}

// listCheck is how the values of one list are judged.
type listCheck struct {
	name   string
	values []string
	check  func(c cursor, value string)
	// peer is true for what is known of the peer's certificate or token, which an
	// external provider is not asked about.
	peer bool
}

func sourceLists(s *security.Source) []listCheck {
	return []listCheck{
		{"principals", s.Principals, cursor.notEmpty, true},
		{"notPrincipals", s.NotPrincipals, cursor.notEmpty, true},
		{"requestPrincipals", s.RequestPrincipals, cursor.notEmpty, true},
		{"notRequestPrincipals", s.NotRequestPrincipals, cursor.notEmpty, true},
		{"namespaces", s.Namespaces, cursor.notEmpty, true},
		{"notNamespaces", s.NotNamespaces, cursor.notEmpty, true},
		{"serviceAccounts", s.ServiceAccounts, cursor.serviceAccount, true},
		{"notServiceAccounts", s.NotServiceAccounts, cursor.serviceAccount, true},
		{"trustDomains", s.TrustDomains, cursor.trustDomainPattern, true},
		{"notTrustDomains", s.NotTrustDomains, cursor.trustDomainPattern, true},
		{"ipBlocks", s.IpBlocks, cursor.ipBlock, false},
		{"notIpBlocks", s.NotIpBlocks, cursor.ipBlock, false},
		{"remoteIpBlocks", s.RemoteIpBlocks, cursor.ipBlock, false},
		{"notRemoteIpBlocks", s.NotRemoteIpBlocks, cursor.ipBlock, false},
	}
}

// maxServiceAccounts bounds one list of service accounts.
const maxServiceAccounts = 16

func (c cursor) source(s *security.Source) {
	empty := true
	for _, l := range sourceLists(s) {
		empty = empty && len(l.values) == 0
		c.list(l)
	}
	if empty {
		c.wrong("the source is empty; name at least one thing, or remove it")
	}
	c.at("serviceAccounts").atMost(len(s.ServiceAccounts))
	c.at("notServiceAccounts").atMost(len(s.NotServiceAccounts))
	if len(s.ServiceAccounts)+len(s.NotServiceAccounts) > 0 &&
		len(s.Principals)+len(s.NotPrincipals)+len(s.Namespaces)+len(s.NotNamespaces) > 0 {
		c.wrong("serviceAccounts does not go with principals or namespaces; write namespace/account in serviceAccounts")
	}
}

func (c cursor) notCustom(s *security.Source) {
	for _, l := range sourceLists(s) {
		if l.peer && len(l.values) > 0 {
			c.at(l.name).wrong("%s is not supported with action CUSTOM; select by address, path, method or host", l.name)
		}
	}
}

func (c cursor) list(l listCheck) {
	for i, v := range l.values {
		l.check(c.item(l.name, i), v)
	}
}

func (c cursor) notEmpty(v string) {
	if v == "" {
		c.wrong("the value is empty; remove it")
	}
}

// wildcard allows one star, in front or at the end.
func (c cursor) wildcard(v string) {
	c.notEmpty(v)
	n := strings.Count(v, "*")
	if n > 1 || n == 1 && !strings.HasPrefix(v, "*") && !strings.HasSuffix(v, "*") {
		c.wrong("%q may hold one \"*\", in front or at the end", v)
	}
}

func (c cursor) trustDomainPattern(v string) {
	c.wildcard(v)
	if strings.Contains(v, "/") {
		c.wrong("%q is not a trust domain: it holds a slash; write the domain alone, such as \"cluster.local\"", v)
	}
}

// atMost bounds a list of service accounts.
func (c cursor) atMost(n int) {
	if n > maxServiceAccounts {
		c.wrong("the list has %d values, at most %d are allowed; split the rule", n, maxServiceAccounts)
	}
}

const maxServiceAccountLen = 320

func (c cursor) serviceAccount(v string) {
	ns, name, slashed := strings.Cut(v, "/")
	switch {
	case v == "":
		c.wrong("the value is empty; remove it")
	case strings.Contains(v, "*"):
		c.wrong("%q holds a wildcard, which serviceAccounts cannot; use principals", v)
	case slashed && (ns == "" || name == "" || strings.Contains(name, "/")):
		c.wrong("%q is not a service account; write account or namespace/account", v)
	case len(v) > maxServiceAccountLen:
		c.wrong("the value has %d characters, at most %d are allowed", len(v), maxServiceAccountLen)
	}
}

func (c cursor) ipBlock(v string) {
	_, prefixErr := netip.ParsePrefix(v)
	if !isIP(v) && prefixErr != nil {
		c.wrong("%q is neither an IP address nor a CIDR block such as \"10.0.0.0/8\"; names and wildcards are not allowed", v)
	}
}

func (c cursor) rulePort(v string) {
	if n, err := strconv.ParseUint(v, 10, 32); err != nil || n > maxPort {
		c.wrong("%q is not a port number; use 0 to 65535 (names and wildcards are not allowed)", v)
	}
}

func (c cursor) operation(o *security.Operation) {
	empty := true
	for _, l := range []listCheck{
		{"hosts", o.Hosts, cursor.notEmpty, false},
		{"notHosts", o.NotHosts, cursor.notEmpty, false},
		{"ports", o.Ports, cursor.rulePort, false},
		{"notPorts", o.NotPorts, cursor.rulePort, false},
		{"methods", o.Methods, cursor.notEmpty, false},
		{"notMethods", o.NotMethods, cursor.notEmpty, false},
		{"paths", o.Paths, cursor.pathPattern, false},
		{"notPaths", o.NotPaths, cursor.pathPattern, false},
	} {
		empty = empty && len(l.values) == 0
		c.list(l)
	}
	if empty {
		c.wrong("the operation is empty; name at least one thing, or remove it")
	}
}

const (
	oneSegment  = "{*}"
	anySegments = "{**}"
	// segmentExtra are the bytes that RFC 3986 allows in a segment besides letters and digits.
	segmentExtra = "-._~%!$&'()+,;:@="
)

// pathPattern judges a path, which may be a template of segments.
func (c cursor) pathPattern(p string) {
	c.notEmpty(p)
	template := strings.Contains(p, oneSegment) || strings.Contains(p, anySegments)
	ended := false
	for segment := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		switch {
		case segment == oneSegment || segment == anySegments:
			if ended {
				c.wrong("%q: nothing but plain segments may follow {**}; put it last", p)
				return
			}
			ended = segment == anySegments
		case strings.ContainsAny(segment, "{}"):
			c.wrong("%q: in the segment %q braces are allowed only as {*} (one segment) or {**} (any rest)", p, segment)
			return
		case template && !madeOf(segment, segmentExtra):
			c.wrong("%q: the segment %q of a template must be plain text, without wildcards", p, segment)
			return
		}
	}
}

// attributes are the keys of conditions and how their values are judged. A key
// that ends in "[" is followed by a name and "]".
//
//nolint:gochecknoglobals // a read-only table
var attributes = []struct {
	key   string
	check func(c cursor, value string)
}{
	{"request.headers[", cursor.notEmpty},
	{"source.ip", cursor.ipBlock},
	{"remote.ip", cursor.ipBlock},
	{"source.namespace", cursor.notEmpty},
	{"source.serviceAccount", cursor.serviceAccount},
	{"source.principal", cursor.notEmpty},
	{"source.trustDomain", cursor.wildcard},
	{"request.auth.principal", cursor.notEmpty},
	{"request.auth.audiences", cursor.notEmpty},
	{"request.auth.presenter", cursor.notEmpty},
	{"request.auth.claims[", cursor.notEmpty},
	{"destination.ip", cursor.ipBlock},
	{"destination.port", cursor.rulePort},
	{"connection.sni", cursor.notEmpty},
	{"experimental.envoy.filters.", cursor.notEmpty},
}

func (c cursor) condition(w *security.Condition, custom bool) {
	key := w.GetKey()
	at := c.at("key")
	if key == "" {
		at.wrong("the condition has no key")
		return
	}
	if len(w.Values)+len(w.NotValues) == 0 {
		c.wrong("the condition has no values; write values or notValues")
	}
	if custom && (strings.HasPrefix(key, "request.auth.") || key == "source.namespace" || key == "source.serviceAccount" ||
		key == "source.principal" || key == "source.trustDomain") {
		at.wrong("%s is not supported with action CUSTOM; select by address, path, method or host", key)
	}
	switch {
	case key == "destination.namespace":
		at.wrong("destination.namespace is always the policy's own; remove the condition")
		return
	case strings.HasPrefix(key, "destination.labels"):
		at.wrong("destination.labels is chosen by the policy's selector; move the labels there")
		return
	case key == "destination.name", key == "destination.user":
		at.wrong("%s is an attribute of an older API; use the policy's selector", key)
		return
	}
	check, why := attributeCheck(key)
	if check == nil {
		at.wrong("%s", why)
		return
	}
	c.list(listCheck{name: "values", values: w.Values, check: check})
	c.list(listCheck{name: "notValues", values: w.NotValues, check: check})
	if key == "source.serviceAccount" {
		c.at("values").atMost(len(w.Values))
		c.at("notValues").atMost(len(w.NotValues))
	}
}

// attributeCheck finds how the values of key are judged, or says why key is none.
func attributeCheck(key string) (check func(cursor, string), why string) {
	known := make([]string, 0, len(attributes))
	for _, a := range attributes {
		name := strings.TrimRight(a.key, "[.")
		known = append(known, name)
		open := a.key != name
		switch {
		case !open && key == a.key:
			return a.check, ""
		case open && strings.HasPrefix(key, strings.TrimSuffix(a.key, "[")):
			if i := strings.Index(key, "["); i < 1 || !strings.HasSuffix(key, "]") || i >= len(key)-2 {
				return nil, "\"" + key + "\" needs a name in brackets, as in \"" + name + "[name]\""
			}
			return a.check, ""
		}
	}
	return nil, "unknown attribute \"" + key + "\"" + near(key, known...) + "; use one of " + strings.Join(known, ", ")
}
