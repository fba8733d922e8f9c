package webhook

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

func (c cursor) httpRoute(r *networking.HTTPRoute, ctx vsContext) {
	if r == nil {
		c.wrong("the route is empty")
		return
	}
	c.httpAction(r, ctx)
	for i, m := range r.Match {
		if m != nil {
			c.item("match", i).httpMatch(m)
		}
	}
	c.at("headers").headerChanges(r.Headers)
	c.at("corsPolicy").cors(r.CorsPolicy)
	c.at("fault").faultInjection(r.Fault)
	c.mirrors(r)
	c.redirect(r.Redirect, r.Match)
	c.at("directResponse").directResponse(r.DirectResponse)
	c.at("retries").retries(r.Retries)
	c.at("rewrite").rewrite(r.Rewrite)
	c.oneAuthority(r)
	c.httpDestinations(r.Route, ctx)
	c.duration("timeout", r.Timeout)
}

// httpAction wants one thing to be done with a request, and only what goes with it.
func (c cursor) httpAction(r *networking.HTTPRoute, ctx vsContext) {
	if r.Delegate != nil && !ctx.delegate {
		if r.Redirect != nil {
			c.at("redirect").wrong("a route with a delegate leaves the rest to it; move redirect to the delegate")
		}
		if len(r.Route) > 0 {
			c.at("route").wrong("a route with a delegate leaves the rest to it; move route to the delegate")
		}
		return
	}
	if r.Delegate != nil {
		c.at("delegate").wrong("this VirtualService has no hosts, so it is a delegate itself and cannot have one")
	}
	answer := ""
	switch {
	case r.Redirect != nil:
		answer = "redirect"
		if r.DirectResponse != nil {
			c.at("directResponse").wrong("redirect and directResponse exclude one another; keep one of them")
		}
	case r.DirectResponse != nil:
		answer = "directResponse"
	case len(r.Route) == 0:
		c.wrong("the route does nothing; write route, redirect or directResponse")
	}
	if answer != "" {
		c.answered(r, answer)
	}
	if r.Mirror != nil && len(r.Mirrors) > 0 {
		c.at("mirror").wrong("mirror and mirrors exclude one another; move mirror into mirrors")
	}
}

// answered refuses what needs a destination in a route that the proxy answers itself.
func (c cursor) answered(r *networking.HTTPRoute, answer string) {
	const why = "%s cannot stand beside %s, which the proxy answers itself; keep one of them"
	if len(r.Route) > 0 {
		c.at("route").wrong(why, "route", answer)
	}
	if r.Fault != nil {
		c.at("fault").wrong(why, "fault", answer)
	}
	if r.Rewrite != nil {
		c.at("rewrite").wrong(why, "rewrite", answer)
	}
}

func (c cursor) httpMatch(m *networking.HTTPMatchRequest) {
	for _, name := range sorted(m.Headers) {
		at := c.entry("headers", name)
		if m.Headers[name] == nil {
			at.wrong("the match of header %q is empty; write exact, prefix or regex", name)
		}
		at.matchHeader(name)
		at.stringMatch(m.Headers[name])
	}
	for _, name := range sorted(m.WithoutHeaders) {
		at, h := c.entry("withoutHeaders", name), m.WithoutHeaders[name]
		at.matchHeader(name)
		// "*" is no expression here: it stands for the presence of the header.
		if h != nil && h.GetRegex() != "*" {
			at.stringMatch(h)
		}
	}
	c.at("uri").regexMatch(m.Uri)
	c.at("scheme").stringMatch(m.Scheme)
	c.at("method").stringMatch(m.Method)
	c.at("authority").stringMatch(m.Authority)
	for _, name := range sorted(m.QueryParams) {
		c.entry("queryParams", name).stringMatch(m.QueryParams[name])
	}
	if m.Port != 0 {
		c.at("port").because(whyNotPort(m.Port))
	}
	c.labels("sourceLabels", m.SourceLabels)
	c.gatewayNames(m.Gateways, false)
	if m.SourceNamespace != "" && !isDNSLabel(m.SourceNamespace) {
		c.at("sourceNamespace").wrong("%q is not a name of a namespace", m.SourceNamespace)
	}
}

