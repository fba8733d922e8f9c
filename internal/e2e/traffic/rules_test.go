package traffic

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"
)

// keptClient has one connection, and counts its answers.
type keptClient struct {
	http *http.Client

	mu       sync.Mutex // guards all following fields
	answers  map[int]int
	fresh    int // connections
	failures []error
}

func newKeptClient() *keptClient {
	return &keptClient{
		http:    &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}, Timeout: patience},
		answers: map[int]int{},
	}
}

// ask sends one request, and returns the status code.
func (c *keptClient) ask(t *testing.T, address string) int {
	t.Helper()
	trace := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		if !i.Reused {
			c.mu.Lock()
			c.fresh++
			c.mu.Unlock()
		}
	}})
	req, err := http.NewRequestWithContext(trace, http.MethodGet, "http://"+address+"/", http.NoBody)
	if err != nil {
		t.Error(err)
		return 0
	}
	req.Host = echoHost
	resp, err := c.http.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.failures = append(c.failures, err)
		return 0
	}
	c.answers[resp.StatusCode]++
	return resp.StatusCode
}

// sentResources are the resources of a type that the server has sent to echo's Envoy, by name.
func (p *pair) sentResources(kind string) (map[string]sentResource, error) {
	out, err := p.CLI("proxy-config", kind, "echo.shop", "--run-dir", p.RunDir("server"), "-o", "json")
	if err != nil {
		return nil, err
	}
	var list []sentResource
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, err
	}
	by := map[string]sentResource{}
	for _, r := range list {
		by[r.Name] = r
	}
	return by, nil
}

type sentResource struct {
	Name, Version string
	Accepted      bool
	Resource      json.RawMessage
}

const denySlot = "envoy.filters.http.rbac.deny"

// denies waits until echo's Envoy has accepted rules that refuse everything, or none.
func (p *pair) denies(t *testing.T, want bool) {
	t.Helper()
	settle(t, func() error {
		all, err := p.sentResources("extension")
		if err != nil {
			return err
		}
		r := all[denySlot]
		if denies := strings.Contains(string(r.Resource), "rules"); !r.Accepted || denies != want {
			return fmt.Errorf("accepted %v, denies %v", r.Accepted, denies)
		}
		return nil
	})
}

// onlyTheirHashChanges waits until echo's listeners for HTTP and gRPC have a hash of rules, or
// none. Nothing else in them changes.
func (p *pair) onlyTheirHashChanges(t *testing.T, before map[string]sentResource, want bool) {
	t.Helper()
	settle(t, func() error {
		now, err := p.sentResources("listener")
		if err != nil {
			return err
		}
		for _, port := range []string{"9080", "9081", "9090"} {
			name := p.Address(12) + "_" + port
			if !now[name].Accepted {
				return fmt.Errorf("listener %s is not accepted", name)
			}
			is, hashed := withoutHash(t, now[name])
			if hashed != want {
				return fmt.Errorf("listener %s has a hash of rules: %v", name, hashed)
			}
			if was, _ := withoutHash(t, before[name]); is != was {
				t.Errorf("listener %s is %s, and was %s", name, is, was)
			}
		}
		return nil
	})
}

// withoutHash is a listener without the metadata of its chains, and whether it had some.
func withoutHash(t *testing.T, r sentResource) (string, bool) {
	t.Helper()
	var l map[string]any
	if err := json.Unmarshal(r.Resource, &l); err != nil {
		t.Fatal(err)
	}
	had := false
	chains, _ := l["filter_chains"].([]any)
	for _, c := range chains {
		if c, ok := c.(map[string]any); ok {
			had = had || c["metadata"] != nil
			delete(c, "metadata")
		}
	}
	out, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(out), had
}

// keepAsking has four clients ask the target, each on a connection that it keeps, until stop is called.
func keepAsking(t *testing.T, target string) (clients []*keptClient, stop func()) {
	t.Helper()
	done := make(chan struct{})
	var load sync.WaitGroup
	for range 4 {
		c := newKeptClient()
		clients = append(clients, c)
		load.Go(func() {
			for {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond): // 1,000 a second and client at most
					c.ask(t, target)
				}
			}
		})
	}
	return clients, func() {
		close(done)
		load.Wait()
	}
}

// TestRulesOfKeptConnections has load on connections that are kept. The first policy of a
// workload, and its last, are in force as soon as its Envoy has acknowledged them; HTTP
// listeners change by the hash of the rules alone, so that Envoy drains connections, and no
// request fails. The rules are in force after a restart of agent and Envoy without a server.
func TestRulesOfKeptConnections(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.StartServer()
	_, agent := p.startHosts()
	target := p.at(12, 9080)
	before, err := p.sentResources("listener")
	if err != nil {
		t.Fatal(err)
	}
	clients, stop := keepAsking(t, target)
	kept := newKeptClient()
	for i := range 3 {
		if code := kept.ask(t, target); code != http.StatusOK {
			t.Errorf("round %d: answered with %d", i, code)
		}
		p.Write("authz.yaml", allowNobody)
		p.denies(t, true)
		if code := kept.ask(t, target); code != http.StatusForbidden {
			t.Errorf("round %d: the policy is acknowledged, and a request answered with %d", i, code)
		}
		p.onlyTheirHashChanges(t, before, true)
		p.Write("authz.yaml", "# none\n")
		p.denies(t, false)
		p.onlyTheirHashChanges(t, before, false)
	}
	stop()
	for i, c := range append(clients, kept) {
		c.http.CloseIdleConnections()
		// Each of six updates drains a connection at most once.
		if len(c.failures) > 0 || c.fresh > 7 || c.answers[http.StatusOK]+c.answers[http.StatusForbidden] < 6 || len(c.answers) > 2 {
			t.Errorf("client %d: answers %v by %d connections, %d failures: %v", i, c.answers, c.fresh, len(c.failures), errors.Join(c.failures...))
		}
	}

	p.Write("authz.yaml", allowNobody)
	p.denies(t, true)
	p.Server.Kill()
	agent.Kill()
	agent = p.StartAgent(p.echoH, "")
	agent.Eventually(patience, func() error {
		switch code := newKeptClient().ask(t, target); code {
		case http.StatusForbidden:
			return nil
		case http.StatusOK:
			t.Error("a request was answered before the rules were there")
		}
		return errors.New("not refused yet")
	})
}
