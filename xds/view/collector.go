package view

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Collector is a service that gets what proxies report.
type Collector struct {
	Host    mesh.Hostname
	Cluster ClusterRef
}

// ReportForm is how a collector gets what proxies report, and so what bounds what waits for it.
type ReportForm uint8

// The forms of reports. NoReports is for clusters that carry requests.
const (
	NoReports ReportForm = iota
	// ReportRequests are requests by HTTP. Their sender ends each one that takes too long.
	ReportRequests
	// ReportCalls are calls by gRPC (OTLP), which their sender waits for without an end.
	ReportCalls
	// ReportStream is one stream by gRPC of each worker (access log services, SkyWalking). Its sender
	// drops what the stream does not take.
	ReportStream
)

// subset stands, in place of a subset's name, in the name of a collector's cluster. No subset has a
// name with an underscore.
func (f ReportForm) subset() string {
	switch f {
	case ReportRequests:
		return "telemetry_http"
	case ReportCalls:
		return "telemetry_grpc"
	case ReportStream:
		return "telemetry_stream"
	case NoReports:
	}
	return ""
}

// Reports says what reports a cluster carries; zero if it carries requests.
type Reports struct {
	Form ReportForm
	// Timeout is how long a call may take, if the provider says so; or 0.
	Timeout time.Duration
}

// collector adds the cluster of a service that gets what proxies report; false if it has no address.
func (b *telemetryBuilder) collector(service string, number uint32, form ReportForm) (Collector, bool) {
	svc, port, err := b.s.ProviderService(service, number)
	if err != nil {
		return Collector{}, false
	}
	port.Protocol = mesh.GRPC // whatever the service says of the port
	if form == ReportRequests {
		port.Protocol = mesh.HTTP
	}
	out := Collector{Host: svc.Hostname, Cluster: Outbound(svc.Hostname, port.Number, form.subset())}
	return out, b.reach(svc, port, out.Cluster, form)
}

// reach adds the cluster of a service that gets what the proxy reports. It is not a cluster of
// the sidecar scope: a Sidecar may leave the service out, and a namespace may have another
// service of that host. It reports whether there is an endpoint to connect to.
func (b *telemetryBuilder) reach(svc *mesh.Service, port mesh.Port, ref ClusterRef, form ReportForm) bool {
	reaches, known := b.reached[ref]
	if !known {
		reports := Reports{Form: form}
		if form == ReportCalls {
			reports.Timeout = b.callTimeout(svc, port)
		}
		made := b.providerParts(svc, port, ref, reports)
		reaches = len(made.clusters) > 0
		if b.reached == nil {
			b.reached = map[ClusterRef]bool{}
		}
		b.reached[ref] = reaches
		b.telemetry.collectors = slices.Concat(b.telemetry.collectors, made.clusters, made.endpoints)
	}
	return reaches
}

// callTimeout is the longest timeout of the providers that send spans to a port by calls; or 0. They
// share a cluster.
func (b *telemetryBuilder) callTimeout(svc *mesh.Service, port mesh.Port) (longest time.Duration) {
	for _, p := range b.config.GetExtensionProviders() {
		otlp := p.GetOpentelemetry()
		timeout := otlp.GetGrpc().GetTimeout().AsDuration()
		if otlp == nil || otlp.GetHttp() != nil || timeout <= longest {
			continue
		}
		if s, at, err := b.s.ProviderService(otlp.GetService(), otlp.GetPort()); err == nil && s == svc && at.Number == port.Number {
			longest = timeout
		}
	}
	return longest
}

// address adds the cluster of an address that no service has: that of a tracer in a ProxyConfig
// may be anywhere.
func (b *telemetryBuilder) address(host string, port uint32) Collector {
	out := Collector{Host: mesh.Hostname(host), Cluster: Outbound(mesh.Hostname(host), port, ReportRequests.subset())}
	if b.reached[out.Cluster] {
		return out
	}
	discovery := DiscoverStrictDNS
	if _, err := netip.ParseAddr(host); err == nil {
		discovery = DiscoverStatic
	}
	c := b.clusters.intern(&Cluster{
		Ref: out.Cluster, Discovery: discovery, Lookup: b.upstream.lookup, Protocol: mesh.HTTP, Defaults: b.defaults, KeepHeaderCase: b.headers.keepsCase(),
		Reports:    Reports{Form: ReportRequests},
		Localities: []LocalityEndpoints{{Endpoints: []Endpoint{{Address: host, Port: port, Weight: 1}}}},
	})
	if b.reached == nil {
		b.reached = map[ClusterRef]bool{}
	}
	b.reached[out.Cluster] = true
	b.telemetry.collectors = append(b.telemetry.collectors, c)
	return out
}

// collectorServices are the services of an extension provider that get what proxies report.
func collectorServices(p *meshconfig.MeshConfig_ExtensionProvider) []string {
	return []string{
		p.GetEnvoyHttpAls().GetService(), p.GetEnvoyTcpAls().GetService(), p.GetEnvoyOtelAls().GetService(),
		p.GetZipkin().GetService(), p.GetDatadog().GetService(), p.GetSkywalking().GetService(), p.GetOpentelemetry().GetService(),
		p.GetOpentelemetry().GetDynatraceSampler().GetHttpService().GetService(),
	}
}

// collectorHosts are the hosts of services that get what proxies report.
func collectorHosts(c *meshconfig.MeshConfig) map[mesh.Hostname]bool {
	out := mesh.ProviderHosts(c, collectorServices)
	if p := tracer(c); p != nil {
		out[mesh.Hostname(cmp.Or(p.GetZipkin().GetService(), p.GetDatadog().GetService()))] = true
	}
	return out
}
