package bootstrap

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Names of the static clusters. Resources of a control plane refer to SDSCluster as the
// source of secrets, and to ALSCluster as the receiver of access logs.
const (
	XDSCluster        = "xds-grpc"
	SDSCluster        = "sds-grpc"
	ALSCluster        = "als-grpc"
	prometheusCluster = "prometheus_stats"
)

// Reserved are the names in a bootstrap to which no resource of a control plane may refer,
// except to SDSCluster as the source of a secret, and to ALSCluster as the receiver of an
// access log: these clusters connect to the admin interface and to the agent's sockets, which
// give out keys and identities.
func Reserved() []string {
	return []string{XDSCluster, SDSCluster, ALSCluster, prometheusCluster, tokenSecret}
}

// MaxSocketPath is how long the path of a unix socket may be: sun_path has 108
// bytes, the last of which is zero.
const MaxSocketPath = 107

// Config is the input of the bootstrap of one Envoy.
type Config struct {
	// Node identifies the Envoy.
	Node Node
	// XDSSocket, SDSSocket and ALSSocket are the unix sockets of the agent; absolute.
	XDSSocket, SDSSocket, ALSSocket string
	// Token is what the agent's sockets require, in the header [TokenHeader].
	Token string

	// AdminSocket is the unix socket of Envoy's admin interface, unless AdminAddress is
	// valid. MovedAdminSocket is the path to which the agent moves it once it exists;
	// empty means that it is not moved.
	AdminSocket, MovedAdminSocket string
	AdminAddress                  netip.AddrPort
	// StatsAddress serves GET /stats/prometheus and nothing else; the zero
	// value means no such listener.
	StatsAddress netip.AddrPort
	// HealthAddress serves GET /healthz/ready: 200 once Envoy has its
	// configuration, 503 while it drains. The zero value means no such listener.
	HealthAddress netip.AddrPort
	// EnvoyVersion is the release of the Envoy; the zero value is unknown.
	EnvoyVersion Version
	// IncludeStats are regular expressions of the names of further statistics that Envoy has
	// besides the usual ones.
	IncludeStats []string
	// Stats are those that a ProxyConfig adds.
	Stats StatsSettings
	// Limits bound what Envoy uses of the host; the zero value is unlimited.
	Limits Limits
}

