package xds

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
	"github.com/fairlead/fairlead/xds/view"
)

// street is a mesh with more services on one port than travel in one table, all
// of them answered by one backend, and an Envoy that sees them.
type street struct {
	t            *testing.T
	objects      *smallmesh.Objects
	port, server int
	backend      int
	envoy        *envoytest.Envoy
	rig          *rig
}

func newStreet(t *testing.T, version string, services int, features ...string) *street {
	t.Helper()
	ports := envoytest.FreePorts(t, 2)
	s := &street{t: t, port: ports[0], server: ports[1], backend: backend(t, "here"), objects: new(smallmesh.Objects).Workload("web", "127.0.0.11", nil)}
	s.objects.Plain = true
	for i := range services {
		s.add(fmt.Sprintf("s%02d", i))
	}
	s.serve(nil)
	s.start(version, features...)
	return s
}

// start starts an Envoy.
func (s *street) start(version string, features ...string) {
	t := s.t
	t.Helper()
	p, err := node("web", "127.0.0.11").Proto()
	if err != nil {
		t.Fatal(err)
	}
	p.ClientFeatures = features
	body, err := protojson.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	s.envoy = envoytest.Start(t, envoytest.Config{Version: version, Bootstrap: bootstrapFor(body, fmt.Sprintf("127.0.0.1:%d", s.server))})
}

func (s *street) add(name string) {
	s.objects.Services = append(s.objects.Services, &mesh.Service{
		Meta: smallmesh.Meta(mesh.KindServiceEntry, name), Hostname: mesh.Hostname(name + ".mesh"), Resolution: mesh.ResolutionStatic,
		Ports: []mesh.Port{{Name: "http", Number: uint32(s.port), Protocol: mesh.HTTP}},
		Inline: []*mesh.Workload{{
			Meta: smallmesh.Meta(mesh.KindServiceEntry, name), Address: "127.0.0.1", Ports: map[string]uint32{"http": uint32(s.backend)},
		}},
	})
}

// serve has a new server take the place of the one before.
func (s *street) serve(change func(*Config)) {
	s.t.Helper()
	if s.rig != nil {
		s.rig.grpc.Stop()
	}
	s.rig = newRig(s.t, s.objects, change)
	envoytest.Eventually(s.t, envoytest.Patience, func() error { return s.rig.listens(s.t, s.server) })
}

// listens is listen for a port that may be taken yet.
func (r *rig) listens(t *testing.T, port int) error {
	t.Helper()
	l, err := listenOn(t, port)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = r.grpc.Serve(l) })
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return nil
}

// awaitForm waits until the Envoy has the table in a form, and answers.
func (s *street) awaitForm(whole bool) {
	s.t.Helper()
	st := s.rig.synced(s.t, "web.shop")
	eventually(s.t, "the table travels as it shall", func() bool {
		st = s.rig.synced(s.t, "web.shop")
		return whole == (len(st.VirtualHosts) == 0)
	})
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		for _, x := range []*mesh.Service{s.objects.Services[0], s.objects.Services[len(s.objects.Services)-1]} {
			if got := request(s.t, s.port, string(x.Hostname)); got != "here" {
				return fmt.Errorf("%s answers %q", x.Hostname, got)
			}
		}
		return nil
	})
}

// have has the mesh have so many services.
func (s *street) have(services int) {
	s.t.Helper()
	s.objects.Services = slices.Clone(s.objects.Services[:min(services, len(s.objects.Services))])
	for i := len(s.objects.Services); i < services; i++ {
		s.add(fmt.Sprintf("s%02d", i))
	}
	s.rig.mesh.publish(s.objects.Snapshot(s.rig.mesh.Snapshot()))
}

// load asks a service until stop is called, which fails the test if a request did.
func (s *street) load(name string) (stop func()) {
	var asked, failed atomic.Int64
	end := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				asked.Add(1)
				if got := request(s.t, s.port, name); got != "here" && failed.Add(1) < 4 {
					s.t.Errorf("%s answers %q", name, got)
				}
			}
		})
	}
	return func() {
		eventually(s.t, "there were requests", func() bool { return asked.Load() > 50 })
		close(end)
		wg.Wait()
		if failed.Load() > 0 {
			s.t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
		}
	}
}

