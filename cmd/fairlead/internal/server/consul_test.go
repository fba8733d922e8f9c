package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

// TestConsulFlags refuses what could not work, by the names that people know.
func TestConsulFlags(t *testing.T) {
	t.Parallel()
	reach := client.Config{Address: "127.0.0.1:1"}
	for name, c := range map[string]struct {
		consul Consul
		want   string // part of the error; empty for none
	}{
		"no_directory_is_needed":  {Consul{Client: reach}, ""},
		"nothing_at_all":          {Consul{}, "--config-dir, or a Consul with --consul-address"},
		"no_address":              {Consul{Client: client.Config{Address: "ftp://x"}}, "(--consul-address)"},
		"a_datacenter_twice":      {Consul{Client: reach, Datacenters: []string{"a", "a"}}, `--consul-datacenter "a" is named twice`},
		"a_datacenter_that_is_no": {Consul{Client: reach, Datacenters: []string{"a/b"}}, `--consul-datacenter "a/b": write its name`},
		"a_template":              {Consul{Client: reach, Mapping: mapping.Config{Hosts: []string{"{{.Nobody}}.mesh"}}}, "--consul-host"},
		"a_prefix":                {Consul{Client: reach, KVPrefix: "mesh=NO NAMESPACE"}, "--consul-kv-prefix"},
		"a_token_file":            {Consul{Client: client.Config{Address: "127.0.0.1:1", TokenFile: "/nowhere"}}, "--consul-token-file"},
		"an_authority":            {Consul{Client: client.Config{Address: "https://127.0.0.1:1", CAFile: "/nowhere"}}, "--consul-ca-file"},
		"authority_and_no_tls":    {Consul{Client: client.Config{Address: "127.0.0.1:1", CAFile: "/nowhere"}}, "is not https://"},
		"time":                    {Consul{Client: reach, SweepInterval: -1}, "--consul-sweep-interval"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t)
			cfg.Consul = c.consul
			s, err := New(t.Context(), cfg)
			switch {
			case err == nil:
				err = s.Close()
				if c.want != "" || err != nil {
					t.Errorf("no error, want %q; closing: %v", c.want, err)
				}
			case c.want == "" || !strings.Contains(err.Error(), c.want):
				t.Errorf("error %v, want %q", err, c.want)
			default:
				expectNothing(t, cfg)
			}
		})
	}
}

// TestConnectionsAreShared: the sources that ask one Consul share what it grants.
func TestConnectionsAreShared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		consul Consul
		want   int
	}{
		{Consul{}, 64},
		{Consul{KVPrefix: "mesh"}, 32},
		{Consul{Datacenters: []string{"a", "b"}}, 32},
		{Consul{Datacenters: []string{"a", "b", "c", "d"}, KVPrefix: "mesh"}, 24},
	} {
		configs, err := c.consul.Catalogs()
		if err != nil {
			t.Fatal(err)
		}
		for _, cfg := range configs {
			if cfg.Client.MaxConnections != c.want {
				t.Errorf("%+v: %d connections for %s, want %d", c.consul, cfg.Client.MaxConnections, cfg.Name, c.want)
			}
		}
	}
}

// TestConsulAway: a server starts without its Consul, and says what is missing
// and why. Nothing that it says has the token.
func TestConsulAway(t *testing.T) {
	t.Parallel()
	const secret = "b1gs07cr-0000-0000-0000-000000000000"
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": cart}))
	token := filepath.Join(t.TempDir(), "token")
	put(t, token, secret+"\n")
	cfg.Consul = Consul{Client: client.Config{Address: "127.0.0.1:1", TokenFile: token}, KVPrefix: "mesh"}
	cfg.HTTPAddress = "127.0.0.1:0"
	r := start(t, cfg)
	r.eventually(func() error {
		text := readyz(t, r)
		for _, want := range []string{"source consul has not delivered: ", "source consul-kv has not delivered: ", "127.0.0.1:1"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("/readyz lacks %q: %s", want, text)
			}
		}
		return nil
	})
	r.eventually(func() error { // it serves what it has
		if s := r.sources(); s.Registry.Generation == 0 {
			return fmt.Errorf("nothing is published: %+v", s.Registry)
		}
		return nil
	})
	if started, ready := r.Starting(), r.NotReady(); len(started) > 0 || len(ready) == 0 {
		t.Errorf("the start waits for %v, and not ready are %v", started, ready)
	}
	if text := readyz(t, r) + r.out.String() + get(t, r, "/metrics"); strings.Contains(text, secret) {
		t.Errorf("the token is shown:\n%s", text)
	}
}

