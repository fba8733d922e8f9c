package metrics

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/fairlead/fairlead/agent/peercred"
)

// The log_name of the loggers that count, by reporter. Entries of other logs are ignored.
const (
	SourceLog      = "istio/source"
	DestinationLog = "istio/destination"
)

// Limits of what Envoy sends.
const (
	maxLogStreams = 1024
	maxLogMessage = 4 << 20
	// maxConnections is how many open TCP connections are followed. What is beyond counts when
	// it ends.
	maxConnections = 65536
	maxStreamID    = 128
	// quietTime is how long a connection is followed of which nothing is heard.
	quietTime = 24 * time.Hour
)

// accessLog counts by Envoy's access log service: TCP connections, and requests where Envoy
// cannot count them itself.
//
// Who the other side is says its certificate, or what the control plane configured as tags.
// The node that Envoy sends is not read.
type accessLog struct {
	accesslogv3.UnimplementedAccessLogServiceServer
	c       *Collector
	started time.Time
	bounds  []string
	limits  []float64

	// open are the TCP connections, by log and id. The store's mu guards it.
	open map[string]*connection
	// resumed means that the connections of an Envoy that was taken over are known. The store's mu
	// guards it.
	resumed bool
	// ignored counts entries that no metric is made of.
	ignored atomic.Uint64
}

// connection is an open TCP connection.
type connection struct {
	row            *row // of its last entry, or nil
	sent, received uint64
	opened         bool // counted as such
	heard          time.Time
}

func newAccessLog(c *Collector, now time.Time) *accessLog {
	a := &accessLog{c: c, started: now, bounds: istioBounds(), open: map[string]*connection{}}
	for _, le := range a.bounds {
		n, _ := strconv.ParseFloat(le, 64) // they are constant
		a.limits = append(a.limits, n)
	}
	return a
}

func (a *accessLog) run(ctx context.Context) error {
	l, err := peercred.Listen(ctx, peercred.Config{Logger: a.c.log, Path: a.c.c.Socket, UID: a.c.c.UID, Guard: a.c.c.Guard})
	if err != nil {
		return err
	}
	// The listener checks the user; the guard checks the token of each call.
	//nolint:contextcheck // each call has its own context
	g := grpc.NewServer(append(a.c.c.Guard.ServerOptions(), grpc.MaxConcurrentStreams(maxLogStreams), grpc.MaxRecvMsgSize(maxLogMessage))...)
	accesslogv3.RegisterAccessLogServiceServer(g, a)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := g.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			return fmt.Errorf("serving access logs on %q: %w", a.c.c.Socket, err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		g.Stop()
		return nil
	})
	return group.Wait()
}

// StreamAccessLogs implements Envoy's service. The first message names the log.
func (a *accessLog) StreamAccessLogs(stream accesslogv3.AccessLogService_StreamAccessLogsServer) error {
	var side reporter
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&accesslogv3.StreamAccessLogsResponse{})
		}
		if err != nil {
			return err
		}
		if id := m.GetIdentifier(); id != nil {
			switch id.GetLogName() {
			case SourceLog:
				side = source
			case DestinationLog:
				side = destination
			default:
				side = ""
			}
		}
		a.take(time.Now(), side, m)
	}
}

func (a *accessLog) take(now time.Time, side reporter, m *accesslogv3.StreamAccessLogsMessage) {
	tcp, http := m.GetTcpLogs().GetLogEntry(), m.GetHttpLogs().GetLogEntry()
	if side == "" {
		a.ignored.Add(uint64(len(tcp) + len(http)))
		return
	}
	own, running := a.c.c.Workload(), a.c.c.Process()
	a.c.store.mu.Lock()
	defer a.c.store.mu.Unlock()
	if a.c.store.finished {
		return
	}
	a.c.resumeConnections(now, running)
	a.c.uncounted.follow(running)
	adopted := running.Adopted && !a.resumed
	a.c.store.setOwn(own)
	for _, e := range tcp {
		a.takeTCP(now, side, e, adopted)
	}
	for _, e := range http {
		a.takeHTTP(now, side, e)
	}
}

