package faults

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// refused is valid, and an Envoy that reads the files of v2 itself does not take it, for they are
// not on the host.
const refused = `  - name: v1
    labels: {version: v1}
    trafficPolicy: {connectionPool: {tcp: {connectTimeout: 3s}}}
  - name: v2
    labels: {version: v2}
    trafficPolicy: {tls: {mode: SIMPLE, caCertificates: /nonexistent/ca.pem, caCrl: /nonexistent/crl.pem}}
`

// envoysWords are in what Envoy says of it.
const envoysWords = "/nonexistent/"

const accepted = `  - name: v1
    labels: {version: v1}
  - name: v2
    labels: {version: v2}
`

// agentWithoutLists builds a program of which the agent does not read lists of revoked certificates
// for its Envoy, as agents of earlier releases do not. With others Envoy refuses no cluster that is
// known to be valid.
func agentWithoutLists(t *testing.T) string {
	t.Helper()
	root, dir := envoytest.ModuleRoot(t), t.TempDir()
	source := filepath.Join(root, "agent", "assemble.go")
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	const feature = " bootstrap.FeatureFileLists,"
	if strings.Count(string(text), feature) != 1 {
		t.Fatalf("%s does not announce%s once", source, feature)
	}
	changed, overlay, out := filepath.Join(dir, "assemble.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "fairlead")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {source: changed}})
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{changed: strings.Replace(string(text), feature, "", 1), overlay: string(replace)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-overlay", overlay, "-o", out, "./cmd/fairlead")
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return out
}

// TestRefusedCluster shows what a cluster that an Envoy refuses does, and what it
// does not: the one beside it is updated, the last good one stands, others are
// not touched, everybody is told; and nothing of it is left behind.
func TestRefusedCluster(t *testing.T) {
	s := newShop(t)
	i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == "web" })
	s.hosts[i].Wrap = []string{"sh", "-c", `shift; exec "$0" "$@"`, agentWithoutLists(t)}
	s.start()
	load := s.client.StartLoad(t, s.url, 50)
	load.Wait(t, 50)
	original := s.clusters("web")
	const v1, v2 = "outbound|9080|v1|orders.shop.internal", "outbound|9080|v2|orders.shop.internal"

	s.Edit("orders.yaml", accepted, refused)
	s.awaitRejected("web", v2)
	now := s.clusters("web")
	if !strings.Contains(now[v1], `"connect_timeout":"3s"`) {
		t.Errorf("the cluster beside the bad one was not updated: %s", now[v1])
	}
	if now[v2] != original[v2] {
		t.Errorf("the bad cluster was changed:\n%s", cmp.Diff(original[v2], now[v2]))
	}
	if log := s.Server.Log(); !strings.Contains(log, "orders.yaml") || !strings.Contains(log, envoysWords) {
		t.Error("the control plane's log does not say what became of the change")
	}
	out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
	if err == nil || !strings.Contains(out, envoysWords) || !strings.Contains(out, v2) {
		t.Errorf("proxy-status does not have Envoy's words: %v\n%s", err, out)
	}

	// Others go on.
	s.Edit("inventory.yaml", "kind: ServiceEntry", slowInventory)
	s.awaitClusterText("orders-v1", "outbound|9090||inventory.shop.internal", `"connect_timeout":"7s"`)
	s.awaitClusterText("orders-v2", "outbound|9090||inventory.shop.internal", `"connect_timeout":"7s"`)

	// A control plane that remembers nothing of it does no harm, and tells it, too.
	s.Server.Kill()
	s.StartServer()
	s.awaitRejected("web", v2)
	if got := s.clusters("web")[v2]; got != original[v2] {
		t.Errorf("the bad cluster was changed after a restart: %s", got)
	}

	s.Edit("orders.yaml", refused, accepted)
	s.awaitLive()
	s.Server.Kill()
	s.StartServer()
	s.awaitLive()
	load.Wait(t, 50)
	unharmed(t, load)
	for _, h := range []string{"web", "orders-v1"} {
		old := s.dump(h)
		s.killHost(h)
		s.awaitDisconnected(h) // or the stream of before is taken for the next one
		if err := os.Remove(filepath.Join(s.StateDir(h), "accepted.xds")); err != nil {
			t.Fatal(err)
		}
		s.restartAgent(h)
		s.awaitLive()
		if diff := cmp.Diff(s.dump(h), old); diff != "" {
			t.Errorf("the Envoy of %s differs from a fresh one (-fresh +old):\n%s", h, diff)
		}
	}
	s.awaitTraffic()
}

const slowInventory = `kind: DestinationRule
metadata: {name: inventory, namespace: shop}
spec:
  host: inventory.shop.internal
  trafficPolicy: {connectionPool: {tcp: {connectTimeout: 7s}}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry`

// awaitRejected waits until the status of a host's proxy tells of a refused
// resource.
func (s *shop) awaitRejected(host, name string) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		by, err := s.proxies()
		if err != nil {
			return err
		}
		for _, x := range by[host].Types {
			for _, r := range x.Rejected {
				if r.Name == name {
					return nil
				}
			}
		}
		return fmt.Errorf("%s has not rejected %s: %+v", host, name, by[host])
	})
}

func (s *shop) awaitClusterText(host, name, text string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		if c := s.clusters(host)[name]; !strings.Contains(c, text) {
			return fmt.Errorf("%s of %s does not have %s: %s", name, host, text, c)
		}
		return nil
	})
}

// clusters are what a host's Envoy runs, as JSON, by name.
func (s *shop) clusters(host string) map[string]string {
	s.t.Helper()
	return s.dump(host)["dynamic_active_clusters"]
}

// dump is the configuration that a host's Envoy runs: for each section, JSON by
// name. What tells of times and not of configuration is left out.
func (s *shop) dump(host string) map[string]map[string]string {
	s.t.Helper()
	var d struct {
		Configs []map[string]json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal([]byte(s.envoy(host, "/config_dump?include_eds")), &d); err != nil {
		s.t.Fatal(err)
	}
	out := map[string]map[string]string{}
	for _, section := range d.Configs {
		for key, raw := range section {
			if !strings.HasPrefix(key, "dynamic_") || strings.Contains(string(section["@type"]), "Secrets") {
				continue
			}
			var list []any
			if err := json.Unmarshal(raw, &list); err != nil {
				s.t.Fatalf("%s: %v", key, err)
			}
			if out[key] == nil {
				out[key] = map[string]string{}
			}
			for _, x := range list {
				text, err := json.Marshal(timeless(x))
				if err != nil {
					s.t.Fatal(err)
				}
				out[key][nameOf(x)] = string(text)
			}
		}
	}
	return out
}

// timeless drops when something was updated.
func timeless(x any) any {
	switch x := x.(type) {
	case map[string]any:
		delete(x, "last_updated")
		for k, v := range x {
			x[k] = timeless(v)
		}
	case []any:
		for i, v := range x {
			x[i] = timeless(v)
		}
	}
	return x
}

// nameOf is the name of a resource in a config_dump, at whatever depth.
func nameOf(x any) string {
	m, ok := x.(map[string]any)
	if !ok {
		return ""
	}
	for _, k := range []string{"name", "cluster_name"} {
		if s, ok := m[k].(string); ok {
			return s
		}
	}
	for _, k := range []string{"cluster", "route_config", "endpoint_config"} {
		if v, ok := m[k]; ok {
			return nameOf(v)
		}
	}
	return ""
}