func (c cursor) httpDestinations(list []*networking.HTTPRouteDestination, ctx vsContext) {
	var total int32
	for i, d := range list {
		at := c.item("route", i)
		if d == nil {
			at.wrong("the destination is empty")
			continue
		}
		at.at("headers").headerChanges(d.Headers)
		at.weighted(d.Destination, d.Weight, ctx)
		total += d.Weight
	}
	c.totalWeight(len(list), total)
}

func (c cursor) weighted(d *networking.Destination, weight int32, ctx vsContext) {
	if d == nil {
		c.wrong("there is no destination; write destination.host")
	}
	if !ctx.fromGatewayAPI {
		c.at("destination").destination(d)
	}
	c.notNegative("weight", weight)
}

func (c cursor) totalWeight(n int, total int32) {
	if n > 1 && total == 0 {
		c.at("route").wrong("all weights are 0, so no destination gets traffic; give weights that sum to 100")
	}
}

func (c cursor) destination(d *networking.Destination) {
	if d == nil {
		return
	}
	if d.Host == "*" {
		c.at("host").wrong("\"*\" is not a destination; name the host of one service")
	} else {
		c.at("host").because(whyNotHost(d.Host))
	}
	if d.Subset != "" {
		c.at("subset").subsetName(d.Subset)
	}
	if d.Port != nil {
		c.at("port").at("number").because(whyNotPort(d.Port.GetNumber()))
	}
}

func (c cursor) mirrors(r *networking.HTTPRoute) {
	//nolint:staticcheck // people's files still have the old field
	if p := r.MirrorPercent; p != nil {
		if p.Value > 100 {
			c.at("mirrorPercent").wrong("%d %% is out of range; use 0 to 100", p.Value)
		}
		c.at("mirrorPercent").warn("mirrorPercent is out of date; write mirrorPercentage.value")
	}
	if p := r.MirrorPercentage; p != nil {
		c.at("mirrorPercentage").at("value").share(p.Value)
	}
	c.at("mirror").destination(r.Mirror)
	for i, m := range r.Mirrors {
		at := c.item("mirrors", i)
		if m.GetDestination() == nil {
			at.wrong("the mirror has no destination; write destination.host")
			continue
		}
		at.at("destination").destination(m.Destination)
		if m.Percentage != nil {
			at.at("percentage").at("value").share(m.Percentage.Value)
		}
	}
}

func (c cursor) share(percent float64) {
	if percent < 0 || percent > 100 {
		c.wrong("%v %% is out of range; use 0 to 100", percent)
	}
}

func (c cursor) redirect(r *networking.HTTPRedirect, matches []*networking.HTTPMatchRequest) {
	if r == nil {
		return
	}
	c = c.at("redirect")
	if r.Uri != "" && r.PrefixRewrite != "" {
		c.at("prefixRewrite").wrong("uri and prefixRewrite exclude one another; keep one of them")
	}
	if r.PrefixRewrite != "" && !allPrefixes(matches) {
		c.at("prefixRewrite").wrong("prefixRewrite replaces the matched prefix, so each uri of this route must be matched by prefix")
	}
	if r.Uri == "" && r.PrefixRewrite == "" && r.Authority == "" && r.RedirectPort == nil && r.Scheme == "" {
		c.wrong("the redirect changes nothing; write uri, prefixRewrite, authority, port, derivePort or scheme")
	}
	if r.RedirectCode != 0 && (r.RedirectCode < 300 || r.RedirectCode > 399) {
		c.at("redirectCode").wrong("%d is not a redirect; use 301, 302, 303, 307 or 308", r.RedirectCode)
	}
	if r.Scheme != "" && r.Scheme != "http" && r.Scheme != "https" {
		c.at("scheme").wrong("the scheme %q cannot be redirected to; use \"http\" or \"https\"", r.Scheme)
	}
	if r.GetPort() > 0 {
		c.at("port").because(whyNotPort(r.GetPort()))
	}
}

