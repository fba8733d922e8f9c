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
	// tlsSocket and rawSocket are names for people: Envoy goes by the type of
	// the configuration.
	tlsSocket = "tls"
	rawSocket = "raw_buffer"
	// sdsCluster is in every bootstrap: the agent's secret service.
	sdsCluster = "sds-grpc"
	// ownSecret and rootSecret are the names of the proxy's own identity and of
	// the mesh's bundle.
	ownSecret  = "default"
	rootSecret = "ROOTCA"
)

// serverCiphers are those of Istio's inbound listeners.
func serverCiphers() []string {
	return []string{
		"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384",
		"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-RSA-AES128-GCM-SHA256",
		"AES256-GCM-SHA384", "AES128-GCM-SHA256",
	}
}

// secret asks the agent for a secret by name.
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

// meshContext is the mesh's side of a TLS context: our own identity, and who we
// accept.
func meshContext(names []*tlsv3.SubjectAltNameMatcher) *tlsv3.CommonTlsContext {
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

// anyOf accepts every identity of some trust domains that is for traffic.
func anyOf(trustDomains []string) []*tlsv3.SubjectAltNameMatcher {
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

// trafficIdentities is a regular expression for all identities of a trust domain
// but those below [mesh.ReservedPath]. RE2 cannot say "but", so it says what is
// left, character by character. It has ASCII only, as SPIFFE IDs do: that keeps
// its program below the 100 instructions that an Envoy takes by itself.
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

// anyBut is a class of the visible characters of ASCII but one, which is a letter,
// a digit or a slash.
func anyBut(c byte) string { return "[!-" + string(rune(c-1)) + string(rune(c+1)) + "-~]" }

// peers accepts some names, or with none every identity of some trust domains that
// is for traffic. The identities of hosts are not, whoever names them.
func peers(names, trustDomains []string) []*tlsv3.SubjectAltNameMatcher {
	if len(names) == 0 {
		return anyOf(trustDomains)
	}
	if welcome := slices.DeleteFunc(slices.Clone(names), mesh.IsReservedIdentity); len(welcome) > 0 {
		return exactly(welcome)
	}
	return exactly([]string{nobody})
}

// nobody is a name that no certificate has. An empty list would accept everybody.
const nobody = "spiffe://nobody.invalid/"

// exactly accepts some names. What is not a URI may be a DNS name, or an
// address.
func exactly(names []string) []*tlsv3.SubjectAltNameMatcher {
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

// serverSocket is mTLS for those who connect to us. It offers HTTP's protocols
// to HTTP and none to TCP: with "istio" among them gRPC clients would agree on
// that, and fail.
func serverSocket(t *view.ServerTLS) *corev3.TransportSocket {
	if t == nil {
		return nil
	}
	ctx := &tlsv3.DownstreamTlsContext{
		CommonTlsContext:         meshContext(anyOf(t.TrustDomains)),
		RequireClientCertificate: wrapperspb.Bool(true),
		// A resumed session shows no certificate, so it would outlive the one that
		// it began with. SessionTimeout does not reach the tickets of TLS 1.3,
		// which Envoy's library takes for two days.
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
	}
	ctx.CommonTlsContext.TlsParams.CipherSuites = serverCiphers()
	if t.HTTP {
		ctx.CommonTlsContext.AlpnProtocols = []string{"h2", "http/1.1"}
	}
	return socket(tlsSocket, pack(ctx))
}
