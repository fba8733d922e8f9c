package stream

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/types/known/anypb"
)

func TestMakeBeforeBreakOrder(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.set(gen(1, "c/a=1", "c/b=1", "e/a=1", "e/b=1", "l/x=1", "r/x=1"))
	m.wantLog("c+a=1 c+b=1", "e+a=1 e+b=1", "l+x=1", "r+x=1")

	// Everything changes at once, and something is removed: make before break.
	m.set(gen(2, "c/a=2", "c/n=1", "e/a=1", "e/n=1", "l/x=2", "l/y=1", "r/x=2", "r/y=1"))
	m.wantLog("c+a=2 c+n=1", "e+a=1 e+n=1", "l+x=2 l+y=1", "r+x=2 r+y=1", "c-b")

	m.set(gen(3, "c/a=2", "e/a=1", "l/x=2", "r/x=2"))
	m.wantLog("l-y", "c-n")
	m.wantRuns("c/a=2", "e/a=1", "l/x=2", "r/x=2")
	for _, st := range s.Status() {
		if st.Pending || st.Unknown > 0 || st.ConvergedGeneration != 3 {
			t.Errorf("not converged: %+v", st)
		}
	}
}

func TestConvergedStreamKeepsOnlyPointers(t *testing.T) {
	t.Parallel()
	in := new(Interner)
	g := gen(1, "c/a=1", "e/a=1", "l/x=1", "r/x=1")
	var sets []*nameSet
	for range 2 {
		s := NewServer(ServerConfig{Interner: in})
		newModel(t, s).set(g)
		for _, st := range s.order {
			if st.have != g.merged(st.url) || st.pending != nil || st.initialVersions != nil {
				t.Errorf("%s keeps more than a pointer: %+v", st.url, st)
			}
		}
		sets = append(sets, s.typeOf(EndpointType).sub.set)
	}
	if sets[0] == nil || sets[0] != sets[1] {
		t.Error("two streams with equal subscriptions do not share their set of names")
	}
}

func TestEndpointUpdatesDoNotWaitForClusters(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.set(gen(1, "c/a=1", "c/b=1", "e/a=1", "e/b=1"))
	m.got()
	m.mute[ClusterType] = true
	m.set(gen(2, "c/a=2", "c/b=1", "e/a=1", "e/b=1"))
	m.set(gen(3, "c/a=3", "c/b=1", "e/a=2", "e/b=2"))
	// b does not wait for a, whose endpoints are sent behind a's next update.
	m.wantLog("c+a=2", "e+a=1", "e+b=2")
}

func TestNackNamesRejectedClusters(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.set(gen(1, "c/a=1", "c/b=1", "e/a=1", "e/b=1"))
	m.got()
	// b is rejected, a runs, and new did not exist before.
	m.set(gen(2, "c/a=2", "c/b=bad2", "c/new=bad", "e/a=1", "e/b=1"))
	m.wantLog("c+a=2 c+b=bad2 c+new=bad", "c+a=2 c+b=1", "e+a=1 e+b=1", "c-new")
	m.wantRuns("c/a=2", "c/b=1", "e/a=1", "e/b=1")
	st := m.status(ClusterType)
	if len(st.Rejected) != 2 || st.Rejected[0].Name != "b" || st.Unknown != 0 || !strings.Contains(st.LastError, "does not compute") {
		t.Errorf("status %+v", st)
	}
	// The same bytes are not tried again; other bytes are.
	m.set(gen(3, "c/a=3", "c/b=bad2", "c/new=bad", "e/a=1", "e/b=1"))
	m.wantLog("c+a=3", "e+a=1")
	m.set(gen(4, "c/a=3", "c/b=4", "e/a=1", "e/b=1"))
	m.wantLog("c+b=4", "e+b=1")
	if st := m.status(ClusterType); st.LastError != "" || len(st.Rejected) > 0 {
		t.Errorf("nothing is rejected, but the status is %+v", st)
	}
}

func TestBisectionFindsRejectedListener(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.set(gen(1, "l/a=1", "l/b=1", "l/c=1", "l/d=1", "l/e=1"))
	m.got()
	m.set(gen(2, "l/a=2", "l/b=2", "l/c=2", "l/d=worse", "l/e=2"))
	m.wantRuns("l/a=2", "l/b=2", "l/c=2", "l/d=1", "l/e=2")
	if st := m.status(ListenerType); len(st.Rejected) != 1 || st.Rejected[0].Name != "d" || st.Unknown != 0 {
		t.Errorf("status %+v", st)
	}
	if m.nacks > 4 {
		t.Errorf("%d NACKs to find one of five", m.nacks)
	}
}

