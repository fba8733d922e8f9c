package envoy

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/view"
)

// Bounds of what waits for a collector that does not answer, in one Envoy. Without them all of it
// waits in memory: spans and logs are sent whether the ones before were answered or not.
const (
	// maxReports is how many requests or calls wait at one time. Each has some five spans, or 16 KB
	// of logs, and takes 20 to 30 KB.
	maxReports = 256
	// callTimeout is how long a call may take if the provider does not say so: Envoy's sender of
	// OTLP waits without an end, whatever its timeout is.
	callTimeout = 10 * time.Second
	// streamWindow is how many bytes wait in a stream before its sender drops.
	streamWindow = 256 << 10
	// pingInterval and pingTimeout find a connection that is dead, and a collector that is stopped.
	pingInterval = 30 * time.Second
	pingTimeout  = 20 * time.Second
)

// boundReports bounds what waits for a collector. What a DestinationRule says counts where it is
// stricter.
func (b *clusterBuilder) boundReports() {
	form := b.p.Reports.Form
	if form == view.NoReports {
		return
	}
	limits := b.c.GetCircuitBreakers().GetThresholds()[0]
	limits.MaxRequests = stricter(limits.GetMaxRequests(), maxReports)
	limits.MaxPendingRequests = stricter(limits.GetMaxPendingRequests(), maxReports)
	if h2 := b.http2Options(); h2 != nil {
		if h2.GetConnectionKeepalive() == nil {
			h2.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: durationpb.New(pingInterval), Timeout: durationpb.New(pingTimeout)}
		}
		if form == view.ReportStream {
			h2.InitialStreamWindowSize = wrapperspb.UInt32(streamWindow)
		}
	}
	if form != view.ReportCalls {
		return
	}
	longest := callTimeout
	if b.p.Reports.Timeout > 0 {
		longest = b.p.Reports.Timeout
	}
	options := b.options()
	if options.GetCommonHttpProtocolOptions() == nil {
		options.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{}
	}
	options.CommonHttpProtocolOptions.MaxStreamDuration = durationpb.New(longest)
}

// http2Options are those of the cluster; nil if it speaks HTTP/1.1 only.
func (b *clusterBuilder) http2Options() *corev3.Http2ProtocolOptions {
	if h2 := b.http.GetExplicitHttpConfig().GetHttp2ProtocolOptions(); h2 != nil {
		return h2
	}
	return b.http.GetUseDownstreamProtocolConfig().GetHttp2ProtocolOptions()
}

func stricter(a *wrapperspb.UInt32Value, limit uint32) *wrapperspb.UInt32Value {
	return wrapperspb.UInt32(min(a.GetValue(), limit))
}
