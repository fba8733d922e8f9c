package envoy

import (
	"slices"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

// forward sends requests to clusters, with the changes of the route.
func forward(out *routev3.Route, p *view.Route, authority string) {
	action := &routev3.RouteAction{
		Timeout:        noTimeout(),
		MaxGrpcTimeout: noTimeout(), //nolint:staticcheck // its successor cannot express it

		AppendXForwardedHost: p.ForwardedHost,
	}
	if t := p.Rule.GetTimeout(); t.AsDuration() != 0 {
		action.Timeout = t
		action.MaxGrpcTimeout = t //nolint:staticcheck // its successor cannot express it
	}
	out.Action = &routev3.Route_Route{Route: action}
	if rw := p.Rule.GetRewrite(); rw != nil {
		if re := rw.GetUriRegexRewrite(); re != nil {
			action.RegexRewrite = &matcherv3.RegexMatchAndSubstitute{
				Pattern:      &matcherv3.RegexMatcher{Regex: re.GetMatch()},
				Substitution: re.GetRewrite(),
			}
		} else {
			action.PrefixRewrite = rw.GetUri()
		}
		if rw.GetAuthority() != "" {
			authority = rw.GetAuthority()
		}
	}
	if authority != "" {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: authority}
	}
	for _, m := range p.Mirrors {
		action.RequestMirrorPolicies = append(action.RequestMirrorPolicies, mirror(m))
	}
	hashed := false
	if len(p.Destinations) == 1 {
		hashed = p.Destinations[0].Hash != nil
		toCluster(out, action, p.Destinations[0])
	} else {
		toWeightedClusters(action, p.Destinations)
	}
	action.RetryPolicy = retryPolicy(p.Retry, hashed)
}

func toCluster(out *routev3.Route, action *routev3.RouteAction, d view.RouteDestination) {
	action.ClusterSpecifier = &routev3.RouteAction_Cluster{Cluster: nameOf(d.Cluster)}
	action.HashPolicy = hashPolicy(d.Hash)
	out.TypedPerFilterConfig = perDestination(d)
	ops := headerOps(d.Headers)
	out.RequestHeadersToAdd = slices.Concat(out.GetRequestHeadersToAdd(), ops.requestAdd)
	out.RequestHeadersToRemove = slices.Concat(out.GetRequestHeadersToRemove(), ops.requestRemove)
	out.ResponseHeadersToAdd = slices.Concat(out.GetResponseHeadersToAdd(), ops.responseAdd)
	out.ResponseHeadersToRemove = slices.Concat(out.GetResponseHeadersToRemove(), ops.responseRemove)
	if ops.authority != "" && action.GetHostRewriteSpecifier() == nil {
		action.HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: ops.authority}
	}
}

func toWeightedClusters(action *routev3.RouteAction, list []view.RouteDestination) {
	out := &routev3.WeightedCluster{}
	for _, d := range list {
		if d.Weight == 0 {
			continue
		}
		ops := headerOps(d.Headers)
		c := &routev3.WeightedCluster_ClusterWeight{
			Name:                    nameOf(d.Cluster),
			Weight:                  wrapperspb.UInt32(d.Weight),
			RequestHeadersToAdd:     ops.requestAdd,
			RequestHeadersToRemove:  ops.requestRemove,
			ResponseHeadersToAdd:    ops.responseAdd,
			ResponseHeadersToRemove: ops.responseRemove,
			TypedPerFilterConfig:    perDestination(d),
		}
		if ops.authority != "" {
			c.HostRewriteSpecifier = &routev3.WeightedCluster_ClusterWeight_HostRewriteLiteral{HostRewriteLiteral: ops.authority}
		}
		out.Clusters = append(out.Clusters, c)
		action.HashPolicy = append(action.HashPolicy, hashPolicy(d.Hash)...)
	}
	action.ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: out}
}