func TestRejectedAfterReconnectIsNotRemoved(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "c/b=1", "e/a=1", "e/b=1"))
	m.got()
	// Another server does not have the bytes of b=1.
	s := NewServer(ServerConfig{})
	m.connect(s)
	m.set(gen(7, "c/a=1", "c/b=bad", "e/a=1", "e/b=1"))
	m.wantLog("c+b=bad", "e+b=1")
	m.wantRuns("c/a=1", "c/b=1", "e/a=1", "e/b=1")
	if st := m.status(ClusterType); st.Unknown != 1 {
		t.Errorf("not shown as unknown: %+v", st)
	}
	if u := s.UnacknowledgedNames()[ClusterType]; len(u) != 1 || u[0] != "b" {
		t.Errorf("unknown %v", u)
	}
}

func TestNackDetailsNameRejectedResources(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=1", "c/b=1", "c/c=1"))
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType)}))
	r := s.Next(start).Message()
	d, err := anypb.New(&errdetails.ResourceInfo{ResourceType: string(ClusterType), ResourceName: "b", Description: "no such filter"})
	must(t, err)
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{
		TypeUrl: string(ClusterType), ResponseNonce: r.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Message: "a and c are fine", Details: []*anypb.Any{d}},
	}))
	if r := s.Next(start).Message(); r != nil {
		t.Errorf("sent although nothing is unknown: %v", r)
	}
	st := s.Status()[0]
	if st.Unknown != 0 || st.Resources != 2 || len(st.Rejected) != 1 || st.Rejected[0].Reason != "no such filter" {
		t.Errorf("status %+v", st)
	}
	// The relay reports b as rejected until b is sent again, even if only as removed.
	s.SetGeneration(gen(2, "c/a=1", "c/c=1"))
	r = s.Next(start).Message()
	if got := r.GetRemovedResources(); len(got) != 1 || got[0] != "b" {
		t.Fatalf("removed %q", got)
	}
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), ResponseNonce: r.GetNonce()}))
	if r := s.Next(start).Message(); r != nil {
		t.Errorf("sent again: %v", r)
	}
}

// TestRelayIsSentAcceptedVersionAfterRejection: the version that a relay has is sent
// again, because it rejected another version of that name.
func TestRelayIsSentAcceptedVersionAfterRejection(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, "c/a=2"))
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), InitialResourceVersions: map[string]string{"a": "1"}}))
	r := s.Next(start).Message()
	d, err := anypb.New(&errdetails.ResourceInfo{ResourceType: string(ClusterType), ResourceName: "a"})
	must(t, err)
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{
		TypeUrl: string(ClusterType), ResponseNonce: r.GetNonce(), ErrorDetail: &rpcstatus.Status{Details: []*anypb.Any{d}},
	}))
	if r := s.Next(start).Message(); r != nil {
		t.Errorf("sent although nothing has changed: %v", r)
	}
	s.SetGeneration(gen(2, "c/a=1"))
	r = s.Next(start).Message()
	if len(r.GetResources()) != 1 || r.GetResources()[0].GetVersion() != "1" {
		t.Fatalf("sent %v", r)
	}
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType), ResponseNonce: r.GetNonce()}))
	if r := s.Next(start).Message(); r != nil || len(s.Status()[0].Rejected) > 0 {
		t.Errorf("sent again %v, status %+v", r, s.Status())
	}
}

func TestReconnectSendsOnlyChanges(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	words := []string{"c/a=1", "c/b=1", "e/a=1", "e/b=1", "l/x=1", "r/x=1"}
	m.set(gen(1, words...))
	m.sent = 0
	s := NewServer(ServerConfig{})
	m.connect(s)
	m.set(gen(9, words...))
	if m.sent != 0 {
		t.Errorf("%d resources sent to a peer that has them all: %s", m.sent, m.got())
	}
	for _, st := range s.Status() {
		if st.ConvergedGeneration != 9 {
			t.Errorf("not converged: %+v", st)
		}
	}
	m.got()

	// What changed meanwhile is sent, with its dependents, and nothing else.
	m.connect(NewServer(ServerConfig{}))
	m.set(gen(10, "c/b=2", "e/b=1", "l/x=2", "r/x=1"))
	m.wantLog("c+b=2", "e+b=1", "l+x=2", "r+x=1", "c-a")
}

