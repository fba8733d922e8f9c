package xds

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/stream"
)

// unacknowledgedNames are the compact unacknowledged names of a server that sent clusters
// without an answer.
func (r *rig) unacknowledgedNames(t *testing.T, names ...string) *stream.UnacknowledgedNames {
	t.Helper()
	s := stream.NewServer(stream.ServerConfig{})
	list := make([]*stream.Resource, len(names))
	for i, name := range names {
		list[i] = stream.NewResource(stream.ClusterType, stream.Resource{Name: name, Version: "1", Body: []byte("b")})
	}
	s.SetGeneration(&stream.Generation{Number: 1, Layers: []*stream.Layer{{Types: map[stream.TypeURL]*stream.Set{stream.ClusterType: stream.NewSet(list)}}}})
	if err := s.Request(time.Now(), &discovery.DeltaDiscoveryRequest{TypeUrl: string(stream.ClusterType)}); err != nil {
		t.Fatal(err)
	}
	if s.Next(time.Now()) == nil {
		t.Fatal("nothing is sent")
	}
	return r.server.interner.Retain(s.Unacknowledged())
}

// The unacknowledged names that are kept for one host are bounded, in number and bytes,
// independently of other hosts.
func TestUnacknowledgedNamesOfHostAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), func(c *Config) { c.MaxPerHost = 6 })
	s := r.server
	s.keepUnacknowledged(departedProxy{"other", "other", r.unacknowledgedNames(t, "o")})
	for i := range 10 {
		s.keepUnacknowledged(departedProxy{fmt.Sprint("few", i), "few", r.unacknowledgedNames(t, "f")})
	}
	var long []string
	for i := range 2000 {
		long = append(long, strings.Repeat("x", 4000)+strconv.Itoa(i))
	}
	huge := r.unacknowledgedNames(t, long...)
	for i := range 7 {
		s.keepUnacknowledged(departedProxy{fmt.Sprint("huge", i), "huge", huge})
	}
	left := map[string][]string{}
	for _, d := range s.unacknowledged.All() {
		left[d.host] = append(left[d.host], d.key)
	}
	if len(left["other"]) != 1 {
		t.Error("another host's was forgotten")
	}
	if got := strings.Join(left["few"], " "); got != "few4 few5 few6 few7 few8 few9" {
		t.Errorf("of ten %q are left", got)
	}
	if got := strings.Join(left["huge"], " "); got != "huge2 huge3 huge4 huge5 huge6" {
		t.Errorf("of %d bytes each %q are left", huge.Size(), got)
	}
}

// Equal unacknowledged names of a fleet are kept once.
func TestUnacknowledgedNamesAreShared(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	a, b := r.unacknowledgedNames(t, "a", "b", "c").Names(), r.unacknowledgedNames(t, "a", "b", "c").Names()
	if len(a[stream.ClusterType]) != 3 || &a[stream.ClusterType][0] == &b[stream.ClusterType][0] {
		t.Fatalf("%v: none, or not their own", a)
	}
	for i, name := range a[stream.ClusterType] {
		if o := b[stream.ClusterType][i]; o != name || unsafe.StringData(o) != unsafe.StringData(name) {
			t.Errorf("%q is kept twice", name)
		}
	}
}

// A proxy reconnects while the end of its last stream is being handled: the unacknowledged
// names of that stream count, whichever is first.
func TestReconnectWhileLastStreamEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	versions := map[string]string{}
	for res := range r.resourcesOfWeb(t).Generation.All(stream.ClusterType) {
		versions[res.Name] = res.Version
	}
	n := node("web", "127.0.0.11")
	old := &conn{server: r.server, proxyKey: "vm1\x00" + n.ID(), calls: make(chan ownerCall), done: make(chan struct{})}
	old.unacknowledged = r.unacknowledgedNames(t, slices.Collect(maps.Keys(versions))...)
	close(old.done)
	r.server.mu.Lock()
	r.server.byKey[old.proxyKey] = []*conn{old} // it has not left yet
	r.server.mu.Unlock()
	b := r.connect(t, n, stream.NewClient(stream.ClientConfig{
		Wants:    map[stream.TypeURL]stream.Want{stream.ClusterType: {All: true}, stream.ListenerType: {All: true}},
		Accepted: map[stream.TypeURL]map[string]string{stream.ClusterType: versions},
	}))
	eventually(t, "it is sent again", func() bool { return b.has(ordersCluster) })
}

