package observability

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

const (
	web, orders, pay = 11, 12, 13
	ordersHost       = "orders.shop.internal"
	payHost          = "pay.shop.internal"
)

// shop is a mesh of three hosts with metrics.
type shop struct{ *meshtest.Mesh }

func startShop(t *testing.T) shop {
	t.Helper()
	m := shop{meshtest.New(t, "internal/e2e/observability/testdata/mesh", map[string]int{"orders": 18081, "grpc": 18082, "tcp": 18083, "pay": 18084})}
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	if err := os.WriteFile(config, []byte("defaultProviders: {metrics: [prometheus]}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.StartServer("--mesh-config", config, "--prometheus-sd", "--absent-after", "1s")
	for _, name := range []string{"grpc", "tcp"} {
		m.StartApp(meshtest.Host{Name: name, App: []string{"--protocol", name}})
	}
	for name, address := range map[string]int{"web": web, "orders": orders, "pay": pay} {
		h := meshtest.Host{Name: name, Workload: "shop/" + name, Address: address, Agent: []string{"--http-address", m.at(address, 15020), "--drain-time", "1s"}}
		if name == "pay" { // the server lists the port that the agent took
			h.Agent[1] = m.at(address, 15029)
		}
		if name != "web" {
			h.App = []string{"--protocol", "http"}
		}
		m.StartHost(h)
	}
	m.AwaitLive("web", "orders", "pay")
	return m
}

func (m shop) at(host, port int) string { return net.JoinHostPort(m.Address(host), strconv.Itoa(port)) }

// targets are what the server lists for Prometheus.
func (m shop) targets(t *testing.T, out any) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+m.at(1, 15014)+"/sd/prometheus", http.NoBody)
	if err != nil {
		return err
	}
	res, err := client().Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return json.NewDecoder(res.Body).Decode(out)
}

// load sends requests and connections of all kinds until its test ends, with mTLS and without, and
// changes the mesh meanwhile.
func (m shop) load(t *testing.T) {
	t.Helper()
	ask := map[string]func(context.Context) error{
		"http":                m.get(m.at(web, 9080), ordersHost, "/", http.StatusOK),
		"http, 503":           m.get(m.at(web, 9080), ordersHost, "/broken", http.StatusServiceUnavailable),
		"http, 404":           m.get(m.at(web, 9080), ordersHost, "/missing", http.StatusNotFound),
		"another service":     m.get(m.at(web, 9180), payHost, "/", http.StatusOK),
		"grpc":                call(m.at(web, 9090)),
		"tcp":                 say(m.at(web, 9000)),
		"http without a mesh": m.get(m.at(orders, 9080), ordersHost, "/", http.StatusOK),
		"grpc without a mesh": call(m.at(orders, 9090)),
		"tcp without a mesh":  say(m.at(orders, 9000)),
	}
	for name, f := range ask { // an Envoy has accepted listeners a moment before they listen
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if err := f(t.Context()); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	const every = 100 * time.Millisecond
	for name, f := range ask {
		wg.Go(func() {
			tick := time.NewTicker(every)
			defer tick.Stop()
			for ctx.Err() == nil {
				if err := f(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	wg.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for i := 100; ctx.Err() == nil; i++ {
			m.Edit("routes.yaml", fmt.Sprintf("timeout: %ds", i), fmt.Sprintf("timeout: %ds", i+1))
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
}

// patience bounds one request.
const patience = 20 * time.Second

func client() *http.Client { return &http.Client{Timeout: patience} }

func (m shop) get(address, host, path string, want int) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return err
		}
		req.Host, req.Close = host, true
		res, err := client().Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		err = errors.Join(err, res.Body.Close())
		if err == nil && res.StatusCode != want {
			err = fmt.Errorf("%s answers %d", path, res.StatusCode)
		}
		return err
	}
}

func call(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority(ordersHost))
		if err != nil {
			return err
		}
		err = conn.Invoke(ctx, "/shop.Inventory/Stock", &structpb.Struct{}, &structpb.Struct{})
		return errors.Join(err, conn.Close())
	}
}

func say(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, "hello\n"); err != nil {
			return err
		}
		line, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && !strings.HasSuffix(line, "hello\n") {
			err = fmt.Errorf("the answer is %q", line)
		}
		return err
	}
}
