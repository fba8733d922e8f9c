package consul_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Who comes without a token where there are ACLs sees nothing, and the status says so;
// what was seen before is not gone for it, nor across a restart.
func TestHiddenServicesAreReportedWithoutToken(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true})
	fill(t, a.Client(), 2)
	cfg := config(t, a.Cluster(), a.Address())
	r := start(t, cfg)
	r.awaitStatus("reported", func(st *consul.Status) bool {
		return live(st) && st.Hidden && st.DeniedCount > 0 && strings.Contains(strings.Join(st.Denied, "\n"), `service_prefix ""`)
	})
	if log := r.log.String(); strings.Count(log, "Consul token lacks ACL rules") != 1 || !strings.Contains(log, "service_prefix") {
		t.Errorf("the log is\n%s", log)
	}
	r.Stop()

	cfg.StateDir = t.TempDir()
	cfg.Client.TokenFile = tokenFile(t, a.Cluster().Management)
	r = start(t, cfg)
	r.await("all", func(f *mesh.Fragment) bool { return len(f.Workloads) == 6 })
	r.awaitStatus("all", func(st *consul.Status) bool { return live(st) && st.DeniedCount == 0 && !st.Hidden })
	r.Stop()
	cfg.Client.TokenFile = ""
	r = start(t, cfg)
	r.awaitStatus("restarted", func(st *consul.Status) bool { return live(st) && st.Hidden })
	if f := r.Last(); len(f.Workloads) != 6 {
		t.Errorf("without a token the catalog is\n%s", text(f))
	}
}

// Who may see everything without a token is followed as anybody.
func TestUnneededTokenHidesNothing(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{ACL: true})
	c := a.Client()
	p, _, err := c.ACL().PolicyCreate(&api.ACLPolicy{
		Name: "everybody", Rules: `service_prefix "" { policy = "read" } node_prefix "" { policy = "read" }`,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.ACL().TokenUpdate(&api.ACLToken{
		AccessorID: "00000000-0000-0000-0000-000000000002", Policies: []*api.ACLLink{{ID: p.ID}},
	}, nil); err != nil {
		t.Fatal(err)
	}
	in := instance{node: "n1", id: "web-1", service: "web"}
	in.register(t, c)
	r := start(t, config(t, a.Cluster(), a.Address()))
	r.awaitStatus("read", func(st *consul.Status) bool { return live(st) && !st.Hidden && st.DeniedCount == 0 && st.Instances > 0 })
	deregister(t, c, "n1", "web-1")
	r.await("gone", func(f *mesh.Fragment) bool { return workload(f, "/web-1") == nil })
}

// A filter that Consul does not take is reported as that, and is no empty catalog.
func TestRefusedFilterIsReported(t *testing.T) {
	t.Parallel()
	for name, o := range modes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := consultest.Start(t, o)
			fill(t, a.Client(), 2)
			cfg := config(t, a.Cluster(), a.Address())
			cfg.Filter = `Service.Foo ==`
			r := start(t, cfg)
			r.awaitStatus("reported", func(st *consul.Status) bool {
				return st.State == consul.Starting && !st.Delivered && strings.Contains(st.Reason, "--consul-filter")
			})
			if log := r.log.String(); strings.Count(log, "does not take the filter") != 1 {
				t.Errorf("the log is\n%s", log)
			}
			if r.Last() != nil {
				t.Errorf("the catalog is\n%s", text(r.Last()))
			}
		})
	}
}

// Files that cannot be used at the start are reported by their flags.
func TestFilesAreRequiredAtStart(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/nowhere/at/all", empty} {
		for flag, set := range map[string]func(*consul.Config){
			"--consul-token-file": func(c *consul.Config) { c.Client.TokenFile = path },
			"--consul-ca-file":    func(c *consul.Config) { c.Client.CAFile = path },
			"--consul-cert-file":  func(c *consul.Config) { c.Client.CertFile, c.Client.KeyFile = path, path },
		} {
			cfg := odd(t, nil)
			cfg.Logger = slog.New(slog.DiscardHandler)
			cfg.Client.Address = strings.Replace(cfg.Client.Address, "http://", "https://", 1)
			set(&cfg)
			if _, err := consul.New(cfg); err == nil || !strings.Contains(err.Error(), flag) || !strings.Contains(err.Error(), path) {
				t.Errorf("with %s %s: %v", flag, path, err)
			}
		}
	}
}