func mirror(m view.Mirror) *routev3.RouteAction_RequestMirrorPolicy {
	return &routev3.RouteAction_RequestMirrorPolicy{
		Cluster:                       nameOf(m.Cluster),
		RuntimeFraction:               &corev3.RuntimeFractionalPercent{DefaultValue: fraction(m.Millionths)},
		TraceSampled:                  wrapperspb.Bool(false),
		DisableShadowHostSuffixAppend: true,
	}
}

func fraction(millionths uint32) *typev3.FractionalPercent {
	return &typev3.FractionalPercent{Numerator: millionths, Denominator: typev3.FractionalPercent_MILLION}
}

func redirect(in *networking.HTTPRedirect, port uint32, tls bool) *routev3.Route_Redirect {
	out := &routev3.RedirectAction{HostRedirect: in.GetAuthority()}
	if in.GetPrefixRewrite() != "" {
		out.PathRewriteSpecifier = &routev3.RedirectAction_PrefixRewrite{PrefixRewrite: in.GetPrefixRewrite()}
	} else {
		out.PathRewriteSpecifier = &routev3.RedirectAction_PathRedirect{PathRedirect: in.GetUri()}
	}
	scheme := in.GetScheme()
	if scheme != "" {
		out.SchemeRewriteSpecifier = &routev3.RedirectAction_SchemeRedirect{SchemeRedirect: scheme}
	}
	switch rp := in.GetRedirectPort().(type) {
	case *networking.HTTPRedirect_DerivePort:
		if rp.DerivePort == networking.HTTPRedirect_FROM_REQUEST_PORT {
			out.PortRedirect = port
		}
	case *networking.HTTPRedirect_Port:
		out.PortRedirect = rp.Port
	}
	if scheme == "" && tls {
		scheme = "https"
	}
	// The default port of the scheme is left out.
	if (out.GetPortRedirect() == 80 && scheme != "https") || (out.GetPortRedirect() == 443 && scheme == "https") {
		out.PortRedirect = 0
	}
	switch in.GetRedirectCode() {
	case 302:
		out.ResponseCode = routev3.RedirectAction_FOUND
	case 303:
		out.ResponseCode = routev3.RedirectAction_SEE_OTHER
	case 307:
		out.ResponseCode = routev3.RedirectAction_TEMPORARY_REDIRECT
	case 308:
		out.ResponseCode = routev3.RedirectAction_PERMANENT_REDIRECT
	default:
		out.ResponseCode = routev3.RedirectAction_MOVED_PERMANENTLY
	}
	return &routev3.Route_Redirect{Redirect: out}
}

func directResponse(in *networking.HTTPDirectResponse) *routev3.Route_DirectResponse {
	out := &routev3.DirectResponseAction{Status: in.GetStatus()}
	switch b := in.GetBody().GetSpecifier().(type) {
	case *networking.HTTPBody_String_:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: b.String_}}
	case *networking.HTTPBody_Bytes:
		out.Body = &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b.Bytes}}
	}
	return &routev3.Route_DirectResponse{DirectResponse: out}
}

func hashPolicy(h *networking.LoadBalancerSettings_ConsistentHashLB) []*routev3.RouteAction_HashPolicy {
	out := &routev3.RouteAction_HashPolicy{}
	switch k := h.GetHashKey().(type) {
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{
			Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: k.HttpHeaderName},
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		c := &routev3.RouteAction_HashPolicy_Cookie{
			Name: k.HttpCookie.GetName(), Ttl: k.HttpCookie.GetTtl(), Path: k.HttpCookie.GetPath(),
		}
		for _, a := range k.HttpCookie.GetAttributes() {
			c.Attributes = append(c.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
		}
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{Cookie: c}
	case *networking.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: k.UseSourceIp},
		}
	case *networking.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		out.PolicySpecifier = &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: k.HttpQueryParameterName},
		}
	default:
		return nil
	}
	return []*routev3.RouteAction_HashPolicy{out}
}
