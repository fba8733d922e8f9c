package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// together bounds how many meshes run at once: each has four Envoys.
var together = make(chan struct{}, 2)

// shop is the quickstart's mesh: web, two versions of orders, inventory.
type shop struct {
	*meshtest.Mesh
	t      *testing.T
	hosts  []meshtest.Host
	apps   map[string]*meshtest.Process
	agents map[string]*meshtest.Process
	client *meshtest.Client
	url    string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	t.Parallel()
	envoytest.Binary(t)
	together <- struct{}{}
	t.Cleanup(func() { <-together })
	s := &shop{
		Mesh: meshtest.New(t, "examples/quickstart/mesh", map[string]int{
			"web": 18080, "orders-v1": 18081, "orders-v2": 18082, "inventory": 18083,
		}),
		t: t, apps: map[string]*meshtest.Process{}, agents: map[string]*meshtest.Process{}, client: meshtest.NewClient(t, ""),
	}
	host := func(name, account string, address int, port string, app ...string) meshtest.Host {
		probe := []string{"--probe-http", "127.0.0.1:" + port + "/healthz", "--probe-period", "1s", "--drain-time", "1s"}
		if name == "inventory" {
			probe = []string{"--probe-tcp", "127.0.0.1:" + port, "--probe-period", "1s", "--drain-time", "1s"}
		}
		return meshtest.Host{Name: name, Workload: "shop/" + account, Address: address, App: app, Agent: probe}
	}
	s.hosts = []meshtest.Host{
		host("inventory", "inventory", 14, "18083", "--protocol", "grpc"),
		host("orders-v1", "orders", 12, "18081", "--next", "grpc://127.0.0.12:9090", "--next-host", "inventory.shop.internal"),
		host("orders-v2", "orders", 13, "18082", "--next", "grpc://127.0.0.13:9090", "--next-host", "inventory.shop.internal"),
		host("web", "web", 11, "18080", "--next", "http://127.0.0.11:9080", "--next-host", "orders.shop.internal"),
	}
	s.url = fmt.Sprintf("http://%s/", net.JoinHostPort(s.Address(11), "8080"))
	return s
}

// start starts everything and waits until traffic flows.
func (s *shop) start(serverArgs ...string) {
	s.t.Helper()
	s.StartServer(serverArgs...)
	for _, h := range s.hosts {
		s.apps[h.Name], s.agents[h.Name] = s.StartHost(h)
	}
	s.awaitLive()
	s.awaitTraffic()
	s.awaitHealthy()
	s.t.Cleanup(func() {
		// Each drains for a second; all at once, before each is waited for.
		for _, p := range s.agents {
			if !p.Ended() {
				_ = syscall.Kill(p.PID(), syscall.SIGTERM)
			}
		}
	})
}

// evenly makes both versions of orders endpoints of one service without
// subsets, so that either can stand in for the other.
func (s *shop) evenly() {
	s.t.Helper()
	s.Edit("orders.yaml", evenlyFrom, evenlyTo)
}

const (
	evenlyFrom = `    - destination: {host: orders.shop.internal, subset: v1}
      weight: 90
    - destination: {host: orders.shop.internal, subset: v2}
      weight: 10`
	evenlyTo = `    - destination: {host: orders.shop.internal}`
)

func (s *shop) host(name string) meshtest.Host {
	i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == name })
	return s.hosts[i]
}

func (s *shop) names() []string {
	var out []string
	for _, h := range s.hosts {
		out = append(out, h.Name)
	}
	return out
}

// restartAgent starts a host's agent again, without its token.
func (s *shop) restartAgent(name string) {
	s.t.Helper()
	s.agents[name] = s.StartAgent(s.host(name), "")
}

// awaitTraffic waits until a request gets through to the end.
func (s *shop) awaitTraffic() {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		_, err := s.client.Get(s.t.Context(), s.url)
		return err
	})
}

// awaitBoth waits until both versions of orders answer: one may be up long before
// the other.
func (s *shop) awaitBoth() {
	s.t.Helper()
	for _, version := range []string{"v1", "v2"} {
		s.awaitAnswerOf("orders-" + version)
	}
}

// awaitHealthy waits until the Envoy of web may send requests to every instance of
// orders, whatever the routes are.
func (s *shop) awaitHealthy() {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		healthy := 0
		for line := range strings.Lines(s.envoy("web", "/clusters")) {
			if !strings.Contains(line, "orders.shop.internal::") || !strings.Contains(line, "::health_flags::") {
				continue
			}
			if !strings.HasSuffix(strings.TrimSpace(line), "::healthy") {
				return errors.New(strings.TrimSpace(line))
			}
			healthy++
		}
		if healthy < 2 {
			return fmt.Errorf("%d instances of orders", healthy)
		}
		return nil
	})
}

