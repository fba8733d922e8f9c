package xds

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// A restarted server sends nothing to a fleet that has everything.
func TestRestartSendsNothing(t *testing.T) {
	t.Parallel()
	streams := 1000
	if testing.Short() {
		streams = 200
	}
	o := smallmesh.Big(25)
	first := newRig(t, o, admitAll(o))
	all := fleet(t, o, streams)
	for _, p := range all {
		p.open(first)
	}
	for _, p := range all {
		p.waitConverged(first)
	}
	eventually(t, "all is answered", func() bool { return first.server.convergedProxies() == streams })
	before := 0
	for _, p := range all {
		_ = p.close() // its context was cancelled
		before += p.receivedCount()
	}
	second := newRig(t, smallmesh.Big(25), admitAll(o))
	for _, p := range all {
		p.open(second)
	}
	eventually(t, "all are back", func() bool { return second.server.convergedProxies() == streams })
	after := 0
	for _, p := range all {
		after += p.receivedCount()
	}
	if after != before {
		t.Errorf("%d resources sent again", after-before)
	}
	for url, a := range second.server.Work().Sent {
		if a.Resources != 0 {
			t.Errorf("%d of %s", a.Resources, url.Short())
		}
	}
	for _, p := range all[:10] {
		p.waitConverged(second)
	}
}

// convergedProxies is how many proxies have subscribed to and answered everything.
func (s *Server) convergedProxies() int {
	n := 0
	for _, p := range s.Proxies() {
		if p.Connected && p.Synced {
			n++
		}
	}
	return n
}

// A tenth of the fleet stops reading: the others are not delayed, each stopped one holds
// one response, and gets the merged changes when it reads again.
func TestProxiesThatStopReadingDelayNobody(t *testing.T) {
	t.Parallel()
	const streams, deaf, edits = 60, 6, 10
	o := smallmesh.Big(240) // their clusters exceed the buffers of a connection
	r := newRig(t, o, admitAll(o))
	all := fleet(t, o, streams)
	until := make(chan struct{})
	for _, p := range all[:deaf] {
		p.pauseReading(until)
	}
	for _, p := range all {
		p.open(r)
	}
	for _, p := range all[deaf:] {
		p.waitConverged(r)
	}
	for i := range edits {
		o.Route("s0007.mesh", fmt.Sprint("/v", i))
		r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
		for _, p := range all[deaf:] {
			p.waitConverged(r)
		}
	}
	answered := make(chan int, 1)
	go func() { answered <- len(r.server.Proxies()) }()
	select {
	case n := <-answered:
		if n != streams {
			t.Errorf("%d proxies are listed", n)
		}
	case <-time.After(time.Minute):
		t.Fatal("the owner of a stream blocks in sending")
	}
	held := 0
	for _, c := range r.server.connections() {
		if n := int(c.unwritten.Load()); n > 0 {
			held++
			if n > 200<<10 {
				t.Errorf("%d bytes held for one stream", n)
			}
		}
	}
	if held != deaf {
		t.Errorf("%d streams have something unread", held)
	}
	sent := r.server.Work().Sent[stream.VirtualHostType]
	for _, p := range all[:deaf] {
		p.pauseReading(nil)
	}
	close(until)
	for _, p := range all[:deaf] {
		p.waitConverged(r)
	}
	// Those that support VHDS were sent each route configuration once.
	most := uint64(deaf * (len(o.Services) + 1))
	if now := r.server.Work().Sent[stream.VirtualHostType]; now.Resources-sent.Resources > most {
		t.Errorf("%d virtual hosts: not merged", now.Resources-sent.Resources)
	}
}

// No response is handed to the transport while 64 KiB are unread: sending would block the
// owner of the stream.
func TestNoResponseIsSentBehindUnreadBytes(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, admitAll(o))
	p := fleet(t, o, 1)[0]
	p.open(r)
	p.waitConverged(r)
	eventually(t, "it has answered", func() bool { return r.server.convergedProxies() == 1 })
	before := p.receivedCount()
	c := r.server.connections()[0]
	c.unwritten.Add(64 << 10) // as if that was unread
	o.Route("s0007.mesh", "/new")
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	eventually(t, "the stream waits, or sends", func() bool { return c.blocked.Load() || p.receivedCount() > before })
	if !c.blocked.Load() {
		t.Errorf("%d resources sent", p.receivedCount()-before)
	}
	(&outgoing{conn: c, size: 64 << 10}).Written()
	p.waitConverged(r)
}