func readyz(t *testing.T, r *running) string {
	t.Helper()
	return get(t, r, "/readyz")
}

func get(t *testing.T, r *running, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+r.admin.Address()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req) //nolint:forbidigo // a test
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(resp.Body)
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections() //nolint:forbidigo // a test
	return string(b)
}

const ownWeb = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec:
  hosts: [web.service.consul]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.9.9.9}]
`

// hosts waits until the mesh has those services, each with its source and number of
// endpoints, beside Consul's own.
func (r *running) hosts(want ...string) {
	r.t.Helper()
	r.eventually(func() error {
		s := r.registry.Snapshot()
		if s == nil || s.Incomplete {
			return fmt.Errorf("not complete: %v", r.NotReady())
		}
		var got []string
		for _, svc := range s.Services {
			if strings.HasPrefix(svc.Name, "consul/consul") {
				continue
			}
			got = append(got, fmt.Sprintf("%s:%s:%d", svc.Hostname, svc.Origin.Source, len(s.EndpointsOf(svc))))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("services %v, want %v; conflicts %v", got, want, s.Conflicts)
		}
		return nil
	})
}

// TestOneMeshOfBoth reads a directory, the catalog and the key-value store of a
// real Consul.
func TestOneMeshOfBoth(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{})
	register := func(id, name, address string) {
		t.Helper()
		err := agent.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{
			ID: id, Name: name, Address: address, Port: 8080, Meta: map[string]string{"protocol": "http", "app": "cart"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	register("web-1", "web", "10.0.0.1")
	register("api-1", "api", "10.0.0.2")
	if _, err := agent.Client().KV().Put(&api.KVPair{Key: "mesh/b.yaml", Value: []byte(rule("shop", "b"))}, nil); err != nil {
		t.Fatal(err)
	}
	dir := treeOf(t, map[string]string{"a.yaml": cart})
	cfg := config(t, dir)
	cfg.SourceWait, cfg.HTTPAddress = time.Minute, "127.0.0.1:0"
	cfg.Consul = Consul{Client: client.Config{Address: agent.Address()}, KVPrefix: "mesh"}
	r := start(t, cfg)
	// The instances call themselves cart, and are not behind it.
	r.hosts("api.service.consul:consul:1", "cart.shop.internal:files:1", "web.service.consul:consul:1")
	if s := r.registry.Snapshot(); len(s.DestinationRules) != 1 || s.DestinationRules[0].Origin.Source != kvSource {
		t.Errorf("of the key-value store: %+v", s.DestinationRules)
	}
	if got := readyz(t, r); got != "ready\n" {
		t.Errorf("/readyz: %s", got)
	}
	metrics := get(t, r, "/metrics")
	for _, want := range []string{`fairlead_consul_available{source="consul"} 1`, `fairlead_source_age_seconds{source="consul"}`, `fairlead_source_available{source="consul-kv"} 1`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %s", want)
		}
	}

	put(t, filepath.Join(dir, "web.yaml"), ownWeb)
	r.hosts("api.service.consul:consul:1", "cart.shop.internal:files:1", "web.service.consul:files:1")
	s := r.sources()
	if len(s.Consul) != 1 || s.Consul[0].Services < 2 || len(s.Registry.Conflicts) != 1 || !strings.Contains(s.Registry.Conflicts[0].Reason, "ServiceEntry shop/web") {
		t.Errorf("conflicts: %+v, catalogs: %+v", s.Registry.Conflicts, s.Consul)
	}
	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	r.hosts("api.service.consul:consul:1", "cart.shop.internal:files:1", "web.service.consul:consul:1")
	register("web-2", "web", "10.0.0.3")
	r.hosts("api.service.consul:consul:1", "cart.shop.internal:files:1", "web.service.consul:consul:2")
	if n := len(r.sources().Registry.Conflicts); n != 0 {
		t.Errorf("%d conflicts", n)
	}
}

// TestConsulAwayAtARestart: a server that comes back without its Consul serves
// what Consul said last, is ready, and says how old that is.
func TestConsulAwayAtARestart(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{})
	err := agent.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{ID: "web-1", Name: "web", Address: "10.0.0.1", Port: 8080})
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(t)
	cfg.SourceWait, cfg.HTTPAddress = time.Minute, "127.0.0.1:0"
	cfg.Consul = Consul{Client: client.Config{Address: agent.Address()}}
	r := start(t, cfg)
	r.eventually(func() error {
		if got := readyz(t, r); got != "ready\n" {
			return fmt.Errorf("/readyz: %s", got)
		}
		return nil
	})
	agent.Kill()
	old := func(r *running, words string) {
		t.Helper()
		r.eventually(func() error {
			got := readyz(t, r)
			if !strings.HasPrefix(got, "ready\nsource consul is stale: serving "+words) || !strings.Contains(got, " old: ") {
				return fmt.Errorf("/readyz: %s", got)
			}
			return nil
		})
		if s := r.registry.Snapshot(); s == nil || len(s.ServicesOn("web.service.consul")) != 1 || len(s.WorkloadsAt("10.0.0.1")) != 1 {
			t.Fatalf("the mesh: %+v", s)
		}
	}
	old(r, "the last known catalog")
	r.stop()
	r = start(t, cfg)
	old(r, "the stored catalog from before the restart")
	if metrics := get(t, r, "/metrics"); !strings.Contains(metrics, `fairlead_source_from_disk{source="consul"} 1`) || !strings.Contains(metrics, `fairlead_consul_available{source="consul"} 0`) {
		t.Error("the metrics do not have it")
	}
	agent.Start()
	r.eventually(func() error {
		if got := readyz(t, r); got != "ready\n" {
			return fmt.Errorf("/readyz: %s", got)
		}
		return nil
	})
}

// TestTwoDatacenters reads two, each as a source of its own.
func TestTwoDatacenters(t *testing.T) {
	t.Parallel()
	one := consultest.Start(t, consultest.Options{})
	two := consultest.Start(t, consultest.Options{Datacenter: "dc2", JoinWAN: []*consultest.Agent{one}})
	for i, a := range []*consultest.Agent{one, two} {
		err := a.Client().Agent().ServiceRegister(&api.AgentServiceRegistration{
			ID: "web-1", Name: "web", Address: fmt.Sprintf("10.0.0.%d", i+1), Port: 8080 + i, Meta: map[string]string{"protocol": "http"},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := config(t)
	cfg.SourceWait = time.Minute
	cfg.Consul = Consul{Client: client.Config{Address: one.Address()}, Datacenters: []string{"dc1", "dc2"}}
	r := start(t, cfg)
	r.eventually(func() error {
		s := r.registry.Snapshot()
		if s == nil || s.Incomplete {
			return fmt.Errorf("not complete: %v", r.NotReady())
		}
		services := s.ServicesOn("web.service.consul")
		if len(services) != 1 || services[0].Origin.Source != "consul" || len(s.EndpointsOf(services[0])) != 2 {
			return fmt.Errorf("services: %+v", services)
		}
		for i, w := range s.EndpointsOf(services[0]) { // each at its own port, and in its own place
			if w.PortFor(services[0].Ports[0]) != uint32(8080+i) || w.Locality.Region != fmt.Sprintf("dc%d", i+1) {
				return fmt.Errorf("endpoint %d: %+v", i, w)
			}
		}
		if len(s.Conflicts) != 1 || !strings.Contains(s.Conflicts[0].Reason, "ports http/8080/HTTP and http/8081/HTTP") {
			return fmt.Errorf("conflicts: %+v", s.Conflicts)
		}
		return nil
	})
	if s := r.sources(); len(s.Consul) != 2 || s.Consul[1].Source != "consul:dc2" || s.Consul[1].Datacenter != "dc2" {
		t.Errorf("status: %+v", s.Consul)
	}
}
