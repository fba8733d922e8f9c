package envoy

import (
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	commonfaultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/fault/v3"
	filterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

const (
	faultFilter = "envoy.filters.http.fault"
	corsFilter  = "envoy.filters.http.cors"
	// alpnFilter has the name of Istio's filter for the same task.
	alpnFilter = "istio.alpn"
)

// httpALPN is what requests to ports without a declared protocol offer. As in Istio, a server
// takes it for HTTP of any version, and looks at the first bytes. It does not have the names
// that servers select (h2, http/1.1), because the version of a request is not known here.
const httpALPN = "istio-http/1.1,istio-h2"

// makeHTTPALPN offers httpALPN instead of what the cluster offers. Envoy keeps connections with
// different offers apart. Mirrored requests do not get it.
func makeHTTPALPN() *anypb.Any {
	return pack(&setfilterstatev3.Config{OnRequestHeaders: []*filterstatev3.FilterStateValue{{
		Key: &filterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
		Value: &filterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: httpALPN},
			}},
		}},
	}}})
}

// perDestination is the filter configuration of one destination; or nil.
func perDestination(d view.RouteDestination) map[string]*anypb.Any {
	if !d.AnnounceHTTP {
		return nil
	}
	return map[string]*anypb.Any{alpnFilter: offerHTTP()}
}

// perRoute sets the filter configuration of one route.
func perRoute(out *routev3.Route, rule *networking.HTTPRoute) {
	set := func(filter string, config proto.Message) {
		if out.GetTypedPerFilterConfig() == nil {
			out.TypedPerFilterConfig = map[string]*anypb.Any{}
		}
		out.TypedPerFilterConfig[filter] = pack(config)
	}
	if f := fault(rule.GetFault()); f != nil {
		set(faultFilter, f)
	}
	if c := rule.GetCorsPolicy(); c != nil {
		set(corsFilter, cors(c))
	}
}

func fault(in *networking.HTTPFaultInjection) *faultv3.HTTPFault {
	if in == nil {
		return nil
	}
	out := &faultv3.HTTPFault{}
	if d := in.GetDelay(); d.GetFixedDelay() != nil {
		out.Delay = &commonfaultv3.FaultDelay{
			FaultDelaySecifier: &commonfaultv3.FaultDelay_FixedDelay{FixedDelay: d.GetFixedDelay()},
			Percentage: &typev3.FractionalPercent{
				Numerator: uint32(max(d.GetPercent(), 0)), //nolint:staticcheck // deprecated, and in use
			},
		}
		if d.GetPercentage() != nil {
			out.Delay.Percentage = percentage(d.GetPercentage())
		}
	}
	if a := in.GetAbort(); a != nil {
		abort := &faultv3.FaultAbort{}
		if a.GetPercentage() != nil {
			abort.Percentage = percentage(a.GetPercentage())
		}
		switch e := a.GetErrorType().(type) {
		case *networking.HTTPFaultInjection_Abort_HttpStatus:
			abort.ErrorType = &faultv3.FaultAbort_HttpStatus{HttpStatus: uint32(max(e.HttpStatus, 0))}
			out.Abort = abort
		case *networking.HTTPFaultInjection_Abort_GrpcStatus:
			abort.ErrorType = &faultv3.FaultAbort_GrpcStatus{GrpcStatus: grpcCode(e.GrpcStatus)}
			out.Abort = abort
		}
	}
	if out.GetDelay() == nil && out.GetAbort() == nil {
		return nil
	}
	return out
}

func percentage(p *networking.Percent) *typev3.FractionalPercent {
	return fraction(uint32(max(p.GetValue(), 0) * 10_000))
}

// grpcCode parses the name of a gRPC status, such as UNAVAILABLE. Validation rejects other
// names.
func grpcCode(name string) uint32 {
	var c codes.Code
	if err := c.UnmarshalJSON([]byte(strconv.Quote(strings.ToUpper(name)))); err != nil {
		return uint32(codes.Unknown)
	}
	return uint32(c)
}

func cors(in *networking.CorsPolicy) *corsv3.CorsPolicy {
	out := &corsv3.CorsPolicy{
		ForwardNotMatchingPreflights: wrapperspb.Bool(in.GetUnmatchedPreflights() != networking.CorsPolicy_IGNORE),
		FilterEnabled: &corev3.RuntimeFractionalPercent{DefaultValue: &typev3.FractionalPercent{
			Numerator: 100, Denominator: typev3.FractionalPercent_HUNDRED,
		}},
		AllowCredentials: in.GetAllowCredentials(),
		AllowHeaders:     strings.Join(in.GetAllowHeaders(), ","),
		AllowMethods:     strings.Join(in.GetAllowMethods(), ","),
		ExposeHeaders:    strings.Join(in.GetExposeHeaders(), ","),
	}
	if in.GetMaxAge() != nil {
		out.MaxAge = strconv.FormatInt(in.GetMaxAge().GetSeconds(), 10)
	}
	for _, o := range in.GetAllowOrigins() {
		if m := stringMatch(o); m != nil {
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch, m)
		}
	}
	if in.GetAllowOrigins() == nil {
		for _, o := range in.GetAllowOrigin() { //nolint:staticcheck // deprecated, and in use
			out.AllowOriginStringMatch = append(out.AllowOriginStringMatch,
				&matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: o}})
		}
	}
	return out
}
