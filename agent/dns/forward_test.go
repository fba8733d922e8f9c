package dns

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// fakeUpstream is a nameserver of a test, at one port by UDP and TCP.
type fakeUpstream struct {
	at      string
	queries atomic.Int64
	mu      sync.Mutex
	names   map[string]int // queries by name
}

// newUpstream answers as the function does; nil means that it stays silent.
func newUpstream(t testing.TB, answer func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg) *fakeUpstream {
	t.Helper()
	u := &fakeUpstream{names: map[string]int{}}
	udp, tcp, err := listenBoth(t.Context(), loopback()[0])
	if err != nil {
		t.Fatal(err)
	}
	u.at = udp.LocalAddr().String()
	handler := mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		u.queries.Add(1)
		u.mu.Lock()
		u.names[mdns.CanonicalName(q.Question[0].Name)]++
		u.mu.Unlock()
		if r := answer(w, q); r != nil {
			_ = w.WriteMsg(r)
		}
	})
	for _, srv := range []*mdns.Server{{PacketConn: udp, Handler: handler}, {Listener: tcp, Handler: handler}} {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = srv.ActivateAndServe()
		}()
		<-started
		t.Cleanup(func() {
			_ = srv.Shutdown()
			<-ended
		})
	}
	return u
}

func (u *fakeUpstream) askedFor(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.names[name]
}

// world answers names of the world: 192.0.2.1 for all but those that begin with "no".
func world(_ mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
	r := new(mdns.Msg)
	r.SetReply(q)
	name := q.Question[0].Name
	switch {
	case q.Question[0].Qtype == mdns.TypeHINFO, strings.HasPrefix(strings.ToLower(name), "no"):
		r.Rcode = mdns.RcodeNameError
	case q.Question[0].Qtype == mdns.TypeA:
		rr, _ := mdns.NewRR(name + " 300 IN A 192.0.2.1")
		r.Answer = append(r.Answer, rr)
	}
	return r
}

// TestOthersAreAsked: what is not in the table is answered as the nameserver does, by the transport
// of the client.
func TestOthersAreAsked(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, world)
	s, at := startWith(t, shop(t), u.at)
	for _, network := range []string{"udp", "tcp"} {
		if got := said(ask(t, network, at, "www.example.", mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
			t.Errorf("by %s: %s", network, got)
		}
		if got := said(ask(t, network, at, "No.such.example.", mdns.TypeA)); got != "NXDOMAIN" {
			t.Errorf("by %s: %s", network, got)
		}
	}
	r := ask(t, "udp", at, "www.example.", mdns.TypeA, func(m *mdns.Msg) { m.SetEdns0(1232, false) })
	if r.Authoritative || !r.RecursionAvailable || r.IsEdns0() == nil {
		t.Errorf("flags %+v, EDNS %v", r.MsgHdr, r.IsEdns0())
	}
	if n := u.askedFor("api.lab."); n > 0 || said(ask(t, "udp", at, "api.lab.", mdns.TypeA)) != "NOERROR; A 240.240.0.1" {
		t.Errorf("the nameserver was asked for a name of the mesh")
	}
	if st := s.Status(); st.Forwarded != 5 || st.Mesh != 1 || st.Queries != 6 || st.Failed > 0 {
		t.Errorf("status %+v", st)
	}
}

// startWith is start with nameservers at any port.
func startWith(t testing.TB, table *Table, upstreams ...string) (*Server, string) {
	t.Helper()
	// Patient: a busy machine is not an upstream that does not answer.
	s, at := startEdited(t, table, func(s *Server) { s.forward.nextAfter = time.Minute })
	s.forward.use(t, upstreams)
	return s, at
}

// startHasty is startWith for tests of upstreams that do not answer.
func startHasty(t testing.TB, table *Table, upstreams ...string) (*Server, string) {
	t.Helper()
	s, at := startEdited(t, table, func(s *Server) { s.forward.nextAfter = 500 * time.Millisecond })
	s.forward.patience.Store(&patience{timeout: defaultTimeout, attempts: 1})
	s.forward.use(t, upstreams)
	return s, at
}