func TestReconnectResendsUnacknowledgedNames(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1"))
	m.got()
	m.runs[ClusterType]["a"] = "untold" // as after a NACK that did not arrive
	m.connect(NewServer(ServerConfig{Unacknowledged: map[TypeURL][]string{ClusterType: {"a"}}}))
	m.set(gen(1, "c/a=1", "e/a=1"))
	m.wantLog("c+a=1", "e+a=1")
}

// A stream may end before the peer has subscribed to all types again: unacknowledged names
// of the others are kept for the next stream.
func TestUnacknowledgedNamesSurviveShortStream(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "r/x=1"))
	m.got()
	m.runs[ListenerType]["x"] = "untold" // as after a NACK that did not arrive

	short := NewServer(ServerConfig{Unacknowledged: map[TypeURL][]string{ListenerType: {"x"}}})
	err := short.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ClusterType)})
	if err != nil {
		t.Fatal(err)
	}
	m.connect(NewServer(ServerConfig{Unacknowledged: short.UnacknowledgedNames()}))
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "r/x=1"))
	m.wantLog("l+x=1", "r+x=1")
}

func TestGateOpensAfterTimeout(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.mute[ClusterType] = true
	m.set(gen(1, "c/a=1", "e/a=1", "l/x=1", "r/x=1"))
	m.wantLog("c+a=1", "e+a=1")
	if got := s.NextDeadline(); !got.Equal(start.Add(20 * time.Second)) {
		t.Fatalf("deadline %v", got)
	}
	m.now = start.Add(20*time.Second - 1)
	m.run()
	m.wantLog("")
	m.now = start.Add(20 * time.Second)
	m.run()
	m.wantLog("l+x=1")
	timeouts := 0
	for _, e := range s.Events() {
		if e.Kind == EventGateTimeout {
			timeouts++
		}
	}
	if timeouts != 1 {
		t.Errorf("%d gates counted, want 1", timeouts)
	}
	// A peer that never answers does not make the server keep more and more.
	for i := range 100 {
		m.now = m.now.Add(21 * time.Second)
		m.set(gen(uint64(i+2), "c/a="+strconv.Itoa(i+2), "e/a=1", "l/x=1"))
	}
	if n := len(s.typeOf(ClusterType).pending.sent); n > maxInflight+maxAccepted {
		t.Errorf("%d responses unanswered", n)
	}
}

func TestHoldRemovals(t *testing.T) {
	t.Parallel()
	m := newModel(t, NewServer(ServerConfig{}))
	m.set(gen(1, "c/a=1", "c/b=1", "e/a=1", "e/b=1"))
	s := NewServer(ServerConfig{})
	m.connect(s)
	m.got()
	g := gen(2, "c/a=1", "e/a=1")
	g.HoldRemovals = true
	m.set(g)
	m.wantLog("")
	m.set(gen(3, "c/a=1", "e/a=1"))
	m.wantLog("c-b")
}

func TestSubscribeByName(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	m := newModel(t, s)
	m.set(gen(1, "s/k=1"))
	m.subscribed[SecretType] = map[string]bool{}
	m.request(SecretType, []string{"k", "none"}, nil)
	m.run()
	m.wantLog("s+k=1", "s-none")
	m.request(SecretType, []string{"k"}, nil)
	m.run()
	m.wantLog("s+k=1") // subscribed again, sent again
	m.set(gen(2, "s/k=1", "s/none=1"))
	m.wantLog("s+none=1")
	m.send(&discovery.DeltaDiscoveryRequest{TypeUrl: string(SecretType), ResourceNamesUnsubscribe: []string{"k"}})
	m.set(gen(3, "s/k=2", "s/none=1"))
	m.wantLog("")
}

func TestWildcardSubscriptionGetsEmptyResponse(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1))
	must(t, s.Request(start, &discovery.DeltaDiscoveryRequest{TypeUrl: string(ListenerType)}))
	if r := s.Next(start).Message(); r == nil || len(r.GetResources()) != 0 {
		t.Errorf("no response to a wildcard subscription: %v", r)
	}
	if r := s.Next(start).Message(); r != nil {
		t.Errorf("and again: %v", r)
	}
}

