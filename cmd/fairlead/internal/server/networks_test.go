package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestNetworksFollowTheirFile: the networks of --mesh-networks are in force with the first snapshot,
// follow their file, and stay while it is broken, also after a restart. A first start with a broken
// file fails.
func TestNetworksFollowTheirFile(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	cfg := config(t, dir)
	cfg.MeshNetworksFile = filepath.Join(dir, "networks.yaml") // where it is no manifest
	put(t, cfg.MeshNetworksFile, "netwroks: {}\n")
	s, err := New(t.Context(), cfg)
	if err == nil {
		t.Fatalf("it started: %v", s.Close())
	}
	for _, want := range []string{"--mesh-networks", "networks.yaml:1:1", "netwroks"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
	inForce := func(r *running, names ...string) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.MeshNetworks == nil || len(s.DestinationRules) != 1 {
				return fmt.Errorf("in force: %+v", s)
			}
			if got := slices.Sorted(maps.Keys(s.MeshNetworks.Spec.GetNetworks())); !slices.Equal(got, names) {
				return fmt.Errorf("networks %v, want %v", got, names)
			}
			return nil
		})
	}
	put(t, cfg.MeshNetworksFile, "networks: {east: {}}\n")
	r := start(t, cfg)
	inForce(r, "east")
	put(t, cfg.MeshNetworksFile, "networks: {east: {}, west: {}}\n")
	inForce(r, "east", "west")
	put(t, cfg.MeshNetworksFile, "networks: {east: {gateways: [{port: 1}]}}\n")
	faulty := func() error {
		s := r.sources()
		return s.fault("mesh-networks", "networks.yaml:1:30", "error")
	}
	r.eventually(faulty)
	inForce(r, "east", "west")
	r.stop()
	r = start(t, cfg)
	inForce(r, "east", "west")
	r.eventually(faulty)
	r.stop()
}

// TestNetworkWithoutGatewayIsReported: a network whose gateway service has no workload is a condition,
// with the reason, until one is there.
func TestNetworkWithoutGatewayIsReported(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	cfg := config(t, dir)
	cfg.MeshNetworksFile = filepath.Join(t.TempDir(), "networks.yaml")
	put(t, cfg.MeshNetworksFile, "networks: {east: {gateways: [{registryServiceName: gw.mesh, port: 15443}]}}\n")
	r := start(t, cfg)
	reported := func(want string) {
		t.Helper()
		r.eventually(func() error {
			var list []string
			for _, c := range r.conditionsNow() {
				if c.Reason == "network-gateway" {
					list = append(list, c.Subject+": "+c.Text)
				}
			}
			if got := strings.Join(list, "; "); got != want {
				return fmt.Errorf("reported %q, want %q", got, want)
			}
			return nil
		})
	}
	const is = "network east: network east has no gateway, so that proxies of other networks connect to the addresses of its workloads: registryServiceName gw.mesh: "
	reported(is + `there is no service "gw.mesh"`)
	const gateway = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: gw}\n" +
		"spec: {hosts: [gw.mesh], ports: [{number: 15443, name: tls, protocol: TLS}], resolution: STATIC"
	put(t, filepath.Join(dir, "gw.yaml"), gateway+"}\n")
	reported(is + "the service has no workload with an IP address")
	put(t, filepath.Join(dir, "gw.yaml"), gateway+", endpoints: [{address: 203.0.113.1}]}\n")
	reported("")
	r.stop()
}

// TestGatewayNamesAreLookedUp: a gateway has the addresses of its name from the first snapshot on. They stay
// while the name is not known any more, over a restart, too, and that is a condition.
func TestGatewayNamesAreLookedUp(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": rule("default", "a")}))
	cfg.MeshNetworksFile = filepath.Join(t.TempDir(), "networks.yaml")
	put(t, cfg.MeshNetworksFile, "networks: {east: {gateways: [{address: gw.example, port: 15443}]}}\n")
	cfg.lookupGateway = func(_ context.Context, name string) ([]netip.Addr, error) {
		if name != "gw.example." {
			return nil, fmt.Errorf("nobody knows %s", name)
		}
		return []netip.Addr{netip.MustParseAddr("203.0.113.1")}, nil
	}
	first := func(r *running) string {
		t.Helper()
		var s *mesh.Snapshot
		r.eventually(func() error {
			if s = r.registry.Snapshot(); s == nil || s.MeshNetworks == nil {
				return errors.New("there are no networks yet")
			}
			return nil
		})
		return s.MeshNetworks.Spec.GetNetworks()["east"].GetGateways()[0].GetAddress()
	}
	r := start(t, cfg)
	if got := first(r); got != "203.0.113.1" {
		t.Errorf("the first snapshot has %s", got)
	}
	r.stop()

	cfg.lookupGateway = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no nameserver answers") }
	r = start(t, cfg)
	if got := first(r); got != "203.0.113.1" {
		t.Errorf("after a restart, the first snapshot has %s", got)
	}
	r.eventually(func() error {
		if list := r.sourcesNow().Networks.Names; len(list) != 1 || list[0].Err != "no nameserver answers" || len(list[0].Addresses) != 1 {
			return fmt.Errorf("names: %+v", list)
		}
		return nil
	})
	put(t, cfg.MeshNetworksFile, "networks: {east: {gateways: [{address: gone.example, port: 15443}]}}\n")
	r.eventually(func() error {
		got := map[string]string{}
		for _, c := range r.conditionsNow() {
			got[c.Subject] = c.Reason + " " + c.Text
		}
		if !strings.HasPrefix(got["gateway gone.example"], "network-gateway the name gone.example of a gateway of networks cannot be looked up, so that the gateway is left out: no nameserver answers") ||
			!strings.HasSuffix(got["network east"], "address gone.example: the name has no known address") {
			return fmt.Errorf("conditions: %v", got)
		}
		return nil
	})
	r.stop()
}

// TestNetworksKeepTheirGateways: a file of networks that lost all its gateways is on hold until a person
// confirms it, also after a restart.
func TestNetworksKeepTheirGateways(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": rule("default", "a")}))
	cfg.MeshNetworksFile = filepath.Join(t.TempDir(), "networks.yaml")
	put(t, cfg.MeshNetworksFile, "networks: {east: {gateways: [{address: 203.0.113.1, port: 15443}]}}\n")
	networks := func(r *running, n int) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.MeshNetworks == nil || len(s.MeshNetworks.Spec.GetNetworks()) != n {
				return fmt.Errorf("in force: %+v", s)
			}
			return nil
		})
	}
	held := func(r *running) {
		t.Helper()
		r.eventually(func() error {
			for _, c := range r.conditionsNow() {
				if c.Reason == "removal-held" && strings.Contains(c.Text, "1 removal of source mesh-networks on hold, the first is MeshNetworks for ") &&
					strings.Contains(c.Text, string(registry.GatewaysGone)) && strings.Contains(c.Action, "`fairlead release mesh-networks`") {
					return nil
				}
			}
			return fmt.Errorf("conditions: %+v", r.conditionsNow())
		})
	}
	r := start(t, cfg)
	networks(r, 1)
	put(t, cfg.MeshNetworksFile, "networks: {}\n")
	held(r)
	networks(r, 1)
	r.stop()
	r = start(t, cfg)
	held(r)
	networks(r, 1)
	if err := r.registry.Release("mesh-networks"); err != nil {
		t.Fatal(err)
	}
	networks(r, 0)
	r.stop()
	r = start(t, cfg)
	networks(r, 0)
	r.stop()
}