func (f *forwarder) use(t testing.TB, upstreams []string) {
	t.Helper()
	list := make([]*upstream, len(upstreams))
	for i, a := range upstreams {
		list[i] = &upstream{address: mustAddr(t, a)}
	}
	f.upstreams.Store(&list)
}

// TestNoNameserver: a host without one has names of the mesh, and SERVFAIL at once for others.
func TestNoNameserver(t *testing.T) {
	t.Parallel()
	silent := newUpstream(t, func(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg { return nil })
	live := newUpstream(t, world)
	var lc net.ListenConfig
	free, err := lc.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := free.LocalAddr().String()
	_ = free.Close() // nobody is there
	_, at := startWith(t, shop(t))
	if got := said(ask(t, "udp", at, "www.example.", mdns.TypeA)); got != "SERVFAIL" {
		t.Errorf("without a nameserver: %s", got)
	}
	s, at := startWith(t, shop(t), closed)
	if got := said(ask(t, "udp", at, "www.example.", mdns.TypeA)); got != "SERVFAIL" {
		t.Errorf("nobody is there: %s", got)
	}
	if st := s.Status(); st.Upstreams[0].Failures != 1 || st.Upstreams[0].LastError == "" || st.Failed != 1 {
		t.Errorf("status %+v", st)
	}
	if got := said(ask(t, "udp", at, "api.lab.", mdns.TypeA)); got != "NOERROR; A 240.240.0.1" {
		t.Errorf("a name of the mesh: %s", got)
	}
	s, at = startHasty(t, shop(t), silent.at, closed, live.at)
	for i := range 5 {
		if got := said(ask(t, "udp", at, fmt.Sprintf("www%d.example.", i), mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
			t.Errorf("the third one answers: %s", got)
		}
	}
	if order := s.forward.order(); order[0].address.String() != live.at {
		t.Error("one that does not answer is still asked first")
	}
	_, at = startHasty(t, shop(t), silent.at, silent.at)
	if got := said(ask(t, "udp", at, "www.example.", mdns.TypeA)); got != "SERVFAIL" {
		t.Errorf("nobody answers: %s", got)
	}
}

// TestForeignAnswers: what does not answer the query is not taken for an answer: another id, another
// name, another type, a query, or no message at all.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		if q.Question[0].Qtype == mdns.TypeHINFO {
			return world(w, q)
		}
		lie := func(edit func(r *mdns.Msg)) {
			r := world(w, q)
			rr, _ := mdns.NewRR(q.Question[0].Name + " 300 IN A 203.0.113.66")
			r.Answer = []mdns.RR{rr}
			edit(r)
			_ = w.WriteMsg(r)
		}
		if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
			_, _ = w.Write([]byte("no message"))
		}
		lie(func(r *mdns.Msg) { r.Id++ })
		lie(func(r *mdns.Msg) { r.Question[0].Name = "other.example." })
		lie(func(r *mdns.Msg) { r.Question[0].Qtype = mdns.TypeAAAA })
		lie(func(r *mdns.Msg) { r.Question = nil })
		lie(func(r *mdns.Msg) { r.Response = false })
		return world(w, q)
	})
	_, at := startWith(t, shop(t), u.at)
	for _, network := range []string{"udp", "tcp"} {
		if got := said(ask(t, network, at, "www.example.", mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
			t.Errorf("by %s: %s", network, got)
		}
	}
}

