package stream_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// How real Envoys handle the rules of this package, release by release.
func TestConformance(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		for name, test := range map[string]func(*testing.T, string){
			"order-under-load":   orderUnderLoad,
			"beside-a-bad-one":   besideABadOne,
			"invalid-unnamed":    invalidUnnamed,
			"reconnect":          reconnect,
			"changed-cluster":    changedCluster,
			"bad-listener":       badListener,
			"empty-mesh":         emptyMesh,
			"several-bad-at-one": severalBad,
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, version)
			})
		}
	}
}

// get sends one request through the listener.
func get(t *testing.T, client *http.Client, port int) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK || string(body) != "ok" {
		return fmt.Errorf("%s: %s", resp.Status, body)
	}
	return nil
}

// setUp starts a control plane and an Envoy with one listener, route and cluster.
func setUp(t *testing.T, version string) (*testMesh, *controlPlane, *envoytest.Envoy) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	w.cluster("a", nil)
	w.cluster("b", nil)
	w.listener("l", w.port, "one")
	w.route("a")
	g := w.generation()
	p.set(g)
	e := p.envoy(t, version)
	p.waitConverged(t, g.Number)
	envoytest.Eventually(t, envoytest.Patience, func() error { return get(t, &http.Client{Timeout: envoytest.Attempt}, w.port) })
	return w, p, e
}

// Thirty times the route moves to a new cluster, and the old one is removed, under load.
func orderUnderLoad(t *testing.T, version string) {
	t.Helper()
	w, p, e := setUp(t, version)
	var failed, asked atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			client := &http.Client{Transport: &http.Transport{}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-stop:
					return
				default:
				}
				asked.Add(1)
				if err := get(t, client, w.port); err != nil && failed.Add(1) < 3 {
					t.Errorf("request: %v", err)
				}
			}
		})
	}
	last := "a"
	for i := range 30 {
		name := fmt.Sprintf("c%d", i)
		w.cluster(name, nil)
		w.drop(last)
		w.route(name)
		if i%5 == 0 {
			w.listener("l", w.port, name) // the listener is replaced too
		}
		g := w.generation()
		p.set(g)
		p.waitConverged(t, g.Number)
		last = name
	}
	close(stop)
	wg.Wait()
	if failed.Load() > 0 || asked.Load() < 100 {
		t.Errorf("%d of %d requests failed", failed.Load(), asked.Load())
	}
	e.NoRejections(t)
}

// rejected makes Envoy reject a cluster when it is added, by name.
func rejected(c *clusterv3.Cluster) { c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED }

// invalid makes Envoy reject the whole response before anything is applied.
func invalid(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(-time.Second) }

func slower(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(2 * time.Second) }

// A cluster is updated beside a rejected one and reverted, and the server is restarted:
// the Envoy runs what a fresh one would.
func besideABadOne(t *testing.T, version string) {
	t.Helper()
	w, p, e := setUp(t, version)
	for name, fault := range map[string]func(*clusterv3.Cluster){"rejected": rejected, "invalid": invalid} {
		w.cluster("a", slower)
		w.cluster("b", fault)
		w.cluster("new", nil)
		g := w.generation()
		p.set(g)
		status := p.waitConverged(t, g.Number)
		if r := status[0].Rejected; len(r) != 1 || r[0].Name != "b" || status[0].Unknown != 0 {
			t.Errorf("%s: rejected %+v, unknown %d", name, r, status[0].Unknown)
		}
		w.cluster("a", nil)
		w.cluster("b", nil)
		w.drop("new")
		g = w.generation()
		p.set(g)
		p.waitConverged(t, g.Number)
	}
	// Reverted before the NACK is handled: by ACKs, a has the target version, but it does
	// not.
	for range 10 {
		w.cluster("a", slower)
		w.cluster("b", rejected)
		before := p.sentSoFar()
		p.set(w.generation())
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if p.sentSoFar() == before {
				return errors.New("not sent")
			}
			return nil
		})
		w.cluster("a", nil)
		w.cluster("b", nil)
		g := w.generation()
		p.set(g)
		p.waitConverged(t, g.Number)
	}
	p.stop()
	p.start(t)
	p.waitConverged(t, w.number)
	if n := p.sentSoFar(); n != 0 {
		t.Errorf("the restarted server sent %d resources", n)
	}
	// A fresh Envoy must not bind the same port: compare clusters only.
	fresh := newControlPlane(t)
	w.listener("l", envoytest.FreePorts(t, 1)[0], "one")
	g := w.generation()
	fresh.set(g)
	f := fresh.envoy(t, version)
	fresh.waitConverged(t, g.Number)
	if diff := cmp.Diff(clusters(t, f), clusters(t, e)); diff != "" {
		t.Errorf("a fresh Envoy differs (-fresh +this):\n%s", diff)
	}
}

