package xds

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// admissionByHost admits peers as the host that they name.
type admissionByHost struct {
	fakeAdmission
	hangup func(context.Context)
}

func (f *admissionByHost) Admit(ctx context.Context) (Peer, error) {
	p, err := f.fakeAdmission.Admit(ctx)
	if md, ok := metadata.FromIncomingContext(ctx); ok && len(md["who"]) > 0 && md["who"][0] != "" {
		p.Host = md["who"][0]
	}
	if f.hangup != nil {
		p.Hangup = func() { f.hangup(ctx) }
	}
	return p, err
}

// install admits all service accounts of a mesh, each by the host that it names.
func (f *admissionByHost) install(t *testing.T, o *smallmesh.Objects, c *Config) {
	t.Helper()
	admitAll(o)(c)
	p, err := c.Admission.Admit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.peer.Store(&p)
	c.Admission = f
}

// attacker is one malicious host with a certificate.
type attacker struct {
	t    *testing.T
	r    *rig
	node *bootstrap.Node
	// opened counts its streams, and requests its requests.
	opened, requests atomic.Int64
	paused           atomic.Bool // its streams stay, and say nothing
}

// openStreams opens streams that repeat an attack, and opens each of them again when it
// ends, unless the attacker is paused. It waits for the end of one in 512 streams that it ends
// itself, because what a client has not sent yet is memory of this process.
func (a *attacker) openStreams(ctx context.Context, wg *sync.WaitGroup, streams int, way func(s deltaClient) error) {
	for range streams {
		dial := a.r.newConnection(a.t)
		wg.Go(func() {
			for i := 0; ctx.Err() == nil && !a.paused.Load(); i++ {
				a.once(ctx, dial, way, i%512 == 0)
			}
		})
	}
}

type deltaClient = discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient

func (a *attacker) once(ctx context.Context, dial *grpc.ClientConn, way func(s deltaClient) error, await bool) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "who", "attacker"))
	defer cancel()
	s, err := discovery.NewAggregatedDiscoveryServiceClient(dial).DeltaAggregatedResources(ctx)
	if err != nil {
		return
	}
	a.opened.Add(1)
	n := *a.node
	n.Name = fmt.Sprint(n.Name, a.opened.Load()) // any name
	node, err := n.Proto()
	if err != nil {
		a.t.Error(err)
		return
	}
	err = s.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: string(stream.ClusterType)})
	for err == nil {
		if a.paused.Load() {
			<-ctx.Done()
			return
		}
		a.requests.Add(1)
		err = way(s)
	}
	for await && errors.Is(err, errReturns) {
		if _, err := s.Recv(); err != nil {
			return
		}
	}
}

// errReturns is the error of an attack that ends its stream itself.
var errReturns = errors.New("the stream is ended by the client")

// names returns n distinct names of a size.
func names(prefix string, n, size int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(prefix, "-", i)
		out[i] += strings.Repeat("x", max(0, size-len(out[i])))
	}
	return out
}

// attacks are what it repeats on each of its streams.
func (a *attacker) attacks() map[string]func(s deltaClient) error {
	var n atomic.Int64
	ask := func(s deltaClient, url string, r *discovery.DeltaDiscoveryRequest) error {
		r.TypeUrl = url
		return s.Send(r)
	}
	return map[string]func(s deltaClient) error{
		"long-names": func(s deltaClient) error {
			return ask(s, string(stream.EndpointType), &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: names(strconv.FormatInt(n.Add(1), 10), 500, 2000)})
		},
		"short-names": func(s deltaClient) error {
			return ask(s, string(stream.EndpointType), &discovery.DeltaDiscoveryRequest{ResourceNamesSubscribe: names(strconv.FormatInt(n.Add(1), 10), 1000, 0)})
		},
		"versions": func(s deltaClient) error {
			versions := map[string]string{}
			for _, name := range names(strconv.FormatInt(n.Add(1), 10), 1000, 500) {
				versions[name] = name
			}
			return ask(s, fmt.Sprint("type", n.Load()), &discovery.DeltaDiscoveryRequest{
				ResourceNamesSubscribe: []string{"*"}, InitialResourceVersions: versions,
			})
		},
		"nacks": nackAll,
		"floods": func(s deltaClient) error {
			return ask(s, string(stream.ClusterType), &discovery.DeltaDiscoveryRequest{ResponseNonce: "unknown"})
		},
		"returns": func(s deltaClient) error { return errors.Join(errReturns, s.CloseSend()) },
	}
}

