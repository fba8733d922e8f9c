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
	"github.com/fairlead/fairlead/xds/ecds"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// proxyKind is what a test's proxy supports.
type proxyKind int

const (
	oldEnvoy proxyKind = iota // 1.36
	newEnvoy                  // 1.40
	relay                     // supports VHDS, whatever its Envoy
)

func (k proxyKind) String() string { return [...]string{"old-envoy", "new-envoy", "relay"}[k] }

// proxy is a peer that subscribes like an Envoy and keeps what it has over any number of
// streams.
type proxy struct {
	t              *testing.T
	kind           proxyKind
	node           *bootstrap.Node
	host           string                             // the host as which admissionByHost admits it, or empty
	rejectName     func(stream.TypeURL, string) error // by name, or nil
	rejectResource func(*stream.Resource) bool        // or nil
	pause          chan struct{}                      // or nil; it continues when this is closed
	client         *stream.Client
	cancel         context.CancelFunc
	ended          chan error
	onUpdate       func(u *stream.Update) // or nil

	mu       sync.Mutex // guards all following fields
	accepted map[stream.TypeURL]map[string]string
	received int            // resources, over all types
	refs     map[string]int // route configurations: how many listeners use them
	routesOf map[string][]string
	forms    map[string]vhds.Form // of its route configurations, by layer
}

func newProxy(t *testing.T, kind proxyKind, n *bootstrap.Node) *proxy {
	t.Helper()
	return &proxy{
		t: t, kind: kind, node: n, accepted: map[stream.TypeURL]map[string]string{}, refs: map[string]int{}, routesOf: map[string][]string{}, forms: map[string]vhds.Form{},
		client: stream.NewClient(stream.ClientConfig{Wants: map[stream.TypeURL]stream.Want{
			stream.ClusterType: {All: true}, stream.ListenerType: {All: true},
		}}),
	}
}

// open opens a stream; the one before must have ended.
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

// close ends the stream, and waits for its end.
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
		if wait := p.pauseChan(); wait != nil {
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
		if p.onUpdate != nil {
			p.onUpdate(u)
		}
		u.Done(p.take(u))
	}
}

type grpcStream interface {
	Send(*discovery.DeltaDiscoveryRequest) error
	Recv() (*discovery.DeltaDiscoveryResponse, error)
	Context() context.Context
}

func (p *proxy) pauseChan() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pause
}

// pauseReading has it read nothing until the channel is closed.
func (p *proxy) pauseReading(until chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = until
}

func (p *proxy) take(u *stream.Update) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.accepted[u.Type] == nil {
		p.accepted[u.Type] = map[string]string{}
	}
	has := p.accepted[u.Type]
	var bad []stream.RejectedResource
	for _, r := range u.Changed {
		p.received++
		if p.rejectName != nil {
			if err := p.rejectName(u.Type, r.Name); err != nil {
				bad = append(bad, stream.RejectedResource{Name: r.Name, Reason: err.Error()})
				continue
			}
		}
		if p.rejectResource != nil && u.Type != stream.RouteType && p.rejectResource(r) {
			bad = append(bad, stream.RejectedResource{Name: r.Name, Reason: errRejectedByTest.Error()})
			continue
		}
		if u.Type == stream.VirtualHostType {
			routeConfig, _, _ := strings.Cut(r.Name, vhds.Separator)
			if _, ok := p.accepted[stream.RouteType][routeConfig]; !ok {
				p.t.Errorf("virtual host %q before its route configuration", r.Name)
			}
		}
		has[r.Name] = versionAndHash(r)
		p.subscribeDependents(u.Type, r)
	}
	for _, name := range u.Removed {
		delete(has, name)
		switch u.Type {
		case stream.ClusterType:
			p.client.Unsubscribe(stream.EndpointType, name)
			delete(p.accepted[stream.EndpointType], name)
		case stream.ListenerType:
			p.subscribeRoutes(name, nil)
		default:
		}
	}
	if bad != nil {
		return &stream.RejectError{Rejected: bad}
	}
	return nil
}

// subscribeDependents subscribes to what a resource refers to.
func (p *proxy) subscribeDependents(url stream.TypeURL, r *stream.Resource) {
	switch url {
	case stream.ClusterType:
		if !slices.Contains(p.client.Want(stream.EndpointType).Names, r.Name) { // Envoy does not subscribe again
			p.client.Subscribe(stream.EndpointType, r.Name)
		}
	case stream.ListenerType:
		p.subscribeRoutes(r.Name, routeConfigsOf(p.t, r.Body))
		for _, name := range ecds.Names(r.Body) {
			if !slices.Contains(p.client.Want(stream.ExtensionType).Names, name) {
				p.client.Subscribe(stream.ExtensionType, name)
			}
		}
	case stream.RouteType:
		p.forms[view.RoutesLayer+r.Name] = vhds.Separate
		if !vhds.IsBase(r.Body) {
			p.forms[view.RoutesLayer+r.Name] = vhds.Inline
			p.forgetHosts(r.Name)
			p.client.ForgetHosts(r.Name)
			return
		}
		if p.kind == oldEnvoy {
			p.t.Errorf("an old Envoy was sent route configuration %q without virtual hosts", r.Name)
		}
		p.client.SubscribeAll(stream.VirtualHostType)
	default:
	}
}

