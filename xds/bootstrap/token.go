package bootstrap

import (
	"errors"
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	injectorv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/credential_injector/v3"
	upstreamcodecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	genericv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/injected_credentials/generic/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// TokenHeader is the header with the token that an Envoy sends to its agent.
const TokenHeader = "x-fairlead-agent-token"

// tokenSecret is the static secret that has the token.
const tokenSecret = "fairlead-agent-token"

// The token is a generic secret, because Envoy masks those in its config_dump; a
// value of a header would be shown there. It is added by a filter of the static
// clusters, behind everything that a control plane configures: no route, log or
// filter of a listener sees the request that has it.

func staticToken(token string) (*tlsv3.Secret, error) {
	if token == "" {
		return nil, errors.New("making the bootstrap: the token of the agent's sockets is missing")
	}
	return &tlsv3.Secret{Name: tokenSecret, Type: &tlsv3.Secret_GenericSecret{GenericSecret: &tlsv3.GenericSecret{
		Secret: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: token}},
	}}}, nil
}

// tokenFilters are the upstream filters of a cluster that shows the token.
func tokenFilters() ([]*hcmv3.HttpFilter, error) {
	credential, err := anypb.New(&genericv3.Generic{
		Credential: &tlsv3.SdsSecretConfig{Name: tokenSecret}, Header: TokenHeader,
	})
	if err != nil {
		return nil, fmt.Errorf("marshalling the token's place: %w", err)
	}
	var filters []*hcmv3.HttpFilter
	for _, f := range []struct {
		name   string
		config proto.Message
	}{
		{"envoy.filters.http.credential_injector", &injectorv3.CredentialInjector{
			// A retry keeps the header of the attempt before it.
			Overwrite: true,
			Credential: &corev3.TypedExtensionConfig{
				Name: "envoy.http.injected_credentials.generic", TypedConfig: credential,
			},
		}},
		{"envoy.filters.http.upstream_codec", &upstreamcodecv3.UpstreamCodec{}},
	} {
		a, err := anypb.New(f.config)
		if err != nil {
			return nil, fmt.Errorf("marshalling the filter %s: %w", f.name, err)
		}
		filters = append(filters, &hcmv3.HttpFilter{Name: f.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a}})
	}
	return filters, nil
}