// A peer that does not read may send requests, and the events of these are not kept.
func TestEventsOfBlockedStreamAreHandled(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	a := r.connectWith(t, node("web", "127.0.0.11"), nil, &agent{})
	r.synced(t, "web.shop")
	c := r.server.connections()[0]
	c.unwritten.Add(maxUnwritten) // as if it had left that unread
	const stale = 1000
	for range stale {
		if err := a.stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: string(stream.ClusterType), ResponseNonce: "unknown"}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all requests are handled", func() bool {
		return strings.Count(r.log.String(), "ACK for an unknown nonce") == stale
	})
}

// Two owners of streams that call each other do not wait for each other.
func TestOwnersCallEachOther(t *testing.T) {
	t.Parallel()
	newConn := func() *conn { return &conn{calls: make(chan ownerCall), done: make(chan struct{})} }
	a, b := newConn(), newConn()
	giveUp := make(chan struct{})
	timer := time.AfterFunc(10*time.Second, func() { close(giveUp) })
	defer timer.Stop()
	var wg sync.WaitGroup
	ran := make(chan struct{}, 2)
	for _, pair := range [][2]*conn{{a, b}, {b, a}} {
		wg.Go(func() {
			own, other := pair[0], pair[1]
			if !other.runInOwner(giveUp, func() { ran <- struct{}{} }, own) {
				t.Error("a call was given up")
			}
			for len(ran) < 2 { // it is the owner still
				select {
				case q := <-own.calls:
					q.run()
				case <-giveUp:
					return
				default:
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	if len(ran) != 2 {
		t.Errorf("%d calls ran, want 2", len(ran))
	}
}

// TestInventedStreamsPushOutNobody: a host that opens and ends streams under invented names takes
// the places of its own departed proxies, not those of others: these are in the status, and among
// the targets of Prometheus.
func TestInventedStreamsPushOutNobody(t *testing.T) {
	t.Parallel()
	const each = 6
	r := newRig(t, smallmesh.Shop(), func(c *Config) { c.MaxPerHost, c.MaxRequests = each, 1<<30 })
	gone := func(host string) (ids []string) {
		for _, p := range r.server.Proxies() {
			if p.Host == host && !p.Connected {
				ids = append(ids, p.ID)
			}
		}
		return ids
	}
	a := r.connect(t, node("web", "127.0.0.11"), nil)
	r.synced(t, "web.shop")
	a.cancel()
	eventually(t, "it is listed as gone", func() bool { return len(gone("vm1")) == 1 })
	liar := *r.admission.peer.Load()
	liar.Host = "liar"
	r.admission.peer.Store(&liar)
	for i := range 300 {
		n := node("web", "127.0.0.11")
		n.Name = fmt.Sprint("invented", i)
		encoded, err := n.Proto()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(ctx)
		if err == nil {
			err = s.Send(&discovery.DeltaDiscoveryRequest{Node: encoded, TypeUrl: string(stream.ClusterType)})
		}
		if err == nil {
			_, err = s.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		id := n.ID()
		eventually(t, "it is listed as gone", func() bool { return slices.Contains(gone("liar"), id) })
	}
	if n := len(gone("vm1")); n != 1 {
		t.Errorf("%d departed proxies of another host are listed, want 1", n)
	}
	if n := len(gone("liar")); n != each {
		t.Errorf("%d departed proxies of the host are listed, want %d", n, each)
	}
}
