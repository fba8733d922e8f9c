package network

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// together bounds how many meshes run at once, and count tells their namespaces apart.
var (
	together = make(chan struct{}, 2)
	count    atomic.Uint32
)

// lan is a switch with ports for a server, for web and for the instances of orders.
type lan struct {
	*meshtest.Mesh
	t      *testing.T
	name   string
	orders []string
	agents map[string]*meshtest.Process
	// webAgent are further arguments of web's agent.
	webAgent []string
}

func newLAN(t *testing.T, orders int) *lan {
	t.Helper()
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		envoytest.Missing(t, "no ip (iproute2): %v", err)
	}
	t.Parallel()
	together <- struct{}{}
	t.Cleanup(func() { <-together })
	l := &lan{t: t, Mesh: meshtest.New(t, "", nil), name: fmt.Sprintf("fairlead-%d-%d", os.Getpid(), count.Add(1)), agents: map[string]*meshtest.Process{}}
	l.namespace("switch")
	l.ip("-n", l.in("switch"), "link", "add", "br0", "type", "bridge")
	l.ip("-n", l.in("switch"), "link", "set", "br0", "up")
	l.host("server", 1)
	l.host("web", 5)
	for i := range orders {
		name := fmt.Sprintf("orders-%d", i)
		l.orders = append(l.orders, name)
		l.host(name, 10+i)
	}
	return l
}

func (l *lan) ip(args ...string) {
	l.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		l.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// in is the namespace of a host.
func (l *lan) in(host string) string { return l.name + "-" + host }

func (l *lan) namespace(host string) {
	l.t.Helper()
	l.ip("netns", "add", l.in(host))
	l.t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", l.in(host)).Run() })
	l.ip("-n", l.in(host), "link", "set", "lo", "up")
}

func (l *lan) host(name string, number int) {
	l.t.Helper()
	l.namespace(name)
	l.ip("link", "add", "eth0", "netns", l.in(name), "type", "veth", "peer", "name", name, "netns", l.in("switch"))
	l.ip("-n", l.in("switch"), "link", "set", name, "master", "br0", "up")
	l.ip("-n", l.in(name), "addr", "add", address(number)+"/24", "dev", "eth0")
	l.ip("-n", l.in(name), "link", "set", "eth0", "up")
}

func address(number int) string { return fmt.Sprintf("10.99.0.%d", number) }

// cut takes a host off the switch. Neither end of a connection hears of it.
func (l *lan) cut(hosts ...string) {
	l.t.Helper()
	for _, h := range hosts {
		l.ip("-n", l.in("switch"), "link", "set", h, "nomaster")
	}
}

func (l *lan) heal(hosts ...string) {
	l.t.Helper()
	for _, h := range hosts {
		l.ip("-n", l.in("switch"), "link", "set", h, "master", "br0")
	}
}

// startServer starts the server, with the mesh of its hosts.
func (l *lan) startServer(args ...string) {
	l.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: shop}
spec: {address: %s, labels: {app: web}, serviceAccount: web}
`, address(5))
	if len(l.webAgent) == 0 {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{port: {number: 9080, name: http, protocol: HTTP}, bind: %s, hosts: ["./*"]}]
`, address(5))
	}
	for i, name := range l.orders {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: %[1]s, namespace: shop}
spec: {address: %[2]s, labels: {app: orders, host: %[1]s}, serviceAccount: orders}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: %[1]s, namespace: shop}
spec:
  workloadSelector: {labels: {host: %[1]s}}
  ingress: [{port: {number: 9080, name: http, protocol: HTTP}, bind: %[2]s, defaultEndpoint: "127.0.0.1:8080"}]
  egress: [{hosts: ["./*"]}]