// allPrefixes tells whether no match of a uri is other than by prefix.
func allPrefixes(matches []*networking.HTTPMatchRequest) bool {
	for _, m := range matches {
		_, prefix := m.GetUri().GetMatchType().(*networking.StringMatch_Prefix)
		if m.GetUri() != nil && !prefix {
			return false
		}
	}
	return true
}

func (c cursor) rewrite(r *networking.HTTPRewrite) {
	if r == nil {
		return
	}
	if r.Uri != "" && r.UriRegexRewrite != nil {
		c.at("uriRegexRewrite").wrong("uri and uriRegexRewrite exclude one another; keep one of them")
	}
	if r.Uri == "" && r.UriRegexRewrite == nil && r.Authority == "" {
		c.wrong("the rewrite changes nothing; write uri, uriRegexRewrite or authority")
	}
	if x := r.UriRegexRewrite; x != nil {
		at := c.at("uriRegexRewrite")
		if x.Match == "" || x.Rewrite == "" {
			at.wrong("uriRegexRewrite needs both match and rewrite")
		}
		if x.Match != "" {
			at.at("match").because(whyNotRegex(x.Match))
		}
	}
}

// oneAuthority refuses a route that changes the authority in two places: which one
// wins would be an accident.
func (c cursor) oneAuthority(r *networking.HTTPRoute) {
	current := r.GetRewrite().GetAuthority()
	for _, op := range []struct {
		name   string
		values map[string]string
	}{{"set", r.GetHeaders().GetRequest().GetSet()}, {"add", r.GetHeaders().GetRequest().GetAdd()}} {
		for _, name := range sorted(op.values) {
			if !isAuthorityHeader(name) {
				continue
			}
			if current != "" {
				c.at("headers").at("request").entry(op.name, name).
					wrong("the authority is changed to %q elsewhere in this route; change it in one place", current)
			}
			current = op.values[name]
		}
	}
}

const (
	maxBody  = 1 << 20
	bigBody  = 100 << 10
	bodyName = "body"
)

func (c cursor) directResponse(d *networking.HTTPDirectResponse) {
	if d == nil {
		return
	}
	size := max(len(d.GetBody().GetString_()), len(d.GetBody().GetBytes()))
	switch {
	case size > maxBody:
		c.at(bodyName).wrong("the body has %d bytes, at most 1 MiB is allowed; serve it from a service", size)
	case size > bigBody:
		c.at(bodyName).warn("the body has %d bytes and goes to every proxy; serve it from a service", size)
	}
	c.at("status").httpStatus(int64(d.Status))
}

func (c cursor) httpStatus(status int64) {
	// Istio lets 600 pass, though its words say 599.
	if status < 200 || status > 600 {
		c.wrong("%d is not a status of an HTTP response; use 200 to 599", status)
	}
}

//nolint:gochecknoglobals // a read-only table
var corsMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"}

func (c cursor) cors(p *networking.CorsPolicy) {
	if p == nil {
		return
	}
	for i, o := range p.AllowOrigins {
		at := c.item("allowOrigins", i)
		if o.GetExact() == "" && o.GetPrefix() == "" && o.GetRegex() == "" {
			at.wrong("the origin is empty; write exact, prefix or regex")
			continue
		}
		at.regexMatch(o)
	}
	for i, m := range p.AllowMethods {
		if !oneOf(m, corsMethods) {
			c.item("allowMethods", i).wrong("%q is not an HTTP method%s; use one of %s",
				m, near(m, corsMethods...), strings.Join(corsMethods, ", "))
		}
	}
	for i, h := range p.AllowHeaders {
		c.item("allowHeaders", i).headerToken(h, headerMarks)
	}
	for i, h := range p.ExposeHeaders {
		c.item("exposeHeaders", i).headerToken(h, headerMarks)
	}
	c.duration("maxAge", p.MaxAge)
	if p.MaxAge.GetNanos() > 0 {
		c.at("maxAge").wrong("browsers count maxAge in whole seconds; round it")
	}
}