func TestLargeResponsesAreSplit(t *testing.T) {
	t.Parallel()
	s := NewServer(ServerConfig{MaxResponse: 10})
	m := newModel(t, s)
	m.set(gen(1, "c/a=12345", "c/b=12345", "c/c=12345", "e/a=1", "e/b=1", "e/c=1"))
	m.wantLog("c+a=12345", "e+a=1", "c+b=12345", "e+b=1", "c+c=12345", "e+c=1")
}

func TestLimits(t *testing.T) {
	t.Parallel()
	many := make([]string, 11)
	for i := range many {
		many[i] = strconv.Itoa(i)
	}
	for name, reqs := range map[string][]*discovery.DeltaDiscoveryRequest{
		"long-type": {{TypeUrl: strings.Repeat("t", 9)}},
		"names":     {{TypeUrl: "t", ResourceNamesSubscribe: many}},
		"names-sum": {{TypeUrl: "t", ResourceNamesSubscribe: many[:6]}, {TypeUrl: "u", ResourceNamesSubscribe: many[:6]}},
		"long-name": {{TypeUrl: "t", ResourceNamesSubscribe: []string{"123456789"}}},
		"versions":  {{TypeUrl: "t", InitialResourceVersions: map[string]string{"a": "123456789"}}},
		"version-sum": {
			{TypeUrl: "t", InitialResourceVersions: map[string]string{"1": "1", "2": "1", "3": "1", "4": "1", "5": "1", "6": "1"}},
			{TypeUrl: "u", InitialResourceVersions: map[string]string{"1": "1", "2": "1", "3": "1", "4": "1", "5": "1"}},
		},
		"given-up":      {{TypeUrl: "t", ResourceNamesUnsubscribe: many}},
		"long-given-up": {{TypeUrl: "t", ResourceNamesUnsubscribe: []string{"123456789"}}},
		"types":         {{TypeUrl: "t"}, {TypeUrl: "u"}, {TypeUrl: "v"}},
	} {
		s := NewServer(ServerConfig{MaxNames: 10, MaxNameBytes: 8, MaxTypes: 2})
		var err error
		for _, r := range reqs {
			err = s.Request(start, r)
		}
		if !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A request without a type URL exceeds no limit.
func TestRequestWithoutTypeURL(t *testing.T) {
	t.Parallel()
	err := NewServer(ServerConfig{}).Request(start, &discovery.DeltaDiscoveryRequest{})
	if err == nil || errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "no type URL") {
		t.Error(err)
	}
}

func TestRejectedNamesInErrorMessage(t *testing.T) {
	t.Parallel()
	names := []string{"8080", "a", "outbound|80||x.ns.svc", "outbound|80||x.ns.svc.b"}
	for _, c := range []struct {
		message string
		want    string
		certain bool
	}{
		{"Error adding/updating cluster(s) outbound|80||x.ns.svc: bad, a: worse", "a,outbound|80||x.ns.svc", true},
		{"Error adding/updating listener(s) 8080: error adding listener: a\n", "8080", true},
		{"route 8080: duplicate", "8080", false},
		{"port 18080 is bad", "", false},
		{"bananas", "", false},
		{"outbound|80||x.ns.svc.b is bad.", "outbound|80||x.ns.svc.b", false},
		{"the end is 8080.", "8080", false},
	} {
		got, certain := rejectedIn(c.message, names)
		if strings.Join(got, ",") != c.want || certain != c.certain {
			t.Errorf("%q: %v certain=%v", c.message, got, certain)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A wildcard subscription after subscriptions by name costs one list, and may be repeated
// often. It counts allocations, so it is not parallel.
func TestLateWildcardIsCheap(t *testing.T) {
	var words []string
	for i := range 5000 {
		words = append(words, fmt.Sprintf("c/c%04d=1", i))
	}
	s := NewServer(ServerConfig{})
	s.SetGeneration(gen(1, words...))
	ask := func(r *discovery.DeltaDiscoveryRequest) {
		t.Helper()
		r.TypeUrl = string(ClusterType)
		if err := s.Request(start, r); err != nil {
			t.Fatal(err)
		}
	}
	ask(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"c0007"}})
	s.Next(start)
	allocations := testing.AllocsPerRun(3, func() {
		ask(&discovery.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{"*"}})
		ask(&discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{"*"}})
	})
	if allocations > 1000 {
		t.Errorf("%.0f allocations for 5000 names", allocations)
	}
	ask(&discovery.DeltaDiscoveryRequest{ResponseNonce: "1"})
	if r := s.Next(start); r == nil || len(r.Resources) != 4999 {
		t.Errorf("sent %v", r)
	}
}