// takeTCP counts an entry. Entries of a connection have what it sent since its beginning, so
// that differences are added. The store's mu is held.
func (a *accessLog) takeTCP(now time.Time, side reporter, e *datav3.TCPAccessLogEntry, adopted bool) {
	common, kind := e.GetCommonProperties(), e.GetCommonProperties().GetAccessLogType()
	ended := kind == datav3.AccessLogType_TcpConnectionEnd
	if !ended && kind != datav3.AccessLogType_TcpUpstreamConnected && kind != datav3.AccessLogType_TcpPeriodic {
		a.ignored.Add(1)
		return
	}
	o := observedEntry(side, common)
	o.tcp = true
	sentNow, receivedNow := e.GetConnectionProperties().GetSentBytes(), e.GetConnectionProperties().GetReceivedBytes()
	id := common.GetStreamId()
	if len(id) == 0 || len(id) > maxStreamID {
		id = ""
	}
	key := string(side) + id
	c := a.open[key]
	if c == nil || id == "" {
		c = &connection{}
		if adopted && kind != datav3.AccessLogType_TcpUpstreamConnected && a.beganBefore(now, common) {
			// The agent before this one counted it.
			c.opened, c.sent, c.received = true, sentNow, receivedNow
		}
		if !ended {
			if id == "" || len(a.open) >= maxConnections {
				a.c.uncounted.unfollowed = true
				return // it counts when it ends
			}
			a.open[key] = c
		}
	}
	c.heard = now
	if kind == datav3.AccessLogType_TcpUpstreamConnected && side == destination && o.principal == "" {
		return // it can come before the handshake, and the next entry says who the client is
	}
	r := a.c.store.rowByInput(now, o.key(), &o)
	c.row = r
	if !c.opened {
		c.opened = true
		r.add(now, opened, 1)
		a.c.uncounted.report(side, connectionsBegun, 1)
	}
	r.add(now, sent, sentNow-min(c.sent, sentNow))
	r.add(now, received, receivedNow-min(c.received, receivedNow))
	c.sent, c.received = sentNow, receivedNow
	if ended {
		r.add(now, closed, 1)
		delete(a.open, key)
	}
}

// beganBefore reports whether a connection is older than this process. Envoy's duration does
// not depend on clocks that are set.
func (a *accessLog) beganBefore(now time.Time, common *datav3.AccessLogCommon) bool {
	if d := common.GetDuration(); d != nil {
		return now.Add(-d.AsDuration()).Before(a.started)
	}
	return common.GetStartTime() != nil && common.GetStartTime().AsTime().Before(a.started)
}

// forget ends the connections of an Envoy that was replaced by one that was started at the
// given time.
func (a *accessLog) forget(now, since time.Time) {
	a.drop(now, func(c *connection) bool { return c.heard.Before(since) })
}

// expire ends the connections of which nothing was heard for a day.
func (a *accessLog) expire(now time.Time) {
	a.drop(now, func(c *connection) bool { return now.Sub(c.heard) > quietTime })
}

func (a *accessLog) drop(now time.Time, gone func(*connection) bool) {
	a.c.store.mu.Lock()
	defer a.c.store.mu.Unlock()
	for key, c := range a.open {
		if gone(c) {
			if c.opened && c.row != nil {
				c.row.add(now, closed, 1)
			}
			delete(a.open, key)
		}
	}
}

// takeHTTP counts a request at its end. The store's mu is held.
func (a *accessLog) takeHTTP(now time.Time, side reporter, e *datav3.HTTPAccessLogEntry) {
	common := e.GetCommonProperties()
	if common.GetAccessLogType() != datav3.AccessLogType_DownstreamEnd {
		a.ignored.Add(1)
		return
	}
	o := observedEntry(side, common)
	o.code = strconv.FormatUint(uint64(e.GetResponse().GetResponseCode().GetValue()), 10)
	o.grpc = grpcStatus(e)
	r := a.c.store.rowByInput(now, o.key(), &o)
	r.add(now, requests, 1)
	a.c.uncounted.report(side, requestsEnded, 1)
	lasted := common.GetDuration()
	if lasted == nil {
		lasted = common.GetTimeToLastDownstreamTxByte()
	}
	for h, value := range map[histogram]float64{
		duration:      float64(lasted.AsDuration().Milliseconds()), // as Envoy counts, whole
		requestBytes:  float64(common.GetDownstreamWireBytesReceived()),
		responseBytes: float64(common.GetDownstreamWireBytesSent()),
	} {
		r.observe(now, h, a.bounds, a.limits, value)
	}
}

