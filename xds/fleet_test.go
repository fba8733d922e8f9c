package xds

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// proxyKind is what a test's proxy can do.
type proxyKind int

const (
	oldEnvoy proxyKind = iota // 1.36
	newEnvoy                  // 1.40
	relay                     // folds virtual hosts, whatever its Envoy
)

func (k proxyKind) String() string { return [...]string{"old-envoy", "new-envoy", "relay"}[k] }

// proxy is a peer that asks for what an Envoy asks for, and remembers what it has,
// over any number of streams.
type proxy struct {
	t       *testing.T
	kind    proxyKind
	node    *bootstrap.Node
	host    string                             // as which it is let in by hosts, or empty
	refuse  func(stream.TypeURL, string) error // by name, or nil
	dislike func(*stream.Resource) bool        // what it refuses besides, or nil
	pause   chan struct{}                      // or nil; it goes on when this is closed
	client  *stream.Client
	cancel  context.CancelFunc
	ended   chan error
	counted func(u *stream.Update) // or nil

	mu    sync.Mutex // guards all following fields
	holds map[stream.TypeURL]map[string]string
	got   int            // resources, in all
	refs  map[string]int // route tables, by how many listeners want them
	wants map[string][]string
	forms map[string]vhds.Form // in which it has route tables, by layer
}

func newProxy(t *testing.T, kind proxyKind, n *bootstrap.Node) *proxy {
	t.Helper()
	return &proxy{
		t: t, kind: kind, node: n, holds: map[stream.TypeURL]map[string]string{}, refs: map[string]int{}, wants: map[string][]string{}, forms: map[string]vhds.Form{},
		client: stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
		}}),
	}
}

// open begins a stream; the one before has to have ended.
func (p *proxy) open(r *rig) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(p.t.Context(), "who", p.host))
	s, err := discovery.NewAggregatedDiscoveryServiceClient(r.dial).DeltaAggregatedResources(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	n, err := p.node.Proto()
	if err != nil {
		p.t.Fatal(err)
	}
	minor := uint32(40)
	if p.kind == oldEnvoy {
		minor = 36
	}
	n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor},
	}}
	if p.kind == relay {
		n.ClientFeatures = append(n.ClientFeatures, bootstrap.FeatureVirtualHosts)
	}
	p.client.Open()
	p.cancel, p.ended = cancel, make(chan error, 1)
	ended := p.ended
	go func() { ended <- p.loop(s, n) }()
	p.t.Cleanup(cancel)
}

// close ends the stream, and waits for that.
func (p *proxy) close() error {
	p.cancel()
	return <-p.ended
}

func (p *proxy) loop(s grpcStream, n *corev3.Node) error {
	for {
		for r := p.client.Next(); r != nil; r = p.client.Next() {
			r.Node, n = n, nil
			if err := s.Send(r); err != nil {
				break
			}
		}
		if wait := p.waits(); wait != nil {
			select {
			case <-wait:
			case <-s.Context().Done():
				return s.Context().Err()
			}
		}
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		u, err := p.client.Response(resp)
		if err != nil {
			return err
		}
		if p.counted != nil {
			p.counted(u)
		}
		u.Done(p.take(u))
	}
}

type grpcStream interface {
	Send(*discovery.DeltaDiscoveryRequest) error
	Recv() (*discovery.DeltaDiscoveryResponse, error)
	Context() context.Context
}

func (p *proxy) waits() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pause
}

// stop has it read nothing until the channel is closed.
func (p *proxy) stop(until chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = until
}

