package quickstart

import (
	"fmt"
	"math"
	"net"
	"os"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

const (
	web    = "spiffe://cluster.local/ns/shop/sa/web"
	orders = "spiffe://cluster.local/ns/shop/sa/orders"
)

// shop is the example as people have it after `make demo`.
type shop struct {
	*meshtest.Mesh
	client *meshtest.Client
	// entry is where people come in, direct the Envoy of orders v1.
	entry, direct string
}

func newShop(t *testing.T) *shop {
	t.Helper()
	envoytest.Binary(t)
	m := meshtest.New(t, "examples/quickstart/mesh", map[string]int{
		"web": 18080, "orders-v1": 18081, "orders-v2": 18082, "inventory": 18083,
	})
	m.StartServer("--scan-interval", "10m") // what is seen sooner was seen by an event
	stock := func(address int) []string {
		return []string{"--next", fmt.Sprintf("grpc://127.0.0.%d:9090", address), "--next-host", "inventory.shop.internal"}
	}
	hosts := []meshtest.Host{
		{Name: "inventory", Workload: "shop/inventory", Address: 14, App: []string{"--protocol", "grpc"}},
		{Name: "orders-v1", Workload: "shop/orders", Address: 12, App: stock(12)},
		{Name: "orders-v2", Workload: "shop/orders", Address: 13, App: stock(13)},
		{Name: "web", Workload: "shop/web", Address: 11, App: []string{"--next", "http://127.0.0.11:9080", "--next-host", "orders.shop.internal"}},
	}
	var names []string
	for _, h := range hosts {
		names = append(names, h.Name)
		h.Agent = []string{"--drain-time", "1s"}
		m.StartHost(h)
	}
	m.AwaitLive(names...)
	s := &shop{
		Mesh: m, client: meshtest.NewClient(t, ""),
		entry:  fmt.Sprintf("http://%s/", net.JoinHostPort(m.Address(11), "8080")),
		direct: fmt.Sprintf("http://%s/", net.JoinHostPort(m.Address(12), "9080")),
	}
	s.client.AwaitAnswers(t, s.entry, "orders-v1", "orders-v2", "inventory")
	return s
}

// versions asks n times, at most 16 at once, and counts who answered.
func (s *shop) versions(t *testing.T, n int) map[string]int {
	t.Helper()
	var (
		wg    sync.WaitGroup
		left  atomic.Int64
		mu    sync.Mutex
		count = map[string]int{}
	)
	left.Store(int64(n))
	for range 16 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				a, err := s.client.Get(t.Context(), s.entry)
				name := "error"
				switch {
				case err != nil:
					t.Errorf("asking web: %v", err)
				case a.Next == nil || a.Next.Next == nil || a.Next.Next.Name != "inventory":
					t.Errorf("the chain is broken: %+v", a)
				case a.Next.Caller != web || a.Next.Next.Caller != orders:
					t.Errorf("callers are %q and %q", a.Next.Caller, a.Next.Next.Caller)
				default:
					name = a.Next.Name
				}
				mu.Lock()
				count[name]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return count
}

// split checks that v1 has its share, within four standard deviations.
func (s *shop) split(t *testing.T, n int, share float64) {
	t.Helper()
	count := s.versions(t, n)
	mean, sigma := float64(n)*share, math.Sqrt(float64(n)*share*(1-share))
	if got := float64(count["orders-v1"]); math.Abs(got-mean) > 4*sigma {
		t.Errorf("%v of %d requests: v1 should have %.0f ± %.0f", count, n, mean, 4*sigma)
	}
	if count["orders-v1"]+count["orders-v2"] != n {
		t.Errorf("not all %d requests were answered: %v", n, count)
	}
}

// TestQuickstart goes through the README, step by step, on one mesh.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	// Each builds on those before.
	_ = t.Run("split", s.stepSplit) &&
		t.Run("weights", s.stepWeights) &&
		t.Run("strict", s.stepStrict) &&
		t.Run("broken_file", s.stepBrokenFile) &&
		t.Run("control_plane_killed", s.stepKilled)
}

func (s *shop) stepSplit(t *testing.T) {
	s.split(t, 10_000, 0.9)
}

