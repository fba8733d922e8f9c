package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// scenes are the tenants of docs/consul-kv.md, those of the shared gateway in docs/gateways.md, two directories of
// one namespace, and names below wildcards of others.
func scenes() map[string][]call {
	return map[string][]call{
		"keys": {
			{"client", "http://orders.internal:9080/", "29"},
			{"client", "http://de.eu.orders.internal:9080/", "30"},
			{"client", "http://inventory.internal:9080/", "33"},
			{"edge", "http://stock.example.com:8080/", "33"},
			{"edge", "http://orders.example.org:8080/", "29"}, // the Gateway gives it to the namespace
		},
		"gateway": {
			{"edge", "http://shop.example.com:8080/", "21"},
			{"edge", "http://a.shop.example.org:8080/", "21"}, // the Gateway gives it to the namespace
			{"edge", "http://any.example.com:8080/", "21"},    // a wildcard with hosts of others below it
			{"edge", "tcp://db.example.com:9000", "32"},
			{"client", "http://api.supplier.example:9080/", "24"},
			{"client", "http://cart.shop.svc.cluster.local:9080/", "25"},
		},
		"directories": {
			{"client", "http://web.shop.internal:9080/", "21"},
			{"client", "http://web.shop.internal:9080/more", "26"},
			{"client", "http://more.shop.internal:9080/", "26"},
			{"customer", "http://web.shop.internal:9080/more", "26"},
			{"edge", "http://more.example.com:8080/", "26"},
			{"edge", "http://shop.example.com:8080/more", "26"},
		},
		"wildcards": {
			{"client", "http://x.partner.internal:9080/", "23"},
			{"client", "http://api.partner.internal:9080/", "23"}, // the wildcard was there first
			{"customer", "http://x.partner.internal:9080/", "23"},
			{"client", "http://old.stock.internal:9080/", "27"}, // the wildcard came later
			{"customer", "http://x.stock.internal:9080/", "22"},
			{"client", "tcp://cache.shop.internal:7000", "31"}, // had the port before another tenant
		},
	}
}

// TestTenantsOfTheReleaseBefore upgrades a control plane whose tenants have hosts by the record of the release
// before. Then it moves what they have into settings, as the condition says.
func TestTenantsOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	previous := os.Getenv("FAIRLEAD_PREVIOUS_TENANTS")
	if os.Getenv("FAIRLEAD_RECORD") != "" {
		newTenants(t).record(previous)
		return
	}
	s := newTenants(t)
	s.putAll()
	s.copyState()
	s.startAgents(s.fairlead, "")
	loads := s.loads()
	if previous != "" {
		s.startServer(previous)
		s.AwaitLive(slices.Collect(maps.Keys(tenantHosts()))...)
		s.unharmed("before", loads, 100)
		s.Server.Stop()
	}
	s.startServer(s.fairlead)
	s.AwaitLive(slices.Collect(maps.Keys(tenantHosts()))...)
	s.unharmed("after the upgrade", loads, 300)
	s.granted()

	// First settings, then nothing but these.
	s.giveAtGateways()
	settings := s.printed()
	s.restart(settings...)
	s.unharmed("with settings", loads, 100)
	if out := s.status(); !strings.Contains(out, "from before patterns: port 7000\n") || strings.Contains(out, "from before patterns: port 7000, ") {
		t.Errorf("the condition has not the port alone, with %q:\n%s", settings, out)
	}
	s.removeGrants()
	s.restart(settings...)
	s.unharmed("with settings alone", loads, 200)
	for name, l := range loads {
		t.Logf("%s: %+v", name, l.Stop())
	}
}

// loads begins 100 requests a second of each scene, once all of them are answered.
func (s *tenants) loads() map[string]*meshtest.Load {
	s.t.Helper()
	out := map[string]*meshtest.Load{}
	for name, calls := range scenes() {
		for _, c := range calls {
			envoytest.Eventually(s.t, envoytest.Patience, func() error { return s.ask(s.t.Context(), c) })
		}
		turns := make(chan call, 1)
		go func() {
			for n := 0; ; n++ {
				select {
				case turns <- calls[n%len(calls)]:
				case <-s.t.Context().Done():
					return
				}
			}
		}()
		out[name] = meshtest.StartLoad(s.t, 100, func(ctx context.Context) error { return s.ask(ctx, <-turns) })
	}
	return out
}