// nackAll NACKs a response, with a long reason for each of its resources.
func nackAll(s deltaClient) error {
	resp, err := s.Recv()
	if err != nil {
		return err
	}
	detail := &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: strings.Repeat("no reason, ", 200<<10)}
	for i, r := range resp.GetResources() {
		d, err := anypb.New(&errdetails.ResourceInfo{
			ResourceType: resp.GetTypeUrl(), ResourceName: r.GetName(), Description: fmt.Sprint(i, strings.Repeat(" no reason", 400)),
		})
		if err != nil {
			return err
		}
		detail.Details = append(detail.Details, d)
	}
	if proto.Size(detail) > 3<<20 {
		detail.Message = ""
	}
	return s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce(), ErrorDetail: detail})
}

// A malicious host stays within its quota, gets errors that name the limit, and does not
// affect its neighbours.
func TestAttackingHostIsLimited(t *testing.T) { //nolint:paralleltest // it measures the heap of the process
	const streams, quota = 16, 8 << 20
	ways := []string{"long-names", "short-names", "versions", "nacks", "floods", "returns"}
	if testing.Short() {
		ways = []string{"short-names", "floods"}
		if !race.Enabled {
			ways = ways[:1] // each takes seconds of all cores
		}
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) { //nolint:paralleltest // it measures the heap of the process
			o := smallmesh.Big(200)
			admission := &admissionByHost{}
			rate := 1000
			if way == "floods" || way == "returns" {
				rate = 100
			}
			r := newRigWith(t, o, func(c *Config) {
				admission.install(t, o, c)
				c.MaxPerHost, c.MaxKeptPerHost, c.MaxRequests = streams, quota, rate
			}, grpc.MaxConcurrentStreams(32))
			admission.hangup = r.listener.hangup
			r.quieten()
			all := fleet(t, o, 2)
			neighbour := all[0]
			neighbour.open(r)
			neighbour.waitConverged(r)
			before := inUse()
			a := &attacker{t: t, r: r, node: all[1].node}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			a.openStreams(ctx, &wg, streams, a.attacks()[way])
			defer wg.Wait()
			defer cancel()
			// What is on its way, both ends of it, is not counted: some MiB a stream.
			const most = int64(quota + streams*6<<20)
			kept := a.watch(before, most, limitOf(way), func(edit int) {
				o.Route("s0007.mesh", fmt.Sprint("/v", edit))
				r.mesh.publish(o.Snapshot(r.mesh.Snapshot()))
				neighbour.waitConverged(r)
			})
			t.Logf("%d streams, %d requests, %v rejected at a limit; %d KiB counted, the heap grew by %d KiB",
				a.opened.Load(), a.requests.Load(), r.counter(t, "fairlead_xds_limited_streams_total"), r.server.kept.sum()>>10, kept>>10)
			if kept > most {
				t.Errorf("the heap grew by %d bytes, not %d at most", kept, most)
			}
			a.check(way)
		})
	}
}

// limitOf is the setting that an attack has to meet; empty for none.
func limitOf(way string) string {
	switch way {
	case "floods":
		return ""
	case "returns":
		return "--max-requests-per-host"
	default:
		return "--max-mib-per-host"
	}
}

// watch has a neighbour served during the attack, until the log names the limit that it meets.
// It returns by how much the heap has grown once all requests are handled and peers that do not
// read are disconnected. That takes a multiple of hangUpDelay, and longer on a slow machine.
func (a *attacker) watch(before, most int64, limit string, edit func(i int)) int64 {
	a.t.Helper()
	start := time.Now()
	for i := 0; i < 5 || time.Since(start) < 3*time.Second || !strings.Contains(a.r.log.String(), limit) && time.Since(start) < 2*time.Minute; i++ {
		edit(i)
	}
	a.paused.Store(true)
	kept := most + 1
	for until := time.Now().Add(2 * time.Minute); kept > most && time.Now().Before(until); {
		edit(0)
		kept = inUse() - before
	}
	return kept
}

// check checks the errors that the attacker got, and how much it could do.
func (a *attacker) check(way string) {
	t := a.t
	t.Helper()
	if limit := limitOf(way); !strings.Contains(a.r.log.String(), limit) {
		t.Errorf("the log does not name %s", limit)
	}
	if n := a.r.counter(t, "pilot_xds_expired_nonce"); way == "floods" && (n == 0 || n > 5_000) {
		t.Errorf("%v requests were handled of a host with 100 requests a second", n)
	}
	if n := a.r.counter(t, "fairlead_xds_limited_streams_total"); way == "returns" && n > 10_000 {
		t.Errorf("%v streams were rejected: not throttled", n)
	}
}

// inUse is the size of the heap after garbage collection.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// counter is the sum of a counter over its labels.
func (r *rig) counter(t *testing.T, name string) (sum float64) {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// sum is what is kept for all hosts.
func (l *memoryTotal) sum() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// quieten has the log keep nothing: it is part of the heap.
func (r *rig) quieten() { r.log.drop.Store(true) }