func (p *proxy) take(u *stream.Update) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holds[u.Type] == nil {
		p.holds[u.Type] = map[string]string{}
	}
	has := p.holds[u.Type]
	var bad []stream.RejectedResource
	for _, r := range u.Changed {
		p.got++
		if p.refuse != nil {
			if err := p.refuse(u.Type, r.Name); err != nil {
				bad = append(bad, stream.RejectedResource{Name: r.Name, Reason: err.Error()})
				continue
			}
		}
		if p.dislike != nil && u.Type != stream.RouteType && p.dislike(r) {
			bad = append(bad, stream.RejectedResource{Name: r.Name, Reason: errRefusedByTest.Error()})
			continue
		}
		if u.Type == stream.VirtualHostType {
			table, _, _ := strings.Cut(r.Name, vhds.Separator)
			if _, ok := p.holds[stream.RouteType][table]; !ok {
				p.t.Errorf("virtual host %q before its table", r.Name)
			}
		}
		has[r.Name] = saysOf(r)
		p.follow(u.Type, r)
	}
	for _, name := range u.Removed {
		delete(has, name)
		switch u.Type {
		case stream.ClusterType:
			p.client.Unsubscribe(stream.EndpointType, name)
			delete(p.holds[stream.EndpointType], name)
		case stream.ListenerType:
			p.want(name, nil)
		default:
		}
	}
	if bad != nil {
		return &stream.RejectError{Rejected: bad}
	}
	return nil
}

// follow asks for what a resource refers to.
func (p *proxy) follow(url stream.TypeURL, r *stream.Resource) {
	switch url {
	case stream.ClusterType:
		if !slices.Contains(p.client.Want(stream.EndpointType).Names, r.Name) { // Envoy does not ask again
			p.client.Subscribe(stream.EndpointType, r.Name)
		}
	case stream.ListenerType:
		p.want(r.Name, tablesOf(p.t, r.Body))
	case stream.RouteType:
		p.forms[view.RoutesLayer+r.Name] = vhds.Separate
		if !vhds.IsBase(r.Body) {
			p.forms[view.RoutesLayer+r.Name] = vhds.Inline
			p.forgetHosts(r.Name)
			p.client.ForgetHosts(r.Name)
			return
		}
		if p.kind == oldEnvoy {
			p.t.Errorf("an old Envoy was sent table %q without its hosts", r.Name)
		}
		p.client.SubscribeAll(stream.VirtualHostType)
	default:
	}
}

// want notes which tables a listener wants.
func (p *proxy) want(listener string, tables []string) {
	for _, name := range tables {
		if p.refs[name]++; p.refs[name] == 1 {
			p.client.Subscribe(stream.RouteType, name)
		}
	}
	for _, name := range p.wants[listener] {
		if p.refs[name]--; p.refs[name] == 0 {
			p.client.Unsubscribe(stream.RouteType, name)
			delete(p.holds[stream.RouteType], name)
			delete(p.forms, view.RoutesLayer+name)
			p.forgetHosts(name)
		}
	}
	p.wants[listener] = tables
}

func (p *proxy) forgetHosts(table string) {
	maps.DeleteFunc(p.holds[stream.VirtualHostType], func(name, _ string) bool { return strings.HasPrefix(name, table+vhds.Separator) })
}

// saysOf is the version of a resource, and a sum of its bytes: a version alone
// may promise what the bytes do not keep.
func saysOf(r *stream.Resource) string {
	sum := fnv.New64a()
	_, _ = sum.Write(r.Body) // a hash takes everything
	return fmt.Sprintf("%s %x", r.Version, sum.Sum64())
}

// content is what the proxy has: versions and bytes by type and name.
func (p *proxy) content() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]string{}
	for url, of := range p.holds {
		for name, version := range of {
			out[url.Short()+" "+name] = version
		}
	}
	return out
}

// has is how the proxy has its route tables.
func (p *proxy) has() map[string]vhds.Form {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.forms)
}

func (p *proxy) received() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.got
}

// tablesOf are the route tables that a listener wants.
func tablesOf(t *testing.T, body []byte) []string {
	t.Helper()
	l := &listenerv3.Listener{}
	if err := proto.Unmarshal(body, l); err != nil {
		t.Error(err)
	}
	var out []string
	for _, c := range append(l.GetFilterChains(), l.GetDefaultFilterChain()) {
		for _, f := range c.GetFilters() {
			m := &hcmv3.HttpConnectionManager{}
			if f.GetTypedConfig().MessageIs(m) && f.GetTypedConfig().UnmarshalTo(m) == nil && m.GetRds() != nil {
				out = append(out, m.GetRds().GetRouteConfigName())
			}
		}
	}
	return out
}