// unharmed waits for n more answers of each load, and fails the test if any request has failed.
func (s *tenants) unharmed(when string, loads map[string]*meshtest.Load, n int) {
	s.t.Helper()
	for name, l := range loads {
		l.Wait(s.t, n)
		n = 10 // the others have had the time
		if r := l.Now(); r.Failed != 0 {
			s.t.Errorf("%s, %s: requests failed: %+v", when, name, r)
		}
	}
}

// grants are those of the record, by namespace.
func grants() map[string][]string {
	return map[string][]string{
		"orders": {"*.eu.orders.internal", "legacy.example.net", "orders.internal"},
		"stock":  {"inventory.internal", "stock.example.com"},
		"pay":    {"db.example.com", "db.pay.internal", "old.stock.internal"},
		"shop": {
			"*.example.com", "*.partner.internal", ":7000", "api.supplier.example", "cache.shop.internal", "more.example.com", "more.shop.internal", "shop.example.com",
			"web.shop.internal",
		},
	}
}

// granted checks what the first start wrote, and that the condition has it.
func (s *tenants) granted() {
	s.t.Helper()
	data, err := os.ReadFile(s.grantsFile())
	if err != nil {
		s.t.Fatal(err)
	}
	var file grantsOnDisk
	if err := json.Unmarshal(data, &file); err != nil {
		s.t.Fatal(err)
	}
	have := map[string][]string{}
	for _, g := range file.Grants {
		have[g.Namespace] = append(have[g.Namespace], g.Name)
	}
	out := s.status()
	for ns, names := range grants() {
		if slices.Sort(have[ns]); !slices.Equal(have[ns], names) {
			s.t.Errorf("namespace %s was granted %q, want %q", ns, have[ns], names)
		}
		for _, name := range names {
			if !strings.Contains(out, strings.TrimPrefix(name, ":")) {
				s.t.Errorf("the condition does not have %s of namespace %s:\n%s", name, ns, out)
			}
		}
	}
	if len(have) != len(grants()) {
		s.t.Errorf("grants are of other namespaces: %v", have)
	}
}

// grantsOnDisk is host-grants.json.
type grantsOnDisk struct {
	Version int           `json:"version"`
	Grants  []grantOnDisk `json:"grants"`
}

type grantOnDisk struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

func (s *tenants) grantsFile() string { return filepath.Join(s.StateDir("server"), "host-grants.json") }

// giveAtGateways lets the Gateway say whose the hosts are that are routed there alone.
func (s *tenants) giveAtGateways() {
	s.t.Helper()
	path, next := filepath.Join(s.Dir, "mesh/platform.yaml"), filepath.Join(s.Dir, "new")
	text, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	given := strings.NewReplacer(`"*.example.com",`, `"shop/*.example.com", "stock/stock.example.com",`, `hosts: ["*"]`, `hosts: ["pay/db.example.com"]`).Replace(string(text))
	if err := errors.Join(os.WriteFile(next, []byte(given), 0o600), os.Rename(next, path)); err != nil {
		s.t.Fatal(err)
	}
	s.Server.Eventually(envoytest.Patience, func() error {
		if out := s.status(); strings.Contains(out, "stock.example.com") {
			return errors.New("the Gateway does not give stock.example.com yet")
		}
		return nil
	})
}

// removeGrants leaves the port in the file, which no setting gives.
func (s *tenants) removeGrants() {
	s.t.Helper()
	data, err := json.Marshal(grantsOnDisk{1, []grantOnDisk{{":7000", "shop"}}})
	if err := errors.Join(err, os.WriteFile(s.grantsFile(), data, 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *tenants) restart(settings ...string) {
	s.t.Helper()
	s.Server.Stop()
	s.startServer(s.fairlead, settings...)
	s.AwaitLive(slices.Collect(maps.Keys(tenantHosts()))...)
}

// flag is a flag in the text of a condition, in words of a shell.
var flag = regexp.MustCompile(`(--config-hosts|--consul-kv-hosts) '([^']*)'`)

// printed are the flags that the condition says to start the server with.
func (s *tenants) printed() []string {
	s.t.Helper()
	var out []string
	for line := range strings.Lines(s.status()) {
		if _, text, is := strings.Cut(line, "start the server with "); is {
			for _, words := range flag.FindAllStringSubmatch(text, -1) {
				out = append(out, words[1], words[2])
			}
		}
	}
	if len(out) == 0 {
		s.t.Fatal("the condition has no flags")
	}
	return out
}
