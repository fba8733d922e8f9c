package bench

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

	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// patience separates slow from broken: a benchmark fails where something never
// happens.
const patience = 30 * time.Second

// shop is the quickstart's mesh: web, two versions of orders, inventory.
type shop struct {
	*meshtest.Mesh
	b      *testing.B
	hosts  []meshtest.Host
	apps   map[string]*meshtest.Process
	agents map[string]*meshtest.Process
	client *meshtest.Client
	// url is where people come in, direct are the Envoys of orders.
	url    string
	direct map[string]string
}

func newShop(b *testing.B) *shop {
	b.Helper()
	s := &shop{
		Mesh: meshtest.New(b, "examples/quickstart/mesh", map[string]int{
			"web": 18080, "orders-v1": 18081, "orders-v2": 18082, "inventory": 18083,
		}),
		b: b, apps: map[string]*meshtest.Process{}, agents: map[string]*meshtest.Process{}, client: meshtest.NewClient(b, ""),
	}
	host := func(name, account string, address int, port string, app ...string) meshtest.Host {
		probe := []string{"--probe-http", "127.0.0.1:" + port + "/healthz", "--probe-period", "1s", "--drain-time", "1s"}
		if name == "inventory" {
			probe[0], probe[1] = "--probe-tcp", "127.0.0.1:"+port
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
	s.direct = map[string]string{}
	for name, n := range map[string]int{"orders-v1": 12, "orders-v2": 13} {
		s.direct[name] = fmt.Sprintf("http://%s/", net.JoinHostPort(s.Address(n), "9080"))
	}
	return s
}

// start starts everything.
func (s *shop) start() {
	s.b.Helper()
	s.StartServer()
	for _, h := range s.hosts {
		s.apps[h.Name], s.agents[h.Name] = s.StartHost(h)
	}
	s.b.Cleanup(func() {
		for _, p := range s.agents { // each drains: all at once
			if !p.Ended() {
				_ = syscall.Kill(p.PID(), syscall.SIGTERM)
			}
		}
	})
}

func (s *shop) host(name string) meshtest.Host {
	return s.hosts[slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == name })]
}

// until asks as often as it can, until the answer is nil.
func (s *shop) until(ask func() error) {
	s.b.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.b.Fatal(err)
		}
	}
}

// pause lets what was done settle, so that runs do not touch one another.
func pause(d time.Duration) { <-time.After(d) }

// whole says whether a request goes through all hosts, each with its identity.
func (s *shop) whole() error {
	a, err := s.client.Get(s.b.Context(), s.url)
	switch {
	case err != nil:
		return err
	case a.Next == nil || a.Next.Next == nil || !strings.HasPrefix(a.Next.Next.Caller, "spiffe://"):
		return fmt.Errorf("the chain is broken: %+v", a)
	default:
		return nil
	}
}

// proxy is what is read of a proxy's status.
type proxy struct {
	Host      string `json:"host"`
	Connected bool   `json:"connected"`
	Envoy     string `json:"envoy"`
	Health    string `json:"health"`
	Synced    bool   `json:"synced"`
}

func (s *shop) proxies() (map[string]proxy, error) {
	var status struct {
		Proxies []proxy `json:"proxies"`
	}
	if err := s.ask("/v1/proxies", &status); err != nil {
		return nil, err
	}
	by := map[string]proxy{}
	for _, p := range status.Proxies {
		if p.Connected {
			by[p.Host] = p
		}
	}
	return by, nil
}

// inStep waits until every Envoy has accepted all there is and every
// application is well.
func (s *shop) inStep() {
	s.b.Helper()
	s.until(func() error {
		by, err := s.proxies()
		for _, h := range s.hosts {
			if p := by[h.Name]; p.Envoy != "live" || !p.Synced || p.Health != "healthy" {
				err = errors.Join(err, fmt.Errorf("host %s: %+v", h.Name, p))
			}
		}
		return err
	})
}

// ask asks the control plane by its admin.sock.
func (s *shop) ask(path string, out any) error {
	var d net.Dialer
	socket := filepath.Join(s.RunDir("server"), "admin.sock")
	c := &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}
	req, err := http.NewRequestWithContext(s.b.Context(), http.MethodGet, "http://admin"+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("%s: %s: %.200s", path, res.Status, body))
	}
	return json.Unmarshal(body, out)
}

// usage is what a process has used until now.
type usage struct {
	cpu time.Duration
	// rss is what is resident, and own is that without the pages of files, in MB of
	// 2^20 bytes.
	rss, own float64
}

// tick is the unit of /proc/PID/stat, 1/100 s on every Linux that Go runs on.
const tick = 10 * time.Millisecond

func usageOf(b *testing.B, pid int) usage {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	// The name, in brackets, may have spaces; behind it is field 3.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	number := func(field int) int {
		n, err := strconv.Atoi(fields[field-3])
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		b.Fatal(err)
	}
	var size, resident, file int
	if _, err := fmt.Sscan(string(statm), &size, &resident, &file); err != nil {
		b.Fatal(err)
	}
	mb := float64(os.Getpagesize()) / (1 << 20)
	return usage{
		cpu: time.Duration(number(14)+number(15)) * tick,
		rss: float64(resident) * mb, own: float64(resident-file) * mb,
	}
}
