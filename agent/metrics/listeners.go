package metrics

import (
	"fmt"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	statslogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
)

// LogCluster is the cluster of Envoy's bootstrap that is the access log service of this package.
const LogCluster = "als-grpc"

// Listeners are those that Envoy has.
type Listeners struct {
	// Number is another one for other listeners; 0 means that they are not known.
	Number uint64
	// Changing means that others are on their way, which Envoy may have already.
	Changing bool
	// Bodies gives them, encoded as envoy.config.listener.v3.Listener.
	Bodies func() [][]byte
}

// manager is a connection manager or a TCP proxy, by the label that its statistics have.
type manager struct {
	tcp    bool
	prefix string
}

// reporting says which requests and connections are reported.
type reporting struct {
	// side is who reports those of a manager; empty if nobody does, or not for all that have its
	// prefix.
	side map[manager]reporter
	// byLog are the sides whose requests come by the access log service.
	byLog map[reporter]bool
	// interval is how often connections are reported while they are open, at the longest.
	interval time.Duration
}

// anything reports whether anything is reported.
func (r *reporting) anything() bool {
	for _, side := range r.side {
		if side != "" {
			return true
		}
	}
	return false
}

// reportingOf reads listeners.
func reportingOf(bodies [][]byte) (*reporting, error) {
	out := &reporting{side: map[manager]reporter{}, byLog: map[reporter]bool{}}
	for _, body := range bodies {
		l := &listenerv3.Listener{}
		if err := proto.Unmarshal(body, l); err != nil {
			return nil, fmt.Errorf("reading a listener: %w", err)
		}
		chains := l.GetFilterChains()
		if c := l.GetDefaultFilterChain(); c != nil {
			chains = append(chains, c)
		}
		for _, c := range chains {
			for _, f := range c.GetFilters() {
				if err := out.filter(f); err != nil {
					return nil, fmt.Errorf("reading listener %q: %w", l.GetName(), err)
				}
			}
		}
	}
	return out, nil
}

func (r *reporting) filter(f *listenerv3.Filter) error {
	hcm, tcp := &hcmv3.HttpConnectionManager{}, &tcpv3.TcpProxy{}
	switch config := f.GetTypedConfig(); {
	case config.MessageIs(hcm):
		if err := config.UnmarshalTo(hcm); err != nil {
			return err //nolint:wrapcheck // the caller says where
		}
		// The prefix ends with a semicolon, because addresses have dots.
		m := manager{prefix: inStatistics(strings.TrimSuffix(hcm.GetStatPrefix(), ";"))}
		for _, log := range hcm.GetAccessLog() {
			side, byLog, err := requestsBy(log)
			if err != nil {
				return err
			}
			if side != "" {
				r.byLog[side] = r.byLog[side] || byLog
				r.note(m, side)
				return nil
			}
		}
		r.note(m, "")
	case config.MessageIs(tcp):
		if err := config.UnmarshalTo(tcp); err != nil {
			return err //nolint:wrapcheck // the caller says where
		}
		m := manager{true, inStatistics(tcp.GetStatPrefix())}
		for _, log := range tcp.GetAccessLog() {
			c := &grpclogv3.TcpGrpcAccessLogConfig{}
			if !log.GetTypedConfig().MessageIs(c) {
				continue
			}
			if err := log.GetTypedConfig().UnmarshalTo(c); err != nil {
				return err //nolint:wrapcheck // the caller says where
			}
			if side := sideOf(c.GetCommonConfig()); side != "" {
				r.interval = max(r.interval, tcp.GetAccessLogOptions().GetAccessLogFlushInterval().AsDuration())
				r.note(m, side)
				return nil
			}
		}
		r.note(m, "")
	}
	return nil
}

// note notes a manager. Statistics of two that differ cannot be told apart.
func (r *reporting) note(m manager, side reporter) {
	if before, known := r.side[m]; known && before != side {
		side = ""
	}
	r.side[m] = side
}

// requestsBy is the side that a logger counts requests for; empty if it does not.
func requestsBy(log *accesslogv3.AccessLog) (side reporter, byLog bool, err error) {
	counted, logged := &statslogv3.Config{}, &grpclogv3.HttpGrpcAccessLogConfig{}
	switch config := log.GetTypedConfig(); {
	case config.MessageIs(counted):
		if err := config.UnmarshalTo(counted); err != nil {
			return "", false, err //nolint:wrapcheck // the caller says where
		}
		for _, c := range counted.GetCounters() {
			if "istio_"+c.GetStat().GetName() != counterNames()[requests] {
				continue
			}
			for _, tag := range c.GetStat().GetTags() {
				if tag.GetName() == inReporter {
					return reporter(tag.GetValueFormat()).known(), false, nil
				}
			}
		}
	case config.MessageIs(logged):
		if err := config.UnmarshalTo(logged); err != nil {
			return "", false, err //nolint:wrapcheck // the caller says where
		}
		return sideOf(logged.GetCommonConfig()), true, nil
	}
	return "", false, nil
}

// sideOf is the side of a log that this package counts.
func sideOf(c *grpclogv3.CommonGrpcAccessLogConfig) reporter {
	if c.GetGrpcService().GetEnvoyGrpc().GetClusterName() != LogCluster {
		return "" // another service may have a log of the same name
	}
	switch c.GetLogName() {
	case SourceLog:
		return source
	case DestinationLog:
		return destination
	}
	return ""
}

// inStatistics is a prefix as it is in the names of statistics
// (Envoy's source/common/stats/utility.cc, sanitizeStatsName).
func inStatistics(prefix string) string {
	return strings.NewReplacer("://", "_", ":/", "_", ":", "_", "\x00", "_").Replace(prefix)
}
