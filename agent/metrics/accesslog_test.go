package metrics

import (
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	datav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// sendLogs sends messages as Envoy does, and returns when all were taken.
func (r *rig) sendLogs(t *testing.T, token string, messages ...*accesslogv3.StreamAccessLogsMessage) error {
	t.Helper()
	cc, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cc.Close() }()
	ctx := t.Context()
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, bootstrap.TokenHeader, token)
	}
	s, err := accesslogv3.NewAccessLogServiceClient(cc).StreamAccessLogs(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	for _, m := range messages {
		if err := s.Send(m); err != nil {
			break // CloseAndRecv says why
		}
	}
	_, err = s.CloseAndRecv()
	return err
}

func named(log string) *accesslogv3.StreamAccessLogsMessage {
	// A node that lies: it is not read.
	return &accesslogv3.StreamAccessLogsMessage{Identifier: &accesslogv3.StreamAccessLogsMessage_Identifier{
		LogName: log, Node: &corev3.Node{Id: "sidecar~10.9.9.9~admin.root~root.svc.cluster.local", Cluster: "admin"},
	}}
}

func tcpLogs(entries ...*datav3.TCPAccessLogEntry) *accesslogv3.StreamAccessLogsMessage {
	return &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_TcpLogs{
		TcpLogs: &accesslogv3.StreamAccessLogsMessage_TCPAccessLogEntries{LogEntry: entries},
	}}
}

type lineKind = datav3.AccessLogType

const (
	connected = datav3.AccessLogType_TcpUpstreamConnected
	periodic  = datav3.AccessLogType_TcpPeriodic
	ended     = datav3.AccessLogType_TcpConnectionEnd
)

func tcpEntry(id string, kind lineKind, sentBytes, receivedBytes uint64, change ...func(*datav3.AccessLogCommon)) *datav3.TCPAccessLogEntry {
	e := &datav3.TCPAccessLogEntry{
		CommonProperties: &datav3.AccessLogCommon{
			StreamId: id, AccessLogType: kind, Duration: durationpb.New(time.Millisecond),
			CustomTags: map[string]string{"peer": "db-1;data;db;v1;vms", "service": "db.data;db;data"},
		},
		ConnectionProperties: &datav3.ConnectionProperties{SentBytes: sentBytes, ReceivedBytes: receivedBytes},
	}
	for _, f := range change {
		f(e.GetCommonProperties())
	}
	return e
}

func fromClient(c *datav3.AccessLogCommon) {
	c.TlsProperties = &datav3.TLSProperties{PeerCertificateProperties: &datav3.TLSProperties_CertificateProperties{
		SubjectAltName: []*datav3.TLSProperties_CertificateProperties_SubjectAltName{
			{San: &datav3.TLSProperties_CertificateProperties_SubjectAltName_Uri{Uri: clientID}},
		},
		Subject: "OU=frontend-7,OU=v1,OU=frontend,O=Fairlead",
	}}
}

// connections are the four counters of TCP, of the series with these labels.
func (r *rig) connections(t *testing.T, labels ...string) [4]uint64 {
	t.Helper()
	families, _ := r.scrape(t)
	var out [4]uint64
	for i := range out {
		out[i] = total(families[counterNames()[opened+counter(i)]], labels...)
	}
	return out
}