// stepWeights turns all traffic to v2: an edit arrives by an event, for no look at all
// files comes in time.
func (s *shop) stepWeights(t *testing.T) {
	load := s.client.StartLoad(t, s.entry, 50)
	s.Edit("orders.yaml", "weight: 90", "weight: 0")
	s.Edit("orders.yaml", "weight: 10", "weight: 100")
	begin := time.Now()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		for range 10 {
			a, err := s.client.Get(t.Context(), s.entry)
			if err != nil {
				return err
			}
			if a.Next.Name != "orders-v2" {
				return fmt.Errorf("%s after %s", a.Next.Name, time.Since(begin))
			}
		}
		return nil
	})
	t.Logf("the edit was followed within %s", time.Since(begin))
	if count := s.versions(t, 200); count["orders-v2"] != 200 {
		t.Errorf("v2 should have all: %v", count)
	}
	s.Edit("orders.yaml", "weight: 0", "weight: 50")
	s.Edit("orders.yaml", "weight: 100", "weight: 50")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		a, err := s.client.Get(t.Context(), s.entry)
		if err == nil && a.Next.Name != "orders-v1" {
			err = fmt.Errorf("still %s", a.Next.Name)
		}
		return err
	})
	s.split(t, 2000, 0.5)
	unharmed(t, load)
}

func unharmed(t *testing.T, load *meshtest.Load) {
	t.Helper()
	if r := load.Stop(); r.Failed != 0 || r.Good == 0 {
		t.Errorf("requests failed meanwhile: %+v", r)
	}
}

const strict = `apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata:
  name: orders
  namespace: shop
spec:
  selector:
    matchLabels: {app: orders}
  mtls: {mode: STRICT}
`

func (s *shop) stepStrict(t *testing.T) {
	load := s.client.StartLoad(t, s.entry, 50)
	// A client without connections of before, as curl is.
	ask := func() (*meshtest.Answer, error) {
		return meshtest.NewClient(t, "orders.shop.internal").Get(t.Context(), s.direct)
	}
	a, err := ask()
	if err != nil || a.Caller != "" {
		t.Fatalf("plaintext is welcome at first, and nobody is named: %+v, %v", a, err)
	}
	s.Write("strict.yaml", strict)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if a, err := ask(); err == nil {
			return fmt.Errorf("plaintext is still answered: %+v", a)
		}
		return nil
	})
	s.versions(t, 100)
	unharmed(t, load)
	status, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
	if err != nil {
		t.Errorf("all should be well: %v\n%s", err, status)
	}
	if n := len(regexp.MustCompile(`(?m)^orders-v[12]\.shop .* mtls `).FindAllString(status, -1)); n != 2 {
		t.Errorf("proxy-status should say mtls of both versions of orders, says it of %d:\n%s", n, status)
	}
}

func (s *shop) stepBrokenFile(t *testing.T) {
	load := s.client.StartLoad(t, s.entry, 50)
	good, err := os.ReadFile(s.ConfigDir + "/orders.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.Edit("orders.yaml", "weight: 50", "weigth: 50")
	at := regexp.MustCompile(`orders\.yaml:62:7: .*weigth`)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
		if err == nil || !at.MatchString(out) {
			return fmt.Errorf("proxy-status does not name the fault (%w):\n%s", err, out)
		}
		return nil
	})
	if out, err := s.CLI("validate", s.ConfigDir); err == nil || !at.MatchString(out) {
		t.Errorf("validate does not name the fault: %v\n%s", err, out)
	}
	load.Wait(t, 50)
	s.split(t, 400, 0.5)
	s.Write("orders.yaml", string(good))
	envoytest.Eventually(t, envoytest.Patience, func() error {
		_, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
		return err
	})
	unharmed(t, load)
}

func (s *shop) stepKilled(t *testing.T) {
	load := s.client.StartLoad(t, s.entry, 100)
	s.Server.Kill()
	load.Wait(t, 200)
	s.StartServer()
	s.AwaitLive("web", "orders-v1", "orders-v2", "inventory")
	load.Wait(t, 50)
	unharmed(t, load)
}