func TestStreamOfNonReadingProxyIsClosed(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	o := smallmesh.Big(240)
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		c.SlowTimeout = 3 * time.Second // long enough for the other one to read
	})
	all := fleet(t, o, 2)
	all[0].pauseReading(make(chan struct{}))
	all[0].open(r)
	all[1].open(r)
	eventually(t, "its stream is closed", func() bool {
		return strings.Contains(r.log.String(), "proxy does not read")
	})
	all[1].waitConverged(r)
	m, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m {
		if f.GetName() == "fairlead_xds_slow_streams_total" && f.GetMetric()[0].GetCounter().GetValue() != 1 {
			t.Errorf("metric %v", f)
		}
	}
}

// The number of new streams is limited; streams that are served already go on.
func TestAdmissionSlotsLimitNewStreams(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		new(admissionByHost).install(t, o, c)
		c.MaxNew, c.slotIdle = 1, time.Hour
	})
	all := fleet(t, o, 3)
	for i, p := range all { // the limit for one host is lower
		p.host = fmt.Sprint("host", i)
	}
	all[0].open(r)
	all[0].waitConverged(r)
	r.server.awaitNoNewStream(t)
	until := make(chan struct{})
	all[1].pauseReading(until)
	began := time.Now()
	all[1].open(r)
	eventually(t, "the second is admitted", func() bool { return len(r.server.connections()) == 2 })
	all[2].open(r)
	eventually(t, "the third has a receive slot", func() bool { return r.server.streams.Load() == 3 && len(r.server.receiveSlots) == 1 })
	o.Route("s0007.mesh", "/new")
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	all[0].waitConverged(r)
	waits := all[2].receivedCount() == 0 && len(r.server.connections()) == 2
	if !waits && time.Since(began) < maxSlotTime { // else it may have the slot
		t.Error("the third did not wait")
	}
	all[1].pauseReading(nil)
	close(until)
	all[1].waitConverged(r)
	all[2].waitConverged(r)
}

// One host gets only a part of the admission slots: other hosts do not wait for it.
func TestAdmissionSlotsOfOneHost(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		new(admissionByHost).install(t, o, c)
		c.MaxNew, c.slotIdle = hostShare, time.Hour
	})
	all := fleet(t, o, hostShare+1)
	until := make(chan struct{})
	defer close(until)
	began := time.Now()
	for _, p := range all[:hostShare] {
		p.host = "many"
		p.pauseReading(until)
		p.open(r)
	}
	eventually(t, "all of them have connected", func() bool { return r.server.streams.Load() == hostShare })
	all[hostShare].host = "one"
	all[hostShare].open(r)
	all[hostShare].waitConverged(r)
	if n, slots := len(r.server.connections()), int(time.Since(began)/maxSlotTime); n > 2+slots {
		t.Errorf("%d streams are served, after %d slots of one host and with one other", n, slots)
	}
}

// The connection of a peer that does not read the end of its stream is closed; that of a
// peer that reads it is not.
func TestConnectionOfNonReadingProxyIsClosed(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	o := smallmesh.Big(240)
	admission := &admissionByHost{}
	broken := make(chan string, 8)
	admission.hangup = func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		broken <- md["who"][0]
	}
	r := newRig(t, o, func(c *Config) {
		admission.install(t, o, c)
		c.SlowTimeout = 3 * time.Second
	})
	all := fleet(t, o, 2)
	for i, p := range all {
		p.host = fmt.Sprint("host", i)
	}
	all[0].pauseReading(make(chan struct{}))
	all[0].open(r)
	all[1].open(r)
	all[1].waitConverged(r)
	if got := <-broken; got != "host0" || len(broken) > 0 {
		t.Errorf("the connection of %s is closed, and %d more", got, len(broken))
	}
}

// No stream is admitted while a snapshot is announced: streams that are served already
// come first.
func TestAdmissionWaitsForAnnouncement(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil) // without a snapshot nothing else holds the pause
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.server.announcing.hold()
	for range 20 { // several times: it might be admitted by chance
		if err := r.server.awaitAdmissionSlot(gone, &conn{server: r.server, quota: new(hostQuota)}); err == nil {
			t.Fatal("a stream began")
		}
	}
	r.server.announcing.release()
	c := &conn{server: r.server, quota: new(hostQuota)}
	if err := r.server.awaitAdmissionSlot(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.releaseSlot()
}

// awaitNoNewStream waits until no stream has an admission slot.
func (s *Server) awaitNoNewStream(t *testing.T) {
	t.Helper()
	eventually(t, "no stream is new", func() bool { return len(s.admissionSlots) == 0 })
}

// A stream without requests does not delay others.
func TestSilentStreamsLoseReceiveSlots(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		c.MaxNew, c.NodeTimeout = 1, time.Hour
	})
	for range 3 * cap(r.server.receiveSlots) {
		if _, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "they wait", func() bool { return len(r.server.receiveSlots) == max(1, cap(r.server.receiveSlots)/hostShare) })
	p := fleet(t, o, 1)[0]
	p.open(r)
	p.waitConverged(r)
}