// clusters are those of a config_dump, by name, without update times.
func clusters(t *testing.T, e *envoytest.Envoy) map[string]any {
	t.Helper()
	var dump struct {
		Configs []struct {
			Dynamic []struct {
				Version string         `json:"version_info"`
				Cluster map[string]any `json:"cluster"`
			} `json:"dynamic_active_clusters"`
			Warming []any `json:"dynamic_warming_clusters"`
		} `json:"configs"`
	}
	if err := json.Unmarshal([]byte(e.Admin(t, "/config_dump")), &dump); err != nil {
		t.Fatal(err)
	}
	out := map[string]any{}
	for _, c := range dump.Configs {
		for _, d := range c.Dynamic {
			name, ok := d.Cluster["name"].(string)
			if !ok {
				t.Fatalf("a cluster without a name: %v", d)
			}
			out[name] = d.Cluster
		}
		if len(c.Warming) > 0 {
			t.Errorf("clusters are warming: %v", c.Warming)
		}
	}
	if len(out) == 0 {
		t.Fatal("no clusters in the dump")
	}
	return out
}

// Of nine clusters one is invalid, and Envoy may not say which.
func invalidUnnamed(t *testing.T, version string) {
	t.Helper()
	w, p, e := setUp(t, version)
	for i := range 8 {
		w.cluster(fmt.Sprintf("n%d", i), nil)
	}
	w.cluster("n5", invalid)
	g := w.generation()
	p.set(g)
	status := p.waitConverged(t, g.Number)
	if r := status[0].Rejected; len(r) != 1 || r[0].Name != "n5" {
		t.Errorf("rejected %+v", r)
	}
	have := clusters(t, e)
	if len(have) != 9 || have["n5"] != nil {
		t.Errorf("has %d clusters", len(have))
	}
	if status[0].Rejected != nil {
		t.Logf("Envoy says: %s", status[0].Rejected[0].Reason)
	}
}

// severalBad has two clusters rejected at once, one of them new.
func severalBad(t *testing.T, version string) {
	t.Helper()
	w, p, e := setUp(t, version)
	w.cluster("a", slower)
	w.cluster("b", rejected)
	w.cluster("new", rejected)
	g := w.generation()
	p.set(g)
	status := p.waitConverged(t, g.Number)
	var names []string
	for _, r := range status[0].Rejected {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []string{"b", "new"}) {
		t.Errorf("rejected %v", names)
	}
	have := clusters(t, e)
	if have["new"] != nil || have["b"] == nil {
		t.Errorf("has %v", have)
	}
	if a, ok := have["a"].(map[string]any); !ok || a["connect_timeout"] != "2s" {
		t.Errorf("the good one beside them was not updated: %v", have["a"])
	}
}

// A server that is restarted without changes sends nothing, and after a change what
// changed.
func reconnect(t *testing.T, version string) {
	t.Helper()
	w, p, e := setUp(t, version)
	p.stop()
	p.start(t)
	status := p.waitConverged(t, w.number)
	if n := p.sentSoFar(); n != 0 || len(status) != 4 {
		t.Errorf("%d resources sent, %d types subscribed", n, len(status))
	}
	p.stop()
	w.cluster("a", slower)
	w.drop("b")
	g := w.generation()
	p.set(g)
	p.start(t)
	start := time.Now()
	p.waitConverged(t, g.Number)
	if n := p.sentSoFar(); n != 2 { // a, and its endpoints, which have not changed
		t.Errorf("%d resources sent", n)
	}
	if d := time.Since(start); d > 12*time.Second {
		t.Errorf("took %v", d)
	}
	if have := clusters(t, e); len(have) != 1 {
		t.Errorf("has %v", have)
	}
	if err := get(t, &http.Client{Timeout: envoytest.Attempt}, w.port); err != nil {
		t.Error(err)
	}
	e.NoRejections(t)
}

// A changed cluster is in force long before Envoy's 15 s timeout.
func changedCluster(t *testing.T, version string) {
	t.Helper()
	w, p, e := setUp(t, version)
	start := time.Now()
	for i := range 10 {
		w.cluster("a", func(c *clusterv3.Cluster) { c.ConnectTimeout = durationpb.New(time.Duration(i+2) * time.Second) })
		g := w.generation()
		p.set(g)
		p.waitConverged(t, g.Number)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("ten changes took %v", d)
	} else {
		t.Logf("a change takes %v", d/10)
	}
	if a, ok := clusters(t, e)["a"].(map[string]any); !ok || a["connect_timeout"] != "11s" {
		t.Errorf("runs %v", a)
	}
	e.NoRejections(t)
}

// A listener on an occupied address is rejected, the one beside it is not.
func badListener(t *testing.T, version string) {
	t.Helper()
	w, p, _ := setUp(t, version)
	other := envoytest.FreePorts(t, 1)[0]
	w.listener("good", other, "two")
	w.listener("twin", w.port, "three")
	g := w.generation()
	p.set(g)
	status := p.waitConverged(t, g.Number)
	for _, st := range status {
		if st.Type == stream.ListenerType && (len(st.Rejected) != 1 || st.Rejected[0].Name != "twin" || st.Unknown != 0) {
			t.Errorf("rejected %+v", st)
		}
	}
	for _, port := range []int{w.port, other} {
		envoytest.Eventually(t, envoytest.Patience, func() error { return get(t, &http.Client{Timeout: envoytest.Attempt}, port) })
	}
}

// Envoy is live with nothing, rather than waiting for something.
func emptyMesh(t *testing.T, version string) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	g := w.generation()
	p.set(g)
	e := p.envoy(t, version)
	p.waitConverged(t, g.Number)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if e.Stat(t, "server.live") != 1 {
			return errors.New("not live")
		}
		return nil
	})
}
