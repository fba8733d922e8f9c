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

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// A server that was restarted has nothing to say to a fleet that has everything.
func TestRestartSendsNothing(t *testing.T) {
	t.Parallel()
	streams := 1000
	if testing.Short() {
		streams = 200
	}
	o := smallmesh.Big(25)
	first := newRig(t, o, everybody(o))
	all := fleet(t, o, streams)
	for _, p := range all {
		p.open(first)
	}
	for _, p := range all {
		p.inStep(first)
	}
	eventually(t, "all is answered", func() bool { return first.server.settled() == streams })
	before := 0
	for _, p := range all {
		_ = p.close() // it was cancelled
		before += p.received()
	}
	second := newRig(t, smallmesh.Big(25), everybody(o))
	for _, p := range all {
		p.open(second)
	}
	eventually(t, "all are back", func() bool { return second.server.settled() == streams })
	after := 0
	for _, p := range all {
		after += p.received()
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
		p.inStep(second)
	}
}

// settled is how many proxies have asked for and answered everything.
func (s *Server) settled() int {
	n := 0
	for _, p := range s.Proxies() {
		if p.Connected && p.Synced {
			n++
		}
	}
	return n
}

// A tenth of the fleet stops reading: nobody else waits, each of them holds one
// response, and hears of the rest at once when it reads again.
func TestProxiesThatStopReadingDelayNobody(t *testing.T) {
	t.Parallel()
	const streams, deaf, edits = 60, 6, 10
	o := smallmesh.Big(240) // their clusters are more than fits between here and there
	r := newRig(t, o, everybody(o))
	all := fleet(t, o, streams)
	until := make(chan struct{})
	for _, p := range all[:deaf] {
		p.stop(until)
	}
	for _, p := range all {
		p.open(r)
	}
	for _, p := range all[deaf:] {
		p.inStep(r)
	}
	for i := range edits {
		o.Route("s0007.mesh", fmt.Sprint("/v", i))
		r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
		for _, p := range all[deaf:] {
			p.inStep(r)
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
		t.Fatal("a stream of who does not read cannot be asked, nor ended: it waits in sending")
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
		p.stop(nil)
	}
	close(until)
	for _, p := range all[:deaf] {
		p.inStep(r)
	}
	// Those of them that take virtual hosts by themselves were sent each table once.
	most := uint64(deaf * (len(o.Services) + 1))
	if now := r.server.Work().Sent[stream.VirtualHostType]; now.Resources-sent.Resources > most {
		t.Errorf("%d virtual hosts: not merged", now.Resources-sent.Resources)
	}
}

// No response is given to the transport behind 64 KiB that are unread: sending it
// would block, and the stream could be neither asked nor ended meanwhile.
func TestNoResponseIsSentBehindUnreadBytes(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, everybody(o))
	p := fleet(t, o, 1)[0]
	p.open(r)
	p.inStep(r)
	eventually(t, "it has answered", func() bool { return r.server.settled() == 1 })
	before := p.received()
	c := r.server.connections()[0]
	c.unwritten.Add(64 << 10) // as if it had left that unread
	o.Route("s0007.mesh", "/new")
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	eventually(t, "the stream waits, or sends", func() bool { return c.blocked.Load() || p.received() > before })
	if !c.blocked.Load() {
		t.Errorf("%d resources sent", p.received()-before)
	}
	(&outgoing{conn: c, size: 64 << 10}).Written()
	p.inStep(r)
}

func TestStreamOfNonReadingProxyIsClosed(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(240)
	r := newRig(t, o, func(c *Config) {
		everybody(o)(c)
		c.SlowTimeout = 3 * time.Second // the other one may have to wait for its turn to read
	})
	all := fleet(t, o, 2)
	all[0].stop(make(chan struct{}))
	all[0].open(r)
	all[1].open(r)
	eventually(t, "it is cut off", func() bool {
		return strings.Contains(r.log.String(), "proxy does not read")
	})
	all[1].inStep(r)
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

// Only so many streams are new at a time; those that are served are served on.
func TestAdmissionSlotsLimitNewStreams(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		new(hosts).instead(t, o, c)
		c.MaxNew, c.slotIdle = 1, time.Hour
	})
	all := fleet(t, o, 3)
	for i, p := range all { // of one host fewer would be new
		p.host = fmt.Sprint("host", i)
	}
	all[0].open(r)
	all[0].inStep(r)
	r.server.awaitOld(t)
	until := make(chan struct{})
	all[1].stop(until)
	began := time.Now()
	all[1].open(r)
	eventually(t, "the second is new", func() bool { return len(r.server.connections()) == 2 })
	all[2].open(r)
	eventually(t, "the third is heard", func() bool { return r.server.streams.Load() == 3 && len(r.server.receiveSlots) == 1 })
	o.Route("s0007.mesh", "/new")
	r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
	all[0].inStep(r)
	waits := all[2].received() == 0 && len(r.server.connections()) == 2
	if !waits && time.Since(began) < maxSlotTime { // else it is its turn
		t.Error("the third did not wait")
	}
	all[1].stop(nil)
	close(until)
	all[1].inStep(r)
	all[2].inStep(r)
}

