package envoy

import (
	"regexp"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	// tlsSocket and rawSocket are names for people: Envoy identifies the extension by the
	// type of its configuration.
	tlsSocket = "tls"
	rawSocket = "raw_buffer"
	// sdsCluster is the agent's secret discovery service; every bootstrap has it.
	sdsCluster = "sds-grpc"
	// ownSecret and rootSecret are the names of the proxy's own identity and of the trust
	// bundle.
	ownSecret  = "default"
	rootSecret = "ROOTCA"
)

// serverCiphers are those of Istio's inbound listeners, unless MeshConfig names others.
func serverCiphers() []string {
	return []string{
		"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
		"AES256-GCM-SHA384", "AES128-GCM-SHA256",
	}
}

// secret requests a secret of the agent by name.
func secret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{ApiConfigSource: &corev3.ApiConfigSource{
				ApiType:                   corev3.ApiConfigSource_GRPC,
				SetNodeOnFirstMessageOnly: true,
				TransportApiVersion:       corev3.ApiVersion_V3,
				GrpcServices: []*corev3.GrpcService{{
					TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
						EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{ClusterName: sdsCluster},
					},
				}},
			}},
			InitialFetchTimeout: durationpb.New(0),
			ResourceApiVersion:  corev3.ApiVersion_V3,
		},
	}
}

// commonTLSContext is the common part of a TLS context of the mesh: the proxy's own
// identity, and the accepted ones.
func commonTLSContext(names []*tlsv3.SubjectAltNameMatcher) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams: &tlsv3.TlsParameters{
			TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_2,
			TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		},
		TlsCertificateSdsSecretConfigs: ownIdentity(),
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: names},
				ValidationContextSdsSecretConfig: meshRoots(),
			},
		},
	}
}

// trustDomainMatchers accept every identity of some trust domains that is for traffic.
func trustDomainMatchers(trustDomains []string) []*tlsv3.SubjectAltNameMatcher {
	out := make([]*tlsv3.SubjectAltNameMatcher, 0, len(trustDomains))
	for _, td := range trustDomains {
		out = append(out, &tlsv3.SubjectAltNameMatcher{
			SanType: tlsv3.SubjectAltNameMatcher_URI,
			Matcher: &matcherv3.StringMatcher{
				MatchPattern: &matcherv3.StringMatcher_SafeRegex{
					SafeRegex: &matcherv3.RegexMatcher{Regex: trafficIdentities(td)},
				},
			},
		})
	}
	return out
}

// trafficIdentities is a regular expression for all identities of a trust domain except
// those below [mesh.ReservedPath]. RE2 has no negation, so the expression lists what is
// allowed, character by character. It has only ASCII, as SPIFFE IDs do. That keeps its
// program below the 100 instructions that Envoy accepts by default.
func trafficIdentities(trustDomain string) string {
	reserved := mesh.ReservedPath
	rest := ""
	for i := len(reserved) - 1; i >= 0; i-- {
		next := ""
		if i < len(reserved)-1 {
			next = "|" + regexp.QuoteMeta(reserved[i:i+1]) + rest
		}
		rest = "(?:" + anyBut(reserved[i]) + "[!-~]*" + next + ")?"
	}
	return regexp.QuoteMeta("spiffe://"+trustDomain+"/") + rest
}

// anyBut is a class of the visible ASCII characters except one, which is a letter, a digit
// or a slash.
func anyBut(c byte) string { return "[!-" + string(rune(c-1)) + string(rune(c+1)) + "-~]" }

// peerMatchers accept some names. Without names they accept every identity of some trust
// domains that is for traffic. Identities of hosts are never accepted, even by name.
func peerMatchers(names, trustDomains []string) []*tlsv3.SubjectAltNameMatcher {
	if len(names) == 0 {
		return trustDomainMatchers(trustDomains)
	}
	if welcome := slices.DeleteFunc(slices.Clone(names), mesh.IsReservedIdentity); len(welcome) > 0 {
		return exactMatchers(welcome)
	}
	return exactMatchers([]string{noIdentity})
}

// noIdentity is a name that no certificate has. An empty list of matchers would accept
// everybody.
const noIdentity = "spiffe://nobody.invalid/"

// exactMatchers accept some names. A name that is not a URI may be a DNS name or an IP
// address.
func exactMatchers(names []string) []*tlsv3.SubjectAltNameMatcher {
	out := make([]*tlsv3.SubjectAltNameMatcher, 0, len(names))
	for _, n := range names {
		kinds := []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_DNS, tlsv3.SubjectAltNameMatcher_IP_ADDRESS}
		if strings.Contains(n, "://") {
			kinds = []tlsv3.SubjectAltNameMatcher_SanType{tlsv3.SubjectAltNameMatcher_URI}
		}
		for _, k := range kinds {
			out = append(out, &tlsv3.SubjectAltNameMatcher{
				SanType: k,
				Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: n}},
			})
		}
	}
	return out
}

// serverSocket is mTLS for downstream connections. It offers the ALPN protocols of HTTP for
// HTTP, and none for TCP. If it offered "istio", gRPC clients would select it, and fail.
func serverSocket(t *view.ServerTLS) *corev3.TransportSocket {
	if t == nil {
		return nil
	}
	ctx := &tlsv3.DownstreamTlsContext{
		CommonTlsContext:         commonTLSContext(peerMatchers(t.Names, t.TrustDomains)),
		RequireClientCertificate: wrapperspb.Bool(true),
		// A resumed session presents no certificate, so it could outlive the first one.
		// SessionTimeout does not limit the tickets of TLS 1.3, which Envoy's library accepts
		// for two days.
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
	}
	params := ctx.CommonTlsContext.TlsParams
	if params.CipherSuites = t.CipherSuites; len(t.CipherSuites) == 0 {
		params.CipherSuites = serverCiphers()
	}
	if t.TLS13 {
		params.TlsMinimumProtocolVersion = tlsv3.TlsParameters_TLSv1_3
	}
	if t.HTTP {
		ctx.CommonTlsContext.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	return socket(tlsSocket, pack(ctx))
}