// subscribeRoutes subscribes to the route configurations of a listener.
func (p *proxy) subscribeRoutes(listener string, routeConfigs []string) {
	for _, name := range routeConfigs {
		if p.refs[name]++; p.refs[name] == 1 {
			p.client.Subscribe(stream.RouteType, name)
		}
	}
	for _, name := range p.routesOf[listener] {
		if p.refs[name]--; p.refs[name] == 0 {
			p.client.Unsubscribe(stream.RouteType, name)
			delete(p.accepted[stream.RouteType], name)
			delete(p.forms, view.RoutesLayer+name)
			p.forgetHosts(name)
		}
	}
	p.routesOf[listener] = routeConfigs
}

func (p *proxy) forgetHosts(routeConfig string) {
	maps.DeleteFunc(p.accepted[stream.VirtualHostType], func(name, _ string) bool { return strings.HasPrefix(name, routeConfig+vhds.Separator) })
}

// versionAndHash is the version of a resource and a hash of its bytes: the version alone
// may be wrong.
func versionAndHash(r *stream.Resource) string {
	sum := fnv.New64a()
	_, _ = sum.Write(r.Body) // a hash takes everything
	return fmt.Sprintf("%s %x", r.Version, sum.Sum64())
}

// content is what the proxy has: versions and bytes by type and name.
func (p *proxy) content() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]string{}
	for url, of := range p.accepted {
		for name, version := range of {
			out[url.Short()+" "+name] = version
		}
	}
	return out
}

// routeForms are the forms (VHDS or inline) of its route configurations.
func (p *proxy) routeForms() map[string]vhds.Form {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.forms)
}

func (p *proxy) receivedCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.received
}

// routeConfigsOf are the route configurations that a listener uses.
func routeConfigsOf(t *testing.T, body []byte) []string {
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

// referenceCache is what a server would make that has seen no other snapshot.
type referenceCache struct {
	mu    sync.Mutex // guards all following fields
	snap  *mesh.Snapshot
	cache *cache.Cache
}

func (f *referenceCache) of(s *mesh.Snapshot) *cache.Cache {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.snap != s {
		f.snap, f.cache = s, cache.New(view.Settings{})
	}
	return f.cache
}

// want is what a new stream of the proxy would be sent if it has route configurations in
// some forms, computed without earlier snapshots.
func (p *proxy) want(r *rig, snap *mesh.Snapshot, has map[string]vhds.Form) map[string]string {
	p.t.Helper()
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
	v := &verifiedNode{reported: &n, account: mesh.ServiceAccount{Namespace: n.Namespace, Name: n.ServiceAccount}}
	w, err := v.workload(snap)
	if err != nil {
		p.t.Fatal(err)
	}
	fresh := mustGet(p.t, r.reference.of(snap), snap, v.proxy(snap, w), r.server.routesFor(&n, features), cache.Configuration{ReportedForms: has})
	out := map[string]string{}
	for _, url := range cache.Types() {
		for r := range fresh.Resources.Generation.All(url) {
			out[url.Short()+" "+r.Name] = versionAndHash(r)
		}
	}
	return out
}

// waitConverged waits until the proxy has exactly what a new stream would be sent.
func (p *proxy) waitConverged(r *rig) {
	p.t.Helper()
	has := p.routeForms()
	want := p.want(r, r.mesh.Snapshot(), has)
	var got map[string]string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s %s (-want +got):\n%.2000s", p.kind, p.node.ID(), cmp.Diff(want, got))
		}
	}()
	eventually(p.t, "a proxy has what a fresh stream gives", func() bool {
		if now := p.routeForms(); !maps.Equal(now, has) {
			has, want = now, p.want(r, r.mesh.Snapshot(), now)
		}
		got = p.content()
		return maps.Equal(got, want)
	})
}

// fleet makes proxies for the workloads of a mesh, alternating between all kinds.
func fleet(t *testing.T, o *smallmesh.Objects, n int) []*proxy {
	t.Helper()
	return fleetOf(t, o.Workloads, n)
}

// fleetOf makes proxies for some workloads, alternating between all kinds.
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

// admitAll admits all service accounts of a mesh without limits.
func admitAll(o *smallmesh.Objects) func(*Config) {
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

var errRejectedByTest = errors.New("does not compute")