// Of one host only a part is new at a time, whatever room there is: another one
// does not wait for it.
func TestAdmissionSlotsOfOneHost(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		new(hosts).instead(t, o, c)
		c.MaxNew, c.slotIdle = hostShare, time.Hour
	})
	all := fleet(t, o, hostShare+1)
	until := make(chan struct{})
	defer close(until)
	began := time.Now()
	for _, p := range all[:hostShare] {
		p.host = "many"
		p.stop(until)
		p.open(r)
	}
	eventually(t, "all of them have come", func() bool { return r.server.streams.Load() == hostShare })
	all[hostShare].host = "one"
	all[hostShare].open(r)
	all[hostShare].inStep(r)
	if n, turns := len(r.server.connections()), int(time.Since(began)/maxSlotTime); n > 2+turns {
		t.Errorf("%d streams are served, after %d turns of one host and beside one other", n, turns)
	}
}

// Who does not read the end of its stream is hung up on, and who reads it is not.
func TestConnectionOfNonReadingProxyIsClosed(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(240)
	admission := &hosts{}
	broken := make(chan string, 8)
	admission.hangup = func(ctx context.Context) {
		md, _ := metadata.FromIncomingContext(ctx)
		broken <- md["who"][0]
	}
	r := newRig(t, o, func(c *Config) {
		admission.instead(t, o, c)
		c.SlowTimeout = 3 * time.Second
	})
	all := fleet(t, o, 2)
	for i, p := range all {
		p.host = fmt.Sprint("host", i)
	}
	all[0].stop(make(chan struct{}))
	all[0].open(r)
	all[1].open(r)
	all[1].inStep(r)
	if got := <-broken; got != "host0" || len(broken) > 0 {
		t.Errorf("%s is hung up on, and %d more", got, len(broken))
	}
}

// While a snapshot is announced no stream begins: those that are served already
// come first.
func TestAdmissionWaitsForAnnouncement(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, nil) // without a snapshot nothing else holds or releases
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	r.server.announcing.hold()
	for range 20 { // by chance it would be let in, now and then
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

// awaitOld waits until no stream is new.
func (s *Server) awaitOld(t *testing.T) {
	t.Helper()
	eventually(t, "no stream is new", func() bool { return len(s.admissionSlots) == 0 })
}

// Who says nothing keeps nobody from being heard.
func TestSilentStreamsLoseReceiveSlots(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		everybody(o)(c)
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
	p.inStep(r)
}

func TestLimitErrorsHaveRetryDelay(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		everybody(o)(c)
		c.MaxStreams = 1
	})
	all := fleet(t, o, 2)
	all[0].open(r)
	all[0].inStep(r)
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

// A proxy that refuses a table in pieces is sent it whole, at once, and the
// status says how it travels.
// Whoever is on the machine of the control plane leaves room for the hosts.
func TestPlaintextStreamsAreLimitedToHalf(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	admission := &fakeAdmission{}
	r := newRig(t, o, func(c *Config) {
		everybody(o)(c)
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
		p.inStep(r)
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
	all[3].inStep(r)
}

func TestFallsBackToInlineRoutes(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, everybody(o))
	all := fleet(t, o, 3)
	p := all[newEnvoy]
	refused := 0
	p.refuse = func(url stream.TypeURL, name string) error {
		if url == stream.RouteType && name == "8080" && refused == 0 {
			refused++
			return errRefusedByTest
		}
		return nil
	}
	p.open(r)
	all[relay].open(r)
	eventually(t, "the table is whole", func() bool {
		got := p.content()
		return got["RouteConfiguration 8080"] != "" && got["VirtualHost 8080/s0003.mesh:8080"] == ""
	})
	all[relay].inStep(r)
	for _, st := range r.server.Proxies() {
		whole := len(st.VirtualHosts) == 0
		if whole != (st.ID == p.node.ID()) {
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

// Once whole, a table stays whole for as long as its Envoy lives, whichever server
// it is connected to; for one that starts anew it is decided anew.
func TestInlineRoutesStayInline(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	all := fleet(t, o, 2)
	p := all[newEnvoy]
	r := newRig(t, o, func(c *Config) {
		everybody(o)(c)
		c.InlineRoutes = true
	})
	p.open(r)
	p.inStep(r)
	_ = p.close() // it was cancelled
	before := p.received()
	r = newRig(t, o, everybody(o))
	p.open(r)
	eventually(t, "it is back", func() bool { return r.server.settled() == 1 })
	if n := p.received() - before; n > 0 || len(p.holds[stream.VirtualHostType]) > 0 {
		t.Errorf("%d resources sent, %d virtual hosts", n, len(p.holds[stream.VirtualHostType]))
	}
	_ = p.close()
	p = fleet(t, o, 2)[newEnvoy]
	p.open(r)
	p.inStep(r)
	if len(p.holds[stream.VirtualHostType]) == 0 {
		t.Error("a new one has no virtual hosts")
	}
}

func TestInlineRoutesSetting(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, func(c *Config) {
		everybody(o)(c)
		c.InlineRoutes = true
	})
	for _, p := range fleet(t, o, 3) {
		p.open(r)
		p.inStep(r)
		if len(p.content()) == 0 || len(p.holds[stream.VirtualHostType]) > 0 {
			t.Errorf("%s has virtual hosts by themselves", p.kind)
		}
	}
}