// grpcStatus is the status of a gRPC request; empty for others. The control plane has Envoy log
// the headers content-type and grpc-status.
func grpcStatus(e *datav3.HTTPAccessLogEntry) string {
	if !strings.HasPrefix(e.GetRequest().GetRequestHeaders()["content-type"], "application/grpc") {
		return ""
	}
	if s, ok := e.GetResponse().GetResponseTrailers()["grpc-status"]; ok {
		return s
	}
	if s, ok := e.GetResponse().GetResponseHeaders()["grpc-status"]; ok {
		return s
	}
	code := e.GetResponse().GetResponseCode().GetValue()
	if code == 0 { // its client left; as later Envoys, which then do not know that it was gRPC
		return ""
	}
	return statusOfHTTP(code)
}

// statusOfHTTP is the status of a gRPC request that was answered without one, as gRPC's
// specification maps it.
func statusOfHTTP(code uint32) string {
	switch code {
	case 400:
		return "13"
	case 401:
		return "16"
	case 403:
		return "7"
	case 404:
		return "12"
	case 429, 502, 503, 504:
		return "14"
	}
	return "2"
}

// observedEntry is what an entry says of the other side. Tags are those of the control plane,
// with the names that Envoy's own counters have as labels.
func observedEntry(side reporter, common *datav3.AccessLogCommon) observed {
	o := observed{reporter: side, flags: responseFlags(common.GetResponseFlags())}
	tags := common.GetCustomTags()
	known := 0
	for name, to := range map[string]*string{inPeer: &o.peer, inPeerPrincipal: &o.principal, inService: &o.service, inRemoved: &o.removed} {
		if v, ok := tags[name]; ok {
			*to = v
			known++
		}
	}
	if side == destination { // the certificate only
		o.peer, o.principal = "", ""
		cert := common.GetTlsProperties().GetPeerCertificateProperties()
		o.peer = cert.GetSubject()
		for _, san := range cert.GetSubjectAltName() {
			if uri := san.GetUri(); uri != "" {
				if o.principal != "" {
					uri = o.principal + "," + uri // as Envoy joins them
				}
				o.principal = uri
			}
		}
	}
	if len(tags) == known {
		return o
	}
	for _, name := range slices.Sorted(maps.Keys(tags)) {
		switch name {
		case inReporter, inPeer, inPeerPrincipal, inService, inCode, inFlags, inGRPC, inRemoved:
		default:
			o.further = append(o.further, label{name, tags[name]})
		}
	}
	return o
}

// key is different for observations that differ.
func (o *observed) key() []byte {
	b := make([]byte, 0, 512)
	if o.tcp {
		b = append(b, 't')
	}
	text := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, s := range []string{string(o.reporter), o.peer, o.principal, o.service, o.code, o.flags, o.grpc, o.removed} {
		text(s)
	}
	for _, l := range o.further {
		text(l.name)
		text(l.value)
	}
	return b
}

// responseFlags are the short names of flags as Envoy writes them.
func responseFlags(f *datav3.ResponseFlags) string {
	if f == nil {
		return ""
	}
	set := []bool{
		f.GetFailedLocalHealthcheck(), f.GetNoHealthyUpstream(), f.GetUpstreamRequestTimeout(), f.GetLocalReset(), f.GetUpstreamRemoteReset(),
		f.GetUpstreamConnectionFailure(), f.GetUpstreamConnectionTermination(), f.GetUpstreamOverflow(), f.GetNoRouteFound(), f.GetDelayInjected(),
		f.GetFaultInjected(), f.GetRateLimited(), f.GetUnauthorizedDetails() != nil, f.GetRateLimitServiceError(), f.GetDownstreamConnectionTermination(),
		f.GetUpstreamRetryLimitExceeded(), f.GetStreamIdleTimeout(), f.GetInvalidEnvoyRequestHeaders(), f.GetDownstreamProtocolError(),
		f.GetUpstreamMaxStreamDurationReached(), f.GetResponseFromCacheFilter(), f.GetNoFilterConfigFound(), f.GetDurationTimeout(),
		f.GetUpstreamProtocolError(), f.GetNoClusterFound(), f.GetOverloadManager(), f.GetDnsResolutionFailure(), f.GetDownstreamRemoteReset(),
	}
	var out []string
	for i, name := range flagNames() {
		if set[i] {
			out = append(out, name)
		}
	}
	return strings.Join(out, ",")
}
