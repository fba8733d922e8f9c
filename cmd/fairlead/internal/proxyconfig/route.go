package proxyconfig

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// routeRows has one row for each destination of each route.
func routeRows(e *Entry, t *routev3.RouteConfiguration) (rows [][]string) {
	for _, h := range t.GetVirtualHosts() {
		host := strings.TrimPrefix(h.GetName(), t.GetName()+separator)
		for _, r := range h.GetRoutes() {
			config := cmp.Or(configOf(r.GetMetadata()), configOf(h.GetMetadata()))
			for _, d := range routeDestinations(r) {
				rows = append(rows, []string{t.GetName(), host, domains(h), routeMatch(r.GetMatch()), d.where, d.weight, timeout(r), config})
			}
		}
		if len(h.GetRoutes()) == 0 {
			rows = append(rows, []string{t.GetName(), host, domains(h), "/*", "404", "", "", configOf(h.GetMetadata())})
		}
	}
	return rows
}

// virtualHostRows has one row for each virtual host that travels by itself.
func virtualHostRows(e *Entry, h *routev3.VirtualHost) [][]string {
	return [][]string{{e.Name, domains(h), strconv.Itoa(len(h.GetRoutes())), from(e)}}
}

func domains(h *routev3.VirtualHost) string { return strings.Join(h.GetDomains(), ",") }

// destination is one of a route, with its weight among several.
type destination struct{ where, weight string }

func routeDestinations(r *routev3.Route) []destination {
	switch a := r.GetAction().(type) {
	case *routev3.Route_Route:
		clusters := a.Route.GetWeightedClusters().GetClusters()
		if len(clusters) == 0 {
			where := a.Route.GetCluster()
			if h := a.Route.GetClusterHeader(); h != "" {
				where = "the cluster in the header " + h
			}
			return []destination{{where, ""}}
		}
		var list []destination
		for _, c := range clusters {
			list = append(list, destination{c.GetName(), strconv.FormatUint(uint64(c.GetWeight().GetValue()), 10)})
		}
		return list
	case *routev3.Route_Redirect:
		to := a.Redirect
		where := cmp.Or(to.GetHostRedirect(), "the same host") + cmp.Or(to.GetPathRedirect(), to.GetPrefixRewrite())
		if s := to.GetSchemeRedirect(); s != "" {
			where = s + "://" + where
		}
		return []destination{{"redirect " + to.GetResponseCode().String() + " to " + where, ""}}
	case *routev3.Route_DirectResponse:
		return []destination{{"respond " + strconv.FormatUint(uint64(a.DirectResponse.GetStatus()), 10), ""}}
	default:
		return []destination{{"", ""}}
	}
}

// timeout is the time that a route gives to a request.
func timeout(r *routev3.Route) string {
	action := r.GetRoute()
	if action == nil {
		return ""
	}
	const byDefault = 15 * time.Second // of Envoy
	d := byDefault
	if action.GetTimeout() != nil {
		d = action.GetTimeout().AsDuration()
	}
	if d == 0 {
		return "none"
	}
	return d.String()
}

// routeMatch says which requests a route takes.
func routeMatch(m *routev3.RouteMatch) string {
	var out []string
	switch path := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		out = append(out, path.Prefix+"*")
	case *routev3.RouteMatch_PathSeparatedPrefix:
		out = append(out, "PathPrefix:"+path.PathSeparatedPrefix)
	case *routev3.RouteMatch_Path:
		out = append(out, path.Path)
	case *routev3.RouteMatch_SafeRegex:
		out = append(out, "regex "+path.SafeRegex.GetRegex())
	case *routev3.RouteMatch_ConnectMatcher_:
		out = append(out, "CONNECT")
	}
	for _, h := range m.GetHeaders() {
		out = append(out, headerMatch(h))
	}
	for _, q := range m.GetQueryParameters() {
		what := "query " + q.GetName()
		if q.GetStringMatch() != nil {
			what += " " + stringMatch(q.GetStringMatch())
		}
		out = append(out, what)
	}
	if f := m.GetRuntimeFraction(); f != nil {
		out = append(out, fmt.Sprintf("%d per %s", f.GetDefaultValue().GetNumerator(), strings.ToLower(f.GetDefaultValue().GetDenominator().String())))
	}
	return strings.Join(out, " ")
}

func headerMatch(h *routev3.HeaderMatcher) string {
	what := "header " + h.GetName()
	if h.GetInvertMatch() {
		what = "not " + what
	}
	switch {
	case h.GetStringMatch() != nil:
		return what + " " + stringMatch(h.GetStringMatch())
	case h.GetRangeMatch() != nil:
		return fmt.Sprintf("%s from %d to %d", what, h.GetRangeMatch().GetStart(), h.GetRangeMatch().GetEnd())
	default:
		return what
	}
}

func stringMatch(s *matcherv3.StringMatcher) string {
	switch p := s.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return "= " + p.Exact
	case *matcherv3.StringMatcher_Prefix:
		return "= " + p.Prefix + "*"
	case *matcherv3.StringMatcher_Suffix:
		return "= *" + p.Suffix
	case *matcherv3.StringMatcher_Contains:
		return "= *" + p.Contains + "*"
	case *matcherv3.StringMatcher_SafeRegex:
		return "~ " + p.SafeRegex.GetRegex()
	default:
		return ""
	}
}