// TestConnectionsAreCounted: whatever lines of a connection come, it is opened once and closed
// once, and its bytes count once.
func TestConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	uf := func(c *datav3.AccessLogCommon) {
		c.ResponseFlags = &datav3.ResponseFlags{UpstreamConnectionFailure: true}
	}
	old := func(c *datav3.AccessLogCommon) { c.Duration = durationpb.New(time.Hour) }
	for name, c := range map[string]struct {
		log     string
		adopted bool
		entries []*datav3.TCPAccessLogEntry
		want    [4]uint64
	}{
		"usual":          {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", connected, 0, 0), tcpEntry("a", periodic, 10, 20), tcpEntry("a", periodic, 15, 20), tcpEntry("a", ended, 30, 25)}, [4]uint64{1, 1, 30, 25}},
		"open":           {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", connected, 0, 0), tcpEntry("a", periodic, 10, 20)}, [4]uint64{1, 0, 10, 20}},
		"two":            {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", connected, 0, 0), tcpEntry("b", connected, 0, 0), tcpEntry("a", ended, 1, 2), tcpEntry("b", ended, 3, 4)}, [4]uint64{2, 2, 4, 6}},
		"failed":         {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", ended, 0, 5, uf)}, [4]uint64{1, 1, 0, 5}},
		"lost_begin":     {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", periodic, 10, 20), tcpEntry("a", ended, 10, 20)}, [4]uint64{1, 1, 10, 20}},
		"without_id":     {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("", connected, 0, 0), tcpEntry("", periodic, 10, 20), tcpEntry("", ended, 10, 20)}, [4]uint64{1, 1, 10, 20}},
		"agent_before":   {SourceLog, true, []*datav3.TCPAccessLogEntry{tcpEntry("a", periodic, 1000, 2000, old), tcpEntry("a", ended, 1001, 2002, old)}, [4]uint64{0, 1, 1, 2}},
		"lost_long_ago":  {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", periodic, 1000, 2000, old), tcpEntry("a", ended, 1001, 2002, old)}, [4]uint64{1, 1, 1001, 2002}},
		"fewer_bytes":    {SourceLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", periodic, 10, 20), tcpEntry("a", ended, 5, 21)}, [4]uint64{1, 1, 10, 21}},
		"handshake_late": {DestinationLog, false, []*datav3.TCPAccessLogEntry{tcpEntry("a", connected, 7, 0), tcpEntry("a", ended, 30, 25, fromClient)}, [4]uint64{1, 1, 30, 25}},
		"of_other_logs":  {"mine", false, []*datav3.TCPAccessLogEntry{tcpEntry("a", connected, 0, 0), tcpEntry("a", ended, 1, 1)}, [4]uint64{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(r *rig, _ *Config) { r.process.Adopted = c.adopted })
			r.run(t)
			if err := r.sendLogs(t, testToken, named(c.log), tcpLogs(c.entries...)); err != nil {
				t.Fatal(err)
			}
			if got := r.connections(t); got != c.want {
				t.Errorf("opened, closed, sent, received = %d, want %d", got, c.want)
			}
			if c.log == DestinationLog {
				if got := r.connections(t, "source_workload=frontend-7", "source_principal="+clientID, "connection_security_policy=mutual_tls"); got != c.want {
					t.Errorf("of the client: %d", got)
				}
			}
		})
	}
}

// TestAccessLogNeedsTheToken: a caller without the token of the agent's sockets counts nothing,
// and one with it does.
func TestAccessLogNeedsTheToken(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.run(t)
	lines := []*accesslogv3.StreamAccessLogsMessage{named(SourceLog), tcpLogs(tcpEntry("a", ended, 1, 1))}
	for _, token := range []string{"", "BBCDEFGHIJKLMNOPQRSTUVWXYZ"} {
		if err := r.sendLogs(t, token, lines...); status.Code(err) != codes.PermissionDenied {
			t.Errorf("with the token %q: %v", token, err)
		}
	}
	if got := r.connections(t); got != [4]uint64{} {
		t.Errorf("counted: %d", got)
	}
	if err := r.sendLogs(t, testToken, lines...); err != nil || r.connections(t)[0] != 1 {
		t.Errorf("with the token: %v", err)
	}
}

// TestNodesAreNotBelieved: tags and node of a destination's log do not say who the client is.
func TestNodesAreNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.run(t)
	claim := func(c *datav3.AccessLogCommon) {
		c.CustomTags = map[string]string{"peer": "OU=admin,OU=v1,OU=admin,O=Fairlead", "peer_principal": "spiffe://cluster.local/ns/root/sa/admin", "reporter": "source"}
	}
	if err := r.sendLogs(t, testToken, named(DestinationLog), tcpLogs(tcpEntry("a", ended, 1, 1, claim))); err != nil {
		t.Fatal(err)
	}
	if got := r.connections(t, "reporter=destination", "source_workload=unknown", "source_principal=unknown", "destination_workload=web-1", "connection_security_policy=none"); got[0] != 1 {
		families, _ := r.scrape(t)
		t.Errorf("counted: %v", families["istio_tcp_connections_opened_total"])
	}
}

// TestFollowedConnectionsAreLimited: beyond the limit a connection counts when it ends.
func TestFollowedConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for i := range maxConnections {
		r.logs.open[strconv.Itoa(i)] = &connection{heard: time.Now()}
	}
	r.logs.take(time.Now(), source, tcpLogs(tcpEntry("new", connected, 0, 0), tcpEntry("new", periodic, 10, 10)))
	if len(r.logs.open) != maxConnections {
		t.Errorf("%d connections are followed", len(r.logs.open))
	}
	r.logs.take(time.Now(), source, tcpLogs(tcpEntry("new", ended, 30, 40)))
	if got := r.connections(t); got != [4]uint64{1, 1, 30, 40} {
		t.Errorf("counted: %d", got)
	}
}

// TestConnectionsOfADeadEnvoyEnd: the connections of an Envoy that was replaced are closed, also
// those that it could not say so of.
func TestConnectionsOfADeadEnvoyEnd(t *testing.T) {
	t.Parallel()
	envoy := &fakeEnvoy{}
	r := newRig(t, func(r *rig, _ *Config) { r.open, r.process = envoy.open, Process{PID: 1, Since: time.Now()} })
	r.logs.take(time.Now(), source, tcpLogs(tcpEntry("a", connected, 0, 0), tcpEntry("b", connected, 0, 0), tcpEntry("b", ended, 0, 0)))
	if got := r.connections(t); got != [4]uint64{2, 1, 0, 0} {
		t.Errorf("before: %d", got)
	}
	r.process = Process{PID: 2, Since: time.Now()}
	r.logs.take(time.Now(), source, tcpLogs(tcpEntry("c", connected, 0, 0)))
	if got := r.connections(t); got != [4]uint64{3, 2, 0, 0} {
		t.Errorf("after: %d", got)
	}
}

// TestRequestsOfAccessLogs: entries of requests count as Envoy's own counters do, once each.
func TestRequestsOfAccessLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	entry := func(code uint32, change func(*datav3.HTTPAccessLogEntry)) *datav3.HTTPAccessLogEntry {
		e := &datav3.HTTPAccessLogEntry{
			CommonProperties: &datav3.AccessLogCommon{
				Duration: durationpb.New(7 * time.Millisecond), DownstreamWireBytesReceived: 300, DownstreamWireBytesSent: 4000,
				AccessLogType: datav3.AccessLogType_DownstreamEnd,
			},
			Request: &datav3.HTTPRequestProperties{}, Response: &datav3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(code)},
		}
		if change != nil {
			change(e)
		}
		return e
	}
	grpcCall := func(e *datav3.HTTPAccessLogEntry) {
		e.Request.RequestHeaders = map[string]string{"content-type": "application/grpc+proto"}
		e.Response.ResponseTrailers = map[string]string{"grpc-status": "5"}
	}
	entries := []*datav3.HTTPAccessLogEntry{
		entry(200, nil), entry(200, nil), entry(503, func(e *datav3.HTTPAccessLogEntry) {
			e.CommonProperties.ResponseFlags = &datav3.ResponseFlags{NoHealthyUpstream: true, UpstreamRetryLimitExceeded: true}
		}),
		entry(200, grpcCall), entry(0, func(e *datav3.HTTPAccessLogEntry) {
			grpcCall(e)
			e.Response.ResponseTrailers = nil
		}),
		entry(200, func(e *datav3.HTTPAccessLogEntry) {
			e.Response.ResponseTrailers = map[string]string{"grpc-status": "5"}
		}), // no gRPC request
		entry(200, func(e *datav3.HTTPAccessLogEntry) {
			e.CommonProperties.AccessLogType = datav3.AccessLogType_DownstreamStart
		}),
		entry(200, func(e *datav3.HTTPAccessLogEntry) {
			e.CommonProperties.AccessLogType = datav3.AccessLogType_DownstreamPeriodic
		}),
	}
	r.logs.take(time.Now(), source, &accesslogv3.StreamAccessLogsMessage{LogEntries: &accesslogv3.StreamAccessLogsMessage_HttpLogs{
		HttpLogs: &accesslogv3.StreamAccessLogsMessage_HTTPAccessLogEntries{LogEntry: entries},
	}})
	families, _ := r.scrape(t)
	f := families["istio_requests_total"]
	for _, c := range []struct {
		n      uint64
		labels []string
	}{
		{6, nil},
		{1, []string{"response_code=0", "grpc_response_status="}},
		{3, []string{"response_code=200", "request_protocol=http", "response_flags=-"}},
		{1, []string{"response_code=503", "response_flags=UH,URX"}},
		{1, []string{"request_protocol=grpc", "grpc_response_status=5"}},
	} {
		if n := total(f, c.labels...); n != c.n {
			t.Errorf("%d requests of %q, want %d", n, c.labels, c.n)
		}
	}
	h := find(families["istio_request_duration_milliseconds"], "response_code=503")[0].GetHistogram()
	for _, b := range h.GetBucket() {
		if want := uint64(0); b.GetUpperBound() < 7 && b.GetCumulativeCount() != want || b.GetUpperBound() >= 7 && b.GetCumulativeCount() != 1 {
			t.Errorf("up to %v ms: %d", b.GetUpperBound(), b.GetCumulativeCount())
		}
	}
	if sum := h.GetSampleSum(); sum != 7 {
		t.Errorf("the sum is %v ms", sum)
	}
}
