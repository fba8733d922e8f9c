package catalog

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestFill fills a real Consul, through the counter, and changes it.
func TestFill(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, consultest.Options{})
	to, err := url.Parse(agent.Address())
	if err != nil {
		t.Fatal(err)
	}
	counter := NewCounter(to, &http.Transport{})
	front := httptest.NewServer(counter)
	t.Cleanup(front.Close)
	w := &Writer{Spec: Spec{Services: 70, Instances: 3, Nodes: 5}, URL: front.URL, Client: front.Client()}
	if err := w.Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	// 420 operations, at most 128 each, and one for the nodes.
	if c := counter.Counts(); c.Reads != 5 || c.Failed != 0 {
		t.Errorf("the writes were %+v", c)
	}
	have := func(want string) error {
		var b strings.Builder
		entries, _, err := agent.Client().Health().Service(Name(69), "", false, nil)
		if err != nil {
			return err
		}
		for _, e := range entries {
			fmt.Fprintf(&b, "%s %s %s %d %s;", e.Service.Address, e.Service.Tags[0], e.Node.Node, len(e.Checks), e.Checks.AggregatedStatus())
		}
		if got := b.String(); got != want {
			return fmt.Errorf("there is %s\nwant %s", got, want)
		}
		return nil
	}
	const passing = "10.0.1.207 version=v1 node-00002 2 passing;10.0.1.208 version=v2 node-00003 2 passing;10.0.1.209 version=v1 node-00004 2 passing;"
	if err := have(passing); err != nil {
		t.Error(err)
	}
	if err := w.SetHealth(t.Context(), 69, 1, false); err != nil {
		t.Error(err)
	}
	if err := have("10.0.1.207 version=v1 node-00002 2 passing;10.0.1.208 version=v2 node-00003 2 critical;10.0.1.209 version=v1 node-00004 2 passing;"); err != nil {
		t.Error(err)
	}
	if err := w.SetHealth(t.Context(), 69, 1, true); err != nil {
		t.Error(err)
	}
	address, err := w.Add(t.Context(), 69)
	if err != nil || address != w.Spec.Address(69, 3) {
		t.Errorf("added %q: %v", address, err)
	}
	if have(passing) == nil {
		t.Error("nothing was added")
	}
	if err := w.Remove(t.Context(), 69); err != nil {
		t.Error(err)
	}
	if err := have(passing); err != nil {
		t.Error(err)
	}
	if err := w.SetHealth(t.Context(), 70, 0, true); err == nil {
		t.Error("a check of no service was taken, without an error")
	}
}

// TestCounter asks Consul's like, which lets some wait and refuses others.
func TestCounter(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/refused":
			w.WriteHeader(http.StatusTooManyRequests)
		case "/bad":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			<-release
			_, _ = io.WriteString(w, "1234567")
		}
	}))
	t.Cleanup(behind.Close)
	to, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	counter := NewCounter(to, &http.Transport{})
	front := httptest.NewUnstartedServer(nil)
	front.Config = counter.Server()
	front.Start()
	t.Cleanup(front.Close)
	ask := func(path string) {
		res, err := front.Client().Get(front.URL + path)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		if err != nil {
			t.Errorf("asking for %q: %v", path, err)
		}
	}
	ask("/refused")
	ask("/bad")
	counter.Peaks()
	done := make(chan struct{}, 5)
	for _, path := range []string{"/x?index=7", "/x?wait=1m&index=8", "/x?index=0", "/x", "/x?index="} {
		go func() {
			ask(path)
			done <- struct{}{}
		}()
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		counter.mu.Lock()
		defer counter.mu.Unlock()
		if p := counter.peaks; p != (Peaks{Reads: 3, Waiting: 2, Connections: 5}) {
			return fmt.Errorf("the most at once: %+v", p)
		}
		return nil
	})
	close(release)
	for range 5 {
		<-done
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		got := counter.Counts()
		if got.Connections < 5 {
			return fmt.Errorf("%d connections", got.Connections)
		}
		got.Connections = 0
		if want := (Counts{Reads: 5, Wakes: 2, Throttled: 1, Failed: 1, Bytes: 35}); got != want {
			return fmt.Errorf("it counted %+v, want %+v", got, want)
		}
		return nil
	})
	if p := counter.Peaks(); p.Waiting != 2 {
		t.Errorf("the most at once, until it was asked: %+v", p)
	}
	if p := counter.Peaks(); p.Reads != 0 || p.Waiting != 0 {
		t.Errorf("the most at once, since: %+v", p)
	}
}

// TestHealthy has endpoints of every health.
func TestHealthy(t *testing.T) {
	t.Parallel()
	var cla endpointv3.ClusterLoadAssignment
	if err := protojson.Unmarshal([]byte(`{"endpoints": [{"lbEndpoints": [
		{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 80}}}},
		{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.2", "portValue": 80}}}, "healthStatus": "HEALTHY"},
		{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.3", "portValue": 80}}}, "healthStatus": "UNHEALTHY"},
		{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.4", "portValue": 80}}}, "healthStatus": "DRAINING"}
	]}]}`), &cla); err != nil {
		t.Fatal(err)
	}
	if got := healthy(&cla); len(got) != 2 || !got["10.0.0.1"] || !got["10.0.0.2"] {
		t.Errorf("healthy are %v", got)
	}
}
