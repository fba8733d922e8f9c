package consul_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Names that look like paths are asked for as what they are.
func TestOddNamesAreRead(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			for i, name := range []string{"plain", "with/slash", "../kv/x", "per%2Fcent", "qu?ery#x", "spa ce"} {
				instance{node: "n1", id: fmt.Sprint("i", i), service: name, port: 8000 + i}.register(t, a.Client())
			}
			r := start(t, config(t, a.Cluster(), a.Address()))
			r.awaitStatus("read", func(st *consul.Status) bool { return live(st) && st.Services == 7 && st.Instances == 7 })
			if st := r.source.Status(); len(st.Unreadable) > 0 || st.Failed > 0 {
				t.Errorf("status is %+v", st)
			}
		})
	}
}

func TestAFilterChoosesInstances(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			c := a.Client()
			in := instance{node: "n1", id: "web-1", service: "web", meta: map[string]string{"mesh": "yes"}}
			in.register(t, c)
			instance{node: "n2", id: "web-2", service: "web"}.register(t, c)
			instance{node: "n2", id: "api-1", service: "api", status: "critical"}.register(t, c)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.Filter, cfg.SweepEvery = `Service.Meta.mesh == "yes"`, time.Hour
			r := start(t, cfg)
			r.awaitFresh("at the start")
			if f := r.Last(); len(f.Workloads) != 1 || len(f.Services) != 1 {
				t.Errorf("the catalog is\n%s", text(f))
			}
			in.with(func(i *instance) { i.meta = nil }).register(t, c)
			r.await("left out now", func(f *mesh.Fragment) bool { return len(f.Workloads) == 0 && len(f.Services) == 0 })
			in.register(t, c)
			r.await("chosen again", func(f *mesh.Fragment) bool { return len(f.Workloads) == 1 })
		})
	}
}

// A server that cannot carry a watch for each service is asked by table watches for
// the others.
func TestTablesServeWhatWatchesCannot(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{TLS: true})
	c := a.Client()
	for i := range 260 {
		instance{node: "n1", id: fmt.Sprintf("s%d-1", i), service: fmt.Sprintf("s%d", i)}.register(t, c)
	}
	cfg := config(t, a.Cluster(), a.Address())
	cfg.Client.MaxConnections, cfg.SweepEvery = 5, time.Hour
	r := start(t, cfg)
	r.awaitFresh("at the start")
	r.awaitStatus("both", func(st *consul.Status) bool { return st.Mode == consul.ModeBoth && st.Connections <= 5 && live(st) })
	for i := range 260 {
		instance{node: "n1", id: fmt.Sprintf("s%d-1", i), service: fmt.Sprintf("s%d", i), port: 9000, status: "critical"}.register(t, c)
	}
	r.awaitFresh("all are others")
}

func TestReadReportsDenials(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true})
	fill(t, a.Client(), 2)
	cfg := config(t, a.Cluster(), a.Address())
	cfg.Logger = slog.New(slog.DiscardHandler)
	cfg.Client.TokenFile = tokenFile(t, a.Cluster().CreateToken(`node_prefix "" { policy = "read" } service "s1" { policy = "read" }`).Secret)
	f, st, err := consul.Read(t.Context(), cfg)
	if err != nil || len(f.Workloads) != 3 || !st.Hidden {
		t.Errorf("reading what a token may see: %d workloads, hidden %t, %v", len(f.Workloads), st.Hidden, err)
	}
	replace(t, cfg.Client.TokenFile, "6a1253d2-1785-24fd-91c2-f8e78c745511")
	if _, _, err := consul.Read(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "denies") {
		t.Errorf("reading with an unknown token: %v", err)
	}
	a.Kill()
	if _, _, err := consul.Read(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "not available") {
		t.Errorf("reading without Consul: %v", err)
	}
}