// unix asks over HTTP by a unix socket.
func unix(ctx context.Context, socket, path string) (string, error) {
	var d net.Dialer
	tr := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}
	return fetch(ctx, &http.Client{Transport: tr, Timeout: envoytest.Patience}, "http://unix"+path)
}

func fetch(ctx context.Context, c *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", url, res.Status, b)
	}
	return string(b), err
}

// envoy asks a host's Envoy itself.
func (s *shop) envoy(host, path string) string {
	s.t.Helper()
	out, err := s.EnvoyAdmin(host, path)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// stats are the counters and gauges of a host's Envoy that a pattern selects.
func (s *shop) stats(host, filter string) map[string]int {
	s.t.Helper()
	return numbers(s.envoy(host, "/stats?filter="+filter), ": ")
}

// numbers reads lines of a name, a separator and a number, and skips others.
func numbers(text, sep string) map[string]int {
	out := map[string]int{}
	for line := range strings.Lines(text) {
		i := strings.LastIndex(line, sep)
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if f, err := strconv.ParseFloat(strings.TrimSpace(line[i+len(sep):]), 64); err == nil {
			out[line[:i]] = int(f)
		}
	}
	return out
}

// metrics are the control plane's.
func (s *shop) metrics() map[string]int {
	s.t.Helper()
	c := &http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	out, err := fetch(s.t.Context(), c, "http://"+net.JoinHostPort(s.Address(1), "15014")+"/metrics")
	if err != nil {
		s.t.Fatal(err)
	}
	return numbers(out, " ")
}

// sum adds the metrics of a name, whatever their labels.
func sum(metrics map[string]int, name string) int {
	n := 0
	for k, v := range metrics {
		if k == name || strings.HasPrefix(k, name+"{") {
			n += v
		}
	}
	return n
}

// proxy is what these tests read of a proxy's status.
type proxy struct {
	Host         string `json:"host"`
	Connected    bool   `json:"connected"`
	Envoy        string `json:"envoy"`
	Health       string `json:"health"`
	HealthReason string `json:"health_reason"`
	Synced       bool   `json:"synced"`
	Partial      bool   `json:"partial"`
	// VirtualHosts are the route tables that travel in pieces.
	VirtualHosts []string `json:"virtual_hosts"`
	Types        []struct {
		Type     string `json:"type"`
		Acked    uint64 `json:"acked"`
		Rejected []struct {
			Name   string `json:"name"`
			Reason string `json:"reason"`
		} `json:"rejected"`
	} `json:"types"`
}

// proxies are the connected ones, by host.
func (s *shop) proxies() (map[string]proxy, error) {
	out, err := unix(s.t.Context(), filepath.Join(s.RunDir("server"), "admin.sock"), "/v1/proxies")
	if err != nil {
		return nil, err
	}
	var status struct {
		Proxies []proxy `json:"proxies"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return nil, fmt.Errorf("decoding %q: %w", out, err)
	}
	by := map[string]proxy{}
	for _, p := range status.Proxies {
		if p.Connected {
			by[p.Host] = p
		}
	}
	return by, nil
}

// awaitLive waits until all Envoys have accepted all that there is, and all
// applications are well.
func (s *shop) awaitLive() {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		by, err := s.proxies()
		if err != nil {
			return err
		}
		for _, h := range s.names() {
			if p := by[h]; p.Envoy != "live" || !p.Synced || p.Health != "healthy" {
				return fmt.Errorf("host %s is not live: %+v", h, p)
			}
		}
		return nil
	})
}

// awaitDisconnected waits until the server has seen the end of a host's stream.
func (s *shop) awaitDisconnected(host string) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		by, err := s.proxies()
		if p, ok := by[host]; err == nil && ok {
			err = fmt.Errorf("host %s is connected: %+v", host, p)
		}
		return err
	})
}

// noRejections fails if any Envoy has refused anything.
func (s *shop) noRejections() {
	s.t.Helper()
	for _, h := range s.names() {
		for name, n := range s.stats(h, "update_rejected") {
			if n != 0 {
				s.t.Errorf("the Envoy of %s: %s is %d", h, name, n)
			}
		}
	}
}

// unharmed ends a load and fails the test if any request has failed.
func unharmed(t *testing.T, l *meshtest.Load) {
	t.Helper()
	r := l.Stop()
	t.Logf("%d requests, %d failed", r.Good+r.Failed, r.Failed)
	if r.Failed > 0 {
		t.Errorf("%d of %d requests failed, from %s to %s: %v", r.Failed, r.Good+r.Failed,
			r.FirstFailure.Format(time.TimeOnly+".000"), r.LastFailure.Format(time.TimeOnly+".000"), r.Errors)
	}
}