`, name, address(10+i))
	}
	l.Write("mesh.yaml", b.String())
	fairlead, _ := l.Binaries()
	l.Server = l.run("server", "server", slices.Concat([]string{
		fairlead, "server", "--config-dir", l.ConfigDir, "--state-dir", l.StateDir("server"), "--run-dir", l.RunDir("server"),
		"--xds-address", ":15012", "--advertise", address(1) + ":15012", "--http-address", "127.0.0.1:15014",
	}, args)...)
	l.Server.Eventually(envoytest.Patience, func() error {
		_, err := l.CLI("host", "list", "--run-dir", l.RunDir("server"))
		return err
	})
}

// run starts a process in the namespace of a host.
func (l *lan) run(name, host string, argv ...string) *meshtest.Process {
	l.t.Helper()
	return l.Start(name, append([]string{"ip", "netns", "exec", l.in(host)}, argv...)...)
}

// start starts all hosts, and waits until all instances of orders answer.
func (l *lan) start(serverArgs ...string) {
	l.t.Helper()
	l.startServer(serverArgs...)
	fairlead, app := l.Binaries()
	for i, name := range append([]string{"web"}, l.orders...) {
		at, account, probe := address(5), "shop/web", l.webAgent
		if i > 0 {
			at, account, probe = address(9+i), "shop/orders", []string{"--probe-http", "127.0.0.1:8080/healthz", "--probe-period", "1s"}
			l.run(name+"-app", name, app, "--name", name, "--listen", "127.0.0.1:8080")
		}
		token := filepath.Join(l.Dir, name+".token")
		if err := os.WriteFile(token, []byte(l.Token("--host", name, "--workload", account)), 0o600); err != nil {
			l.t.Fatal(err)
		}
		l.agents[name] = l.run(name, name, append([]string{
			fairlead, "agent", "--address", at, "--envoy", envoytest.Binary(l.t), "--state-dir", l.StateDir(name), "--run-dir", l.RunDir(name),
			"--token-file", token, "--drain-time", "1s",
		}, probe...)...)
	}
	l.AwaitLive(append([]string{"web"}, l.orders...)...)
	for _, name := range l.orders {
		l.awaitHealth("healthy", name)
	}
}

// awaitHealth waits until the server says so of hosts.
func (l *lan) awaitHealth(health string, hosts ...string) {
	l.t.Helper()
	l.Server.Eventually(envoytest.Patience, func() error {
		by, err := l.Proxies()
		for _, h := range hosts {
			if err == nil && by[h]["health"] != health {
				err = fmt.Errorf("%s is %v, not %s", h, by[h]["health"], health)
			}
		}
		return err
	})
}

// client asks web's Envoy from web's host.
func (l *lan) client(timeout time.Duration) *http.Client {
	l.t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DialContext: l.dialer("web")}
	l.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: timeout}
}

// dialer connects from a host.
func (l *lan) dialer(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	l.t.Helper()
	ns, err := os.Open("/run/netns/" + l.in(host))
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = ns.Close() })
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		type answer struct {
			c   net.Conn
			err error
		}
		dialled := make(chan answer, 1)
		go func() {
			runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				dialled <- answer{nil, err}
				return
			}
			c, err := (&net.Dialer{}).DialContext(ctx, network, address)
			dialled <- answer{c, err}
		}()
		a := <-dialled
		return a.c, a.err
	}
}

// request is one request of a load.
type request struct {
	began time.Time
	err   error
}

// load sends requests to orders until it is stopped.
type load struct {
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu  sync.Mutex // guards all following fields
	all []request
}

// load sends so many requests a second.
func (l *lan) load(rate int) *load {
	l.t.Helper()
	client := l.client(2 * time.Second)
	ctx, cancel := context.WithTimeout(l.t.Context(), 5*time.Minute)
	out := &load{stop: cancel}
	l.t.Cleanup(func() { cancel(); out.wg.Wait() })
	out.wg.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			out.wg.Go(func() {
				r := request{began: time.Now()}
				r.err = ask(context.WithoutCancel(ctx), client)
				out.mu.Lock()
				defer out.mu.Unlock()
				out.all = append(out.all, r)
			})
		}
	})
	return out
}

func ask(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(address(5), "9080"), http.NoBody)
	if err != nil {
		return err
	}
	req.Host = "orders.shop.internal"
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return err
}

// end stops the load and gives how many failed and when the last one that failed began.
func (o *load) end() (sent, failed int, last time.Time, first error) {
	o.stop()
	o.wg.Wait()
	for _, r := range o.all {
		if r.err == nil {
			continue
		}
		if failed++; first == nil {
			first = r.err
		}
		if r.began.After(last) {
			last = r.began
		}
	}
	return len(o.all), failed, last, first
}

// wait waits until so many more requests were answered, well or not.
func (o *load) wait(t *testing.T, n int) {
	t.Helper()
	count := func() int {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.all)
	}
	from := count()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if now := count(); now < from+n {
			return fmt.Errorf("%d of %d requests", now-from, n)
		}
		return nil
	})
}

// awaitSilent waits until the server says in the list of its objects that a workload is silent:
// a host that has not been connected is no proxy.
func (l *lan) awaitSilent(workload string) {
	l.t.Helper()
	l.Server.Eventually(envoytest.Patience, func() error {
		out, err := l.Admin("server", "/debug/objects?source=files")
		if err != nil {
			return err
		}
		var list []struct {
			Key    string `json:"key"`
			Silent bool   `json:"silent"`
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		for _, o := range list {
			if o.Key == "WorkloadEntry shop/"+workload && o.Silent {
				return nil
			}
		}
		return fmt.Errorf("%s is not silent: %s", workload, out)
	})
}