// TestLargeAnswers: an answer that is larger than the client takes it is cut, also if the nameserver
// did not, and whole by TCP.
func TestLargeAnswers(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(_ mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		r := new(mdns.Msg)
		r.SetReply(q)
		for i := range 200 {
			rr, _ := mdns.NewRR(fmt.Sprintf("%s 300 IN A 192.0.2.%d", q.Question[0].Name, i))
			r.Answer = append(r.Answer, rr)
		}
		return r // 200 addresses without compression
	})
	_, at := startWith(t, shop(t), u.at)
	r := ask(t, "udp", at, "www.example.", mdns.TypeA)
	r.Compress = true
	if b, err := r.Pack(); err != nil || len(b) > 512 || !r.Truncated {
		t.Errorf("%d bytes, truncated %v, %v", len(b), r.Truncated, err)
	}
	if r := ask(t, "tcp", at, "www.example.", mdns.TypeA); len(r.Answer) != 200 || r.Truncated {
		t.Errorf("by TCP %d records, truncated %v", len(r.Answer), r.Truncated)
	}
}

// TestBeforeTheFirstTable: until the control plane has answered, nobody may say of a name that it
// does not exist. What exists elsewhere is answered.
func TestBeforeTheFirstTable(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, world)
	table := &Table{}
	_, at := startWith(t, table, u.at)
	want := func(name string, typ uint16, want string) {
		t.Helper()
		if got := said(ask(t, "udp", at, name, typ)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	want("www.example.", mdns.TypeA, "NOERROR; A 192.0.2.1")
	want("no.lab.", mdns.TypeA, "SERVFAIL")
	want("www.example.", mdns.TypeAAAA, "SERVFAIL")
	table.Absent()
	want("no.lab.", mdns.TypeA, "NXDOMAIN")
	table.Update(nil, nil, true)
	want("no.lab.", mdns.TypeA, "NXDOMAIN")
	want("www.example.", mdns.TypeAAAA, "NOERROR")
	if table.Absent(); table.State() != StateLoaded {
		t.Error("an earlier control plane takes the table away")
	}
}

// TestLoop: a nameserver that sends everything back is found, also while it serves, and left out; a
// query never becomes many.
func TestLoop(t *testing.T) {
	t.Parallel()
	var server atomic.Pointer[string]
	var back atomic.Bool
	stub := newUpstream(t, func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		if !back.Load() {
			return world(w, q)
		}
		c := &mdns.Client{Timeout: envoytest.Attempt}
		r, _, err := c.Exchange(q, *server.Load())
		if err != nil {
			return nil
		}
		return r
	})
	s, at := startHasty(t, shop(t), stub.at)
	server.Store(&at)
	s.forward.probeAll(t.Context())
	if s.Status().Upstreams[0].Loops {
		t.Fatal("a good nameserver counts as a loop")
	}
	back.Store(true)
	if got := said(ask(t, "udp", at, "www.example.", mdns.TypeA)); got != "SERVFAIL" {
		t.Errorf("in a loop: %s", got)
	}
	if n := stub.askedFor("www.example."); n > 4 {
		t.Errorf("one query became %d", n)
	}
	s.forward.probeAll(t.Context())
	if st := s.Status(); !st.Upstreams[0].Loops || len(st.Remarks()) == 0 || !strings.Contains(st.Remarks()[0], "DNS loop") {
		t.Errorf("the loop is not found: %+v, %q", st, st.Remarks())
	}
	before := stub.askedFor("again.example.")
	if got := said(ask(t, "udp", at, "again.example.", mdns.TypeA)); got != "SERVFAIL" || stub.askedFor("again.example.") > before {
		t.Errorf("a nameserver that loops is asked: %s", got)
	}
	back.Store(false)
	s.forward.probeAll(t.Context())
	if got := said(ask(t, "udp", at, "again.example.", mdns.TypeA)); got != "NOERROR; A 192.0.2.1" || s.Status().Upstreams[0].Loops {
		t.Errorf("after the loop: %s", got)
	}
}

// inFlight is how many queries are asked now.
func (f *forwarder) inFlight() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.flying)
}

