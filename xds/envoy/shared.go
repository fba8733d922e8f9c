package envoy

import (
	"math"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Messages that are equal in thousands of resources. Builders must not change them, because
// others read them at the same time.
//
//nolint:gochecknoglobals // read-only, and made when first asked for
var (
	noTimeout       = sync.OnceValue(func() *durationpb.Duration { return durationpb.New(0) })
	unlimited       = sync.OnceValue(func() *wrapperspb.UInt32Value { return wrapperspb.UInt32(math.MaxUint32) })
	ads             = sync.OnceValue(makeADS)
	ownIdentity     = sync.OnceValue(func() []*tlsv3.SdsSecretConfig { return []*tlsv3.SdsSecretConfig{secret(ownSecret)} })
	meshRoots       = sync.OnceValue(func() *tlsv3.SdsSecretConfig { return secret(rootSecret) })
	plaintextOnly   = sync.OnceValue(makePlaintextOnly)
	plaintextSocket = sync.OnceValue(makePlaintextSocket)
	previousHosts   = sync.OnceValue(makePreviousHosts)
	allPaths        = sync.OnceValue(makeAllPaths)
	offerHTTP       = sync.OnceValue(makeHTTPALPN)
	defaultRetry    = sync.OnceValue(func() *routev3.RetryPolicy { return makeRetryPolicy(nil, false) })
)

// makeADS is the stream for everything but secrets. Envoy waits for it without a timeout,
// because it cannot serve with half a configuration.
func makeADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		InitialFetchTimeout:   durationpb.New(0),
		ResourceApiVersion:    corev3.ApiVersion_V3,
	}
}

// makePlaintextOnly marks endpoints that do not accept mTLS of the mesh. They are fewer
// than those that do. Each endpoint is marked, not its locality: if the mark of a locality
// changes, Envoy keeps the old transport sockets.
func makePlaintextOnly() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"tlsMode": structpb.NewStringValue("disabled")}}
}

// makePlaintextSocket is the transport socket for endpoints with that mark.
func makePlaintextSocket() []*clusterv3.Cluster_TransportSocketMatch {
	return []*clusterv3.Cluster_TransportSocketMatch{{
		Name: "tlsMode-disabled", Match: plaintextOnly(), TransportSocket: socket(rawSocket, pack(&rawv3.RawBuffer{})),
	}}
}