// freshServer is what a server would make that has seen no other snapshot.
type freshServer struct {
	mu    sync.Mutex // guards all following fields
	snap  *mesh.Snapshot
	cache *cache.Cache
}

func (f *freshServer) of(s *mesh.Snapshot) *cache.Cache {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snap != s {
		f.snap, f.cache = s, cache.New(view.Settings{})
	}
	return f.cache
}

// shall is what a fresh stream of the proxy would be given, which has tables in
// some forms, worked out by a server that has seen nothing before.
func (p *proxy) shall(r *rig, snap *mesh.Snapshot, has map[string]vhds.Form) map[string]string {
	p.t.Helper()
	v := &verifiedNode{reported: p.node, account: mesh.ServiceAccount{Namespace: p.node.Namespace, Name: p.node.ServiceAccount}}
	w, err := v.workload(snap)
	if err != nil {
		p.t.Fatal(err)
	}
	n := *p.node
	var features []string
	n.EnvoyVersion.Major, n.EnvoyVersion.Minor = 1, 40
	switch p.kind {
	case oldEnvoy:
		n.EnvoyVersion.Minor = 36
	case relay:
		features = []string{bootstrap.FeatureVirtualHosts}
	case newEnvoy:
	}
	fresh := mustGet(p.t, r.fresh.of(snap), snap, v.proxy(snap, w), r.server.routesFor(&n, features), cache.Configuration{ReportedForms: has})
	out := map[string]string{}
	for _, url := range cache.Types() {
		for r := range fresh.Resources.Generation.All(url) {
			out[url.Short()+" "+r.Name] = saysOf(r)
		}
	}
	return out
}

// inStep waits until the proxy has exactly what a fresh stream would be given.
func (p *proxy) inStep(r *rig) {
	p.t.Helper()
	has := p.has()
	want := p.shall(r, r.mesh.Snapshot(), has)
	var got map[string]string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s %s (-want +got):\n%.2000s", p.kind, p.node.ID(), cmp.Diff(want, got))
		}
	}()
	eventually(p.t, "a proxy has what a fresh stream gives", func() bool {
		if now := p.has(); !maps.Equal(now, has) {
			has, want = now, p.shall(r, r.mesh.Snapshot(), now)
		}
		got = p.content()
		return maps.Equal(got, want)
	})
}

// fleet is proxies of the workloads of a mesh, of all kinds by turns.
func fleet(t *testing.T, o *smallmesh.Objects, n int) []*proxy {
	t.Helper()
	return fleetOf(t, o.Workloads, n)
}

// fleetOf is proxies of some workloads, of all kinds by turns.
func fleetOf(t *testing.T, workloads []*mesh.Workload, n int) []*proxy {
	t.Helper()
	out := make([]*proxy, 0, n)
	for i := range n {
		w := workloads[i%len(workloads)]
		node := &bootstrap.Node{
			Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr(w.Address), Name: fmt.Sprintf("%s-%d", w.Name, i), Namespace: w.Namespace,
			Domain: "svc.local", ServiceAccount: w.ServiceAccount, Interception: "REDIRECT", WorkloadName: w.Name,
		}
		out = append(out, newProxy(t, proxyKind(i%3), node))
	}
	return out
}

// everybody lets all accounts of a mesh in, as often as they like.
func everybody(o *smallmesh.Objects) func(*Config) {
	return func(c *Config) {
		p := &Peer{Host: "all"}
		for _, w := range o.Workloads {
			p.Pairs = append(p.Pairs, mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount})
		}
		a := &fakeAdmission{}
		a.peer.Store(p)
		c.Admission, c.MaxPerHost, c.MaxRequests, c.MaxKeptPerHost = a, 1<<20, 1<<30, 1<<30
	}
}

var errRefusedByTest = errors.New("does not compute")