// TestFlood: of clients that ask for more than is forwarded at one time, those that have waited
// longest get SERVFAIL; names of the mesh are answered as always; those that ask the same share one
// query.
func TestFlood(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	u := newUpstream(t, func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		if q.Question[0].Qtype != mdns.TypeHINFO && !strings.HasPrefix(q.Question[0].Name, "fast") {
			<-release
		}
		return world(w, q)
	})
	s, at := startWith(t, shop(t), u.at)
	s.forward.patience.Store(&patience{timeout: maxTimeout, attempts: 1})
	if one := said(ask(t, "udp", at, "fast.example.", mdns.TypeA)); one != "NOERROR; A 192.0.2.1" {
		t.Fatalf("a name whose nameserver answers: %s", one)
	}
	s.forward.mu.Lock()
	s.forward.quick = quickest{began: time.Now().Add(time.Hour), since: 1} // however busy the machine is
	s.forward.mu.Unlock()
	var clients sync.WaitGroup
	var got [maxForwarded]string
	for i := range maxForwarded {
		clients.Go(func() {
			got[i] = said(ask(t, "udp", at, fmt.Sprintf("w%d.example.", i), mdns.TypeA))
		})
		await(t, "a query", func() bool { return s.forward.inFlight() == i+1 })
	}
	last := fmt.Sprintf("W%d.example.", maxForwarded-1)
	var same [20]string
	for i := range same {
		clients.Go(func() { same[i] = said(ask(t, "udp", at, last, mdns.TypeA)) })
	}
	await(t, "the same queries", func() bool { return s.forward.waiting.Load() == maxForwarded+int64(len(same)) })
	const more = 3
	for i := range more {
		if one := said(ask(t, "udp", at, fmt.Sprintf("fast%d.example.", i), mdns.TypeA)); one != "NOERROR; A 192.0.2.1" {
			t.Errorf("a name whose nameserver answers, beside %d slow ones: %s", maxForwarded, one)
		}
		// Each answer leaves a place free.
		clients.Go(func() { _ = ask(t, "udp", at, fmt.Sprintf("more%d.example.", i), mdns.TypeA) })
		await(t, "another slow name", func() bool { return s.forward.inFlight() == maxForwarded })
	}
	if one := said(ask(t, "udp", at, "api.lab.", mdns.TypeA)); one != "NOERROR; A 240.240.0.1" {
		t.Errorf("a name of the mesh: %s", one)
	}
	close(release)
	clients.Wait()
	for i, text := range append(got[:], same[:]...) {
		want := "NOERROR; A 192.0.2.1"
		if i < more {
			want = "SERVFAIL"
		}
		if text != want {
			t.Errorf("client %d: %s, want %s", i, text, want)
		}
	}
	if st := s.Status(); st.Full != more || st.Failed != more {
		t.Errorf("status %+v", st)
	}
	if n := u.askedFor(strings.ToLower(last)); n != 1 {
		t.Errorf("the nameserver was asked %d times for one name", n)
	}
	if s.forward.inFlight() != 0 || s.forward.waiting.Load() != 0 {
		t.Error("something is left")
	}
}

// TestShutdown: Run ends although clients wait for an answer.
func TestShutdown(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg { return nil })
	s, err := New(Config{Logger: quiet(), Table: shop(t), Addresses: loopback(), ResolvConf: t.TempDir() + "/none", Stub: t.TempDir() + "/none"})
	if err != nil {
		t.Fatal(err)
	}
	list := []*upstream{{address: mustAddr(t, u.at)}}
	s.forward.upstreams.Store(&list)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	await(t, "listening", func() bool { return s.listening.Load() != nil })
	conn, err := mdns.DialTimeout("udp", (*s.listening.Load())[0], envoytest.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	m := new(mdns.Msg)
	m.SetQuestion("www.example.", mdns.TypeA)
	if err := conn.WriteMsg(m); err != nil {
		t.Fatal(err)
	}
	await(t, "the query", func() bool { return u.askedFor("www.example.") > 0 })
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(envoytest.Patience):
		t.Fatal("it does not end")
	}
}