func TestLimitErrorsHaveRetryDelay(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		c.MaxStreams = 1
	})
	all := fleet(t, o, 2)
	all[0].open(r)
	all[0].waitConverged(r)
	all[1].open(r)
	st, _ := status.FromError(<-all[1].ended)
	if st.Code() != codes.ResourceExhausted || !strings.Contains(st.Message(), "--max-streams") {
		t.Fatalf("%v", st)
	}
	delay := time.Duration(0)
	for _, d := range st.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			delay = retry.GetRetryDelay().AsDuration()
		}
	}
	if delay < 5*time.Second || delay > time.Minute {
		t.Errorf("retry after %s", delay)
	}
}

// Plaintext peers on the machine of the control plane leave room for the hosts.
func TestPlaintextStreamsAreLimitedToHalf(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	admission := &fakeAdmission{}
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		host, err := c.Admission.Admit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		admission.peer.Store(&host)
		c.Admission, c.MaxStreams = admission, 4
	})
	host := *admission.peer.Load()
	anonymous := host
	anonymous.Anonymous = true
	all := fleet(t, o, 4)
	admission.peer.Store(&anonymous)
	for _, p := range all[:2] {
		p.open(r)
		p.waitConverged(r)
	}
	all[2].open(r)
	var err error
	select {
	case err = <-all[2].ended:
	case <-time.After(2 * time.Minute):
	}
	if st, _ := status.FromError(err); st.Code() != codes.ResourceExhausted || !strings.Contains(st.Message(), "without TLS") {
		t.Fatalf("%v", st)
	}
	admission.peer.Store(&host)
	all[3].open(r)
	all[3].waitConverged(r)
}

func TestFallsBackToInlineRoutes(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, admitAll(o))
	all := fleet(t, o, 3)
	p := all[newEnvoy]
	refused := 0
	p.rejectName = func(url stream.TypeURL, name string) error {
		if url == stream.RouteType && name == "8080" && refused == 0 {
			refused++
			return errRejectedByTest
		}
		return nil
	}
	p.open(r)
	all[relay].open(r)
	eventually(t, "the route configuration is inline", func() bool {
		got := p.content()
		return got["RouteConfiguration 8080"] != "" && got["VirtualHost 8080/s0003.mesh:8080"] == ""
	})
	all[relay].waitConverged(r)
	for _, st := range r.server.Proxies() {
		inline := len(st.VirtualHosts) == 0
		if inline != (st.ID == p.node.ID()) {
			t.Errorf("%s: by virtual host: %q", st.ID, st.VirtualHosts)
		}
	}
	if !strings.Contains(r.log.String(), "sending the whole route configuration") {
		t.Error("not logged")
	}
	o.Route("s0003.mesh", "/new")
	next := o.Snapshot(r.mesh.Snapshot())
	r.mesh.publish(next)
	eventually(t, "it follows", func() bool {
		c, ok := r.server.Convergence(next.Generation)
		return ok && !c.Done.IsZero() && c.Accepted == 2
	})
}

// Inline routes stay inline as long as the Envoy lives, whichever server it connects to;
// for a new Envoy it is decided again.
func TestInlineRoutesStayInline(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	all := fleet(t, o, 2)
	p := all[newEnvoy]
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		c.InlineRoutes = true
	})
	p.open(r)
	p.waitConverged(r)
	_ = p.close() // its context was cancelled
	before := p.receivedCount()
	r = newRig(t, o, admitAll(o))
	p.open(r)
	eventually(t, "it is back", func() bool { return r.server.convergedProxies() == 1 })
	if n := p.receivedCount() - before; n > 0 || len(p.accepted[stream.VirtualHostType]) > 0 {
		t.Errorf("%d resources sent, %d virtual hosts", n, len(p.accepted[stream.VirtualHostType]))
	}
	_ = p.close()
	p = fleet(t, o, 2)[newEnvoy]
	p.open(r)
	p.waitConverged(r)
	if len(p.accepted[stream.VirtualHostType]) == 0 {
		t.Error("a new one has no virtual hosts")
	}
}

func TestInlineRoutesSetting(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		admitAll(o)(c)
		c.InlineRoutes = true
	})
	for _, p := range fleet(t, o, 3) {
		p.open(r)
		p.waitConverged(r)
		if len(p.content()) == 0 || len(p.accepted[stream.VirtualHostType]) > 0 {
			t.Errorf("%s uses VHDS", p.kind)
		}
	}
}
