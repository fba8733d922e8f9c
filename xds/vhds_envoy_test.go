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

// vhdsMesh is a mesh with more services on one port than one inline route configuration
// has, all answered by one backend, and an Envoy that sees them.
type vhdsMesh struct {
	t            *testing.T
	objects      *smallmesh.Objects
	port, server int
	backend      int
	envoy        *envoytest.Envoy
	rig          *rig
}

func newVHDSMesh(t *testing.T, version string, services int, features ...string) *vhdsMesh {
	t.Helper()
	ports := envoytest.FreePorts(t, 2)
	s := &vhdsMesh{t: t, port: ports[0], server: ports[1], backend: backend(t, "here"), objects: new(smallmesh.Objects).Workload("web", "127.0.0.11", nil)}
	s.objects.Plain = true
	for i := range services {
		s.add(fmt.Sprintf("s%02d", i))
	}
	s.serve(nil)
	s.start(version, features...)
	return s
}

// start starts an Envoy.
func (s *vhdsMesh) start(version string, features ...string) {
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

func (s *vhdsMesh) add(name string) {
	s.objects.Services = append(s.objects.Services, &mesh.Service{
		Meta: smallmesh.Meta(mesh.KindServiceEntry, name), Hostname: mesh.Hostname(name + ".mesh"), Resolution: mesh.ResolutionStatic,
		Ports: []mesh.Port{{Name: "http", Number: uint32(s.port), Protocol: mesh.HTTP}},
		Inline: []*mesh.Workload{{
			Meta: smallmesh.Meta(mesh.KindServiceEntry, name), Address: "127.0.0.1", Ports: map[string]uint32{"http": uint32(s.backend)},
		}},
	})
}

// serve replaces the server by a new one.
func (s *vhdsMesh) serve(change func(*Config)) {
	s.t.Helper()
	if s.rig != nil {
		s.rig.grpc.Stop()
	}
	s.rig = newRig(s.t, s.objects, change)
	envoytest.Eventually(s.t, envoytest.Patience, func() error { return s.rig.listens(s.t, s.server) })
}

// listens is listen for a port that may still be in use.
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

// awaitForm waits until the Envoy has the route configuration in a form, and answers.
func (s *vhdsMesh) awaitForm(inline bool) {
	s.t.Helper()
	st := s.rig.synced(s.t, "web.shop")
	eventually(s.t, "the route configuration has the wanted form", func() bool {
		st = s.rig.synced(s.t, "web.shop")
		return inline == (len(st.VirtualHosts) == 0)
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

// setServices sets the number of services.
func (s *vhdsMesh) setServices(services int) {
	s.t.Helper()
	s.objects.Services = slices.Clone(s.objects.Services[:min(services, len(s.objects.Services))])
	for i := len(s.objects.Services); i < services; i++ {
		s.add(fmt.Sprintf("s%02d", i))
	}
	s.rig.mesh.publish(s.objects.Snapshot(s.rig.mesh.Snapshot()))
}

// load sends requests to a service until stop is called, which fails the test if a request
// failed.
func (s *vhdsMesh) load(name string) (stop func()) {
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

// An Envoy that claims to support VHDS and rejects it is served inline route
// configurations, at once and from then on.
func TestRealEnvoyRejectsVHDS(t *testing.T) {
	t.Parallel()
	s := newVHDSMesh(t, envoytest.Oldest, vhds.MaxInline+4, bootstrap.FeatureVirtualHosts)
	s.awaitForm(true)
	if log := s.rig.log.String(); !strings.Contains(log, "DELTA_GRPC") || !strings.Contains(log, "sending the whole route configuration") {
		t.Error("it did not reject them")
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

// The form changes under load from VHDS to inline: by a NACK, and by the operator's
// setting. It does not change back, because Envoy would answer 404 meanwhile; a new Envoy
// gets VHDS again.
func TestRealEnvoyChangesFromVHDSToInline(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		if !vhds.Supported(1, uint32(envoytest.Minor(t, version))) {
			continue // it supports inline routes only
		}
		for _, rejected := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/rejected-%t", version, rejected), func(t *testing.T) {
				t.Parallel()
				s := newVHDSMesh(t, version, vhds.MaxInline+4)
				s.awaitForm(false)
				stop := s.load("s07.mesh")
				if rejected {
					s.fallBack()
				} else {
					s.serve(func(c *Config) { c.InlineRoutes = true })
				}
				s.awaitForm(true)
				s.serve(nil)
				s.awaitForm(true)
				if n := s.sentTables(); n > 0 {
					t.Errorf("a restarted server sent %d route configurations and virtual hosts", n)
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

// fallBack has the server see a NACK of the VHDS route configuration.
func (s *vhdsMesh) fallBack() {
	s.t.Helper()
	routeConfig := strconv.Itoa(s.port)
	for _, c := range s.rig.server.connections() {
		c.runInOwner(nil, func() {
			r := c.resources.Generation.Get(stream.RouteType, routeConfig)
			c.fallBackToInline(stream.Event{Kind: stream.EventRejected, Type: stream.RouteType, Name: r.Name, Version: r.Version, Reason: "a test"})
		}, nil)
		if c.routes != c.routes.WithInline(view.RoutesLayer+routeConfig) {
			s.t.Error("the NACK had no effect")
		}
	}
}

// sentTables is how many route configurations and virtual hosts the server has sent.
func (s *vhdsMesh) sentTables() uint64 {
	sent := s.rig.server.Work().Sent
	return sent[stream.RouteType].Resources + sent[stream.VirtualHostType].Resources
}

// The number of services crosses the limit for inline delivery in both directions, and
// servers are replaced: the route configuration keeps the form that Envoy has, and a new
// server sends nothing.
func TestRealEnvoyKeepsVHDSOrInline(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		if !vhds.Supported(1, uint32(envoytest.Minor(t, version))) {
			continue // it supports inline routes only
		}
		for _, inline := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/inline-%t", version, inline), func(t *testing.T) {
				t.Parallel()
				few, many := vhds.MaxInline-4, vhds.MaxInline+4
				if !inline {
					few, many = many, few
				}
				s := newVHDSMesh(t, version, few)
				s.awaitForm(inline)
				stop := s.load("s07.mesh")
				for _, n := range []int{many, few, vhds.MaxInline + 1, vhds.MaxInline, vhds.MaxInline + 1, 3 * vhds.MaxInline} {
					s.setServices(n)
					s.awaitForm(inline)
					s.serve(nil)
					s.awaitForm(inline)
					if n := s.sentTables(); n != 0 {
						t.Errorf("a restarted server sent %d route configurations and virtual hosts", n)
					}
				}
				stop()
				s.envoy.NoRejections(t)
			})
		}
	}
}