// An Envoy that says that it takes virtual hosts by themselves, and refuses them,
// is served all the same: whole, at once, and from then on.
func TestRealEnvoyRejectsVHDS(t *testing.T) {
	t.Parallel()
	s := newStreet(t, envoytest.Oldest, vhds.MaxInline+4, bootstrap.FeatureVirtualHosts)
	s.awaitForm(true)
	if log := s.rig.log.String(); !strings.Contains(log, "DELTA_GRPC") || !strings.Contains(log, "sending the whole route configuration") {
		t.Error("it did not refuse them")
	}
	stop := s.load("s07.mesh")
	s.add("late")
	s.rig.mesh.publish(s.objects.Snapshot(s.rig.mesh.Snapshot()))
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if got := request(t, s.port, "late.mesh"); got != "here" {
			return fmt.Errorf("answers %q", got)
		}
		return nil
	})
	stop()
}

// The form changes under requests: by a refusal, and by the operator's switch, from
// pieces to whole. It does not change back, for Envoy would answer 404 meanwhile;
// one that starts anew has it in pieces again.
func TestRealEnvoyChangesFromVHDSToInline(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		if !vhds.Supported(1, uint32(envoytest.Minor(t, version))) {
			continue // it is sent whole tables only
		}
		for _, refused := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/refused-%t", version, refused), func(t *testing.T) {
				t.Parallel()
				s := newStreet(t, version, vhds.MaxInline+4)
				s.awaitForm(false)
				stop := s.load("s07.mesh")
				if refused {
					s.fallBack()
				} else {
					s.serve(func(c *Config) { c.InlineRoutes = true })
				}
				s.awaitForm(true)
				s.serve(nil)
				s.awaitForm(true)
				if n := s.sentTables(); n > 0 {
					t.Errorf("a server that came back sent %d tables and virtual hosts", n)
				}
				stop()
				s.envoy.NoRejections(t)
				s.envoy.Kill()
				s.start(version)
				s.awaitForm(false)
			})
		}
	}
}

// fallBack has the server believe that Envoy refuses the table in pieces.
func (s *street) fallBack() {
	s.t.Helper()
	table := strconv.Itoa(s.port)
	for _, c := range s.rig.server.connections() {
		c.runInOwner(nil, func() {
			r := c.resources.Generation.Get(stream.RouteType, table)
			c.fallBackToInline(stream.Event{Kind: stream.EventRejected, Type: stream.RouteType, Name: r.Name, Version: r.Version, Reason: "a test"})
		}, nil)
		if c.routes != c.routes.WithInline(view.RoutesLayer+table) {
			s.t.Error("the refusal was not heeded")
		}
	}
}

// sentTables is how many route tables and virtual hosts the server has sent.
func (s *street) sentTables() uint64 {
	sent := s.rig.server.Work().Sent
	return sent[stream.RouteType].Resources + sent[stream.VirtualHostType].Resources
}

// Services come and go, a few more than travel in one table and a few less, and
// servers: the table stays in the form in which Envoy has it, and a server that
// comes back sends nothing.
func TestRealEnvoyKeepsVHDSOrInline(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		if !vhds.Supported(1, uint32(envoytest.Minor(t, version))) {
			continue // it is sent whole tables only
		}
		for _, whole := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/whole-%t", version, whole), func(t *testing.T) {
				t.Parallel()
				few, many := vhds.MaxInline-4, vhds.MaxInline+4
				if !whole {
					few, many = many, few
				}
				s := newStreet(t, version, few)
				s.awaitForm(whole)
				stop := s.load("s07.mesh")
				for _, n := range []int{many, few, vhds.MaxInline + 1, vhds.MaxInline, vhds.MaxInline + 1, 3 * vhds.MaxInline} {
					s.have(n)
					s.awaitForm(whole)
					s.serve(nil)
					s.awaitForm(whole)
					if n := s.sentTables(); n != 0 {
						t.Errorf("a server that came back sent %d tables and virtual hosts", n)
					}
				}
				stop()
				s.envoy.NoRejections(t)
			})
		}
	}
}
