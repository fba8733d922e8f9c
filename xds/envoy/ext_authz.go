package envoy

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	networkextauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/ext_authz/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	httpRBACFilter        = "envoy.filters.http.rbac"
	networkExtAuthzFilter = "envoy.filters.network.ext_authz"
)

// defaultExtAuthzTimeout is how long an answer may take if the provider has no timeout, as in
// Istio.
const defaultExtAuthzTimeout = 600 * time.Second

// httpExtAuthz makes the filter that asks a provider (Istio's
// pilot/pkg/security/authz/builder/extauthz.go). of is the provider whose rules count; empty
// means whoever's rules match.
func httpExtAuthz(p *view.Provider, of string) *httpextauthzv3.ExtAuthz {
	out := &httpextauthzv3.ExtAuthz{
		TransportApiVersion:   corev3.ApiVersion_V3,
		FilterEnabledMetadata: authz.Asked(httpRBACFilter, of),
	}
	if p.GRPC != nil {
		out.Services = &httpextauthzv3.ExtAuthz_GrpcService{GrpcService: extAuthzService(p)}
		out.FailureModeAllow, out.ClearRouteCache = p.GRPC.GetFailOpen(), p.GRPC.GetClearRouteCache()
		out.StatusOnError = statusOnError(p.GRPC.GetStatusOnError())
		out.WithRequestBody = requestBody(p.GRPC.GetIncludeRequestBodyInCheck())
		return out
	}
	out.Services = &httpextauthzv3.ExtAuthz_HttpService{HttpService: &httpextauthzv3.HttpService{
		ServerUri: &corev3.HttpUri{
			Uri:              "http://" + string(p.Host), // Envoy uses the cluster, and only the host of this
			HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: nameOf(p.Cluster)},
			Timeout:          extAuthzTimeout(p.HTTP.GetTimeout()),
		},
		PathPrefix:            p.HTTP.GetPathPrefix(),
		AuthorizationRequest:  additionalHeaders(p.HTTP.GetIncludeAdditionalHeadersInCheck()),
		AuthorizationResponse: authorizationResponse(p),
	}}
	out.FailureModeAllow, out.ClearRouteCache = p.HTTP.GetFailOpen(), p.HTTP.GetClearRouteCache()
	out.StatusOnError = statusOnError(p.HTTP.GetStatusOnError())
	out.WithRequestBody = requestBody(p.HTTP.GetIncludeRequestBodyInCheck())
	out.AllowedHeaders = headerNames(p.HTTP.GetIncludeRequestHeadersInCheck())
	if out.AllowedHeaders == nil {
		out.AllowedHeaders = headerNames(p.HTTP.GetIncludeHeadersInCheck()) //nolint:staticcheck // people's files have it
	}
	return out
}

// networkExtAuthz makes the filter that asks a provider about connections of TCP.
func networkExtAuthz(p *view.Provider) *networkextauthzv3.ExtAuthz {
	return &networkextauthzv3.ExtAuthz{
		StatPrefix:            "tcp.",
		GrpcService:           extAuthzService(p),
		FailureModeAllow:      p.GRPC.GetFailOpen(),
		TransportApiVersion:   corev3.ApiVersion_V3,
		FilterEnabledMetadata: authz.Asked(networkRBACFilter, p.Name),
	}
}

// denyAsked denies the requests about which a provider would be asked.
func denyAsked(of string) *rbacconfigv3.RBAC {
	return &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_DENY, Policies: map[string]*rbacconfigv3.Policy{"invalid-provider": {
		Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_SourcedMetadata{
			SourcedMetadata: &rbacconfigv3.SourcedMetadata{MetadataMatcher: authz.Asked(httpRBACFilter, of)},
		}}},
		Principals: []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}},
	}}}
}

// invalidProvider reports a provider whose settings Envoy would refuse.
func invalidProvider(p *view.Provider, err error) Diagnostic {
	return Diagnostic{
		Key:     mesh.Key{Kind: mesh.KindMeshConfig},
		Message: "extension provider " + p.Name + ": " + err.Error() + "; what it would be asked about is denied",
	}
}

func extAuthzService(p *view.Provider) *corev3.GrpcService {
	return &corev3.GrpcService{
		TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
			ClusterName: nameOf(p.Cluster), Authority: string(p.Host),
		}},
		Timeout: extAuthzTimeout(p.GRPC.GetTimeout()),
	}
}

func extAuthzTimeout(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return durationpb.New(defaultExtAuthzTimeout)
	}
	return d
}

// statusOnError is the status of requests for which there is no answer; nil is Envoy's default,
// 403.
func statusOnError(text string) *typev3.HttpStatus {
	if text == "" {
		return nil
	}
	code, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		code = http.StatusForbidden
	}
	return &typev3.HttpStatus{Code: typev3.StatusCode(code)}
}

func requestBody(b *meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationRequestBody) *httpextauthzv3.BufferSettings {
	if b == nil {
		return nil
	}
	return &httpextauthzv3.BufferSettings{
		MaxRequestBytes: b.GetMaxRequestBytes(), AllowPartialMessage: b.GetAllowPartialMessage(), PackAsBytes: b.GetPackAsBytes(),
	}
}

// additionalHeaders are headers with fixed values: a percent sign begins no command of Envoy's.
func additionalHeaders(headers map[string]string) *httpextauthzv3.AuthorizationRequest {
	if len(headers) == 0 {
		return nil
	}
	out := &httpextauthzv3.AuthorizationRequest{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		out.HeadersToAdd = append(out.HeadersToAdd, &corev3.HeaderValue{Key: name, Value: strings.ReplaceAll(headers[name], "%", "%%")})
	}
	return out
}

func authorizationResponse(p *view.Provider) *httpextauthzv3.AuthorizationResponse {
	upstream, deny, allow := p.HTTP.GetHeadersToUpstreamOnAllow(), p.HTTP.GetHeadersToDownstreamOnDeny(), p.HTTP.GetHeadersToDownstreamOnAllow()
	if len(upstream)+len(deny)+len(allow) == 0 {
		return nil
	}
	return &httpextauthzv3.AuthorizationResponse{
		AllowedUpstreamHeaders: headerNames(upstream), AllowedClientHeaders: headerNames(deny), AllowedClientHeadersOnSuccess: headerNames(allow),
	}
}

// headerNames match names of headers; a star before or after a name stands for any characters.
func headerNames(names []string) *matcherv3.ListStringMatcher {
	if len(names) == 0 {
		return nil
	}
	out := &matcherv3.ListStringMatcher{}
	for _, name := range names {
		m := &matcherv3.StringMatcher{IgnoreCase: true, MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}}
		if after, ok := strings.CutPrefix(name, "*"); ok {
			m.MatchPattern = &matcherv3.StringMatcher_Suffix{Suffix: after}
		} else if before, ok := strings.CutSuffix(name, "*"); ok {
			m.MatchPattern = &matcherv3.StringMatcher_Prefix{Prefix: before}
		}
		out.Patterns = append(out.Patterns, m)
	}
	return out
}