// Build makes the bootstrap of one Envoy.
func Build(c Config) (*bootstrapv3.Bootstrap, error) {
	node, err := c.Node.Proto()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(checkSocket("xDS", c.XDSSocket), checkSocket("SDS", c.SDSSocket), checkSocket("access log", c.ALSSocket)); err != nil {
		return nil, err
	}
	admin, reached, err := adminAddresses(&c)
	if err != nil {
		return nil, err
	}
	token, err := staticToken(c.Token)
	if err != nil {
		return nil, err
	}
	stats, err := statsConfig(c.IncludeStats, &c.Stats)
	if err != nil {
		return nil, err
	}
	b := &bootstrapv3.Bootstrap{
		Node: node,
		Admin: &bootstrapv3.Admin{
			Address: admin,
			// The agent must be able to connect when traffic has reached the limits of the
			// process.
			IgnoreGlobalConnLimit: true,
		},
		DynamicResources: dynamicResources(),
		StaticResources:  &bootstrapv3.Bootstrap_StaticResources{Secrets: []*tlsv3.Secret{token}},
		LayeredRuntime:   runtimeLayers(c.EnvoyVersion),
		StatsConfig:      stats,

		DeferredStatOptions: deferredStats(),
	}
	if c.EnvoyVersion.AtLeast(1, 37) {
		b.StatsEviction = &bootstrapv3.Bootstrap_StatsEvictionInterval{StatsEvictionInterval: durationpb.New(statsEviction)}
	}
	for _, s := range []struct{ cluster, socket string }{{XDSCluster, c.XDSSocket}, {SDSCluster, c.SDSSocket}, {ALSCluster, c.ALSSocket}} {
		cluster, err := grpcCluster(s.cluster, s.socket)
		if err != nil {
			return nil, err
		}
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, cluster)
	}
	if c.StatsAddress.IsValid() {
		l, err := statsListener(c.StatsAddress)
		if err != nil {
			return nil, err
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
		b.StaticResources.Clusters = append(b.StaticResources.Clusters, staticCluster(prometheusCluster, reached))
	}
	if c.HealthAddress.IsValid() {
		l, err := healthListener(c.HealthAddress)
		if err != nil {
			return nil, err
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	if b.OverloadManager, err = overloadManager(c.Limits); err != nil {
		return nil, err
	}
	if err := b.ValidateAll(); err != nil {
		return nil, fmt.Errorf("checking the bootstrap: %w", err)
	}
	return b, nil
}

// Marshal is [Build] as JSON, as Envoy's -c reads it from a file whose name ends in .json.
// The bytes are equal for an equal Config.
func Marshal(c Config) ([]byte, error) {
	b, err := Build(c)
	if err != nil {
		return nil, err
	}
	loose, err := protojson.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("marshalling the bootstrap: %w", err)
	}
	// protojson randomizes white space.
	var out bytes.Buffer
	if err := json.Indent(&out, loose, "", "  "); err != nil {
		return nil, fmt.Errorf("marshalling the bootstrap: %w", err)
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// adminAddresses are where Envoy's admin interface listens, and where the agent then
// reaches it.
func adminAddresses(c *Config) (listens, reached *corev3.Address, err error) {
	if c.AdminAddress.IsValid() {
		at := address(c.AdminAddress)
		return at, at, nil
	}
	moved := c.MovedAdminSocket
	if moved == "" {
		moved = c.AdminSocket
	}
	if err := errors.Join(checkSocket("admin", c.AdminSocket), checkSocket("moved admin", moved)); err != nil {
		return nil, nil, err
	}
	return pipe(c.AdminSocket, 0o600), pipe(moved, 0), nil
}

func checkSocket(what, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("the %s socket's path %q is not absolute", what, path)
	}
	if len(path) > MaxSocketPath {
		return fmt.Errorf("the %s socket's path %q has %d bytes, a unix socket's path at most %d: choose a shorter directory",
			what, path, len(path), MaxSocketPath)
	}
	return nil
}

func dynamicResources() *bootstrapv3.Bootstrap_DynamicResources {
	// 0 waits forever: an Envoy without its configuration must not open listeners that
	// have no routes.
	ads := func() *corev3.ConfigSource {
		return &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
			ResourceApiVersion:    corev3.ApiVersion_V3,
			InitialFetchTimeout:   durationpb.New(0),
		}
	}
	return &bootstrapv3.Bootstrap_DynamicResources{
		LdsConfig: ads(),
		CdsConfig: ads(),
		AdsConfig: &corev3.ApiConfigSource{
			ApiType:                   corev3.ApiConfigSource_DELTA_GRPC,
			TransportApiVersion:       corev3.ApiVersion_V3,
			SetNodeOnFirstMessageOnly: true,
			GrpcServices: []*corev3.GrpcService{{
				TargetSpecifier: &corev3.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &corev3.GrpcService_EnvoyGrpc{
						ClusterName: XDSCluster,
						// The agent is on this host: when it is back, Envoy should
						// reconnect without a back-off of up to 30 s.
						RetryPolicy: &corev3.RetryPolicy{RetryBackOff: &corev3.BackoffStrategy{
							BaseInterval: durationpb.New(100 * time.Millisecond), MaxInterval: durationpb.New(time.Second),
						}},
					},
				},
			}},
		},
	}
}

// grpcCluster reaches a server of the agent on a unix socket, with the token.
func grpcCluster(name, socket string) (*clusterv3.Cluster, error) {
	filters, err := tokenFilters()
	if err != nil {
		return nil, err
	}
	options, err := anypb.New(&httpv3.HttpProtocolOptions{
		UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
				},
			},
		},
		HttpFilters: filters,
	})
	if err != nil {
		return nil, fmt.Errorf("marshalling the protocol of cluster %s: %w", name, err)
	}
	c := staticCluster(name, pipe(socket, 0))
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options,
	}
	return c, nil
}

func staticCluster(name string, at *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          name + ";", // as the control plane's clusters
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       durationpb.New(time.Second),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: proto.CloneOf(at)}},
			}}}},
		},
	}
}

func pipe(path string, mode uint32) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: path, Mode: mode}}}
}

func address(a netip.AddrPort) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}
