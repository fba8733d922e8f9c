package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// startedWith are the arguments of a running Envoy, and its worker threads.
func startedWith(pid int) (args string, workers int) {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	for _, name := range names {
		if comm, err := os.ReadFile(name); err == nil && bytes.HasPrefix(comm, []byte("wrk:worker_")) {
			workers++
		}
	}
	return strings.ReplaceAll(string(b), "\x00", " "), workers
}

// TestProxyConfigOfAHost: the first Envoy of a host is started as the control plane says. A change
// is named, and in force with the next start of Envoy, also while the control plane is away and
// after a restart of the agent. What cannot be used is rejected and changes nothing.
func TestProxyConfigOfAHost(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	cp := newPlane(t, 0)
	ports := envoytest.FreePorts(t, 2)
	cp.set(ports[0])
	cp.configure(`{"concurrency": 3, "drainDuration": "7s", "terminationDrainDuration": "0s", "extraStatTags": ["own_tag"], "proxyStatsMatcher": {"inclusionPrefixes": ["runtime."]}}`)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	m.set.AsTold, m.set.StatsPort = true, ports[1]
	web := cp.caller(ports[0])
	m.start()
	envoytest.Eventually(t, deadline, web.call)
	first := m.envoyPID()
	if args, workers := startedWith(first); !strings.Contains(args, "--drain-time-s 7 ") || workers != 3 {
		t.Errorf("Envoy has %d workers, and was started with %s", workers, args)
	}
	envoytest.Eventually(t, deadline, func() error {
		text, err := scrape(ports[1])
		if err == nil && (!strings.Contains(text, "envoy_runtime_num_keys") || !strings.Contains(text, `own_tag="blue"`)) {
			err = errors.New("the statistics or the tag of the ProxyConfig are missing")
		}
		return err
	})
	log := func() string {
		b, _ := os.ReadFile(filepath.Join(m.set.RunDir, "agent.log"))
		return string(b)
	}
	logged := func(words string) {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			if !strings.Contains(log(), words) {
				return fmt.Errorf("%q is not in the log", words)
			}
			return nil
		})
	}
	if strings.Contains(log(), "in force with the next start") {
		t.Error("the first Envoy did not wait for the ProxyConfig")
	}

	// What cannot be used is rejected, with the reason.
	cp.configure(`{"concurrency": -1, "proxyStatsMatcher": {"inclusionRegexps": ["("]}}`)
	envoytest.Eventually(t, deadline, func() error {
		if why := strings.Join(cp.refusals(), "\n"); !strings.Contains(why, "concurrency: -1") || !strings.Contains(why, "not a regular expression") {
			return fmt.Errorf("refused for %q", why)
		}
		return nil
	})

	// What needs a new start is named, and Envoy goes on.
	cp.configure(`{"concurrency": 2, "drainDuration": "7s"}`)
	logged(`msg="the ProxyConfig changed; it is in force with the next start of Envoy" component=agent names="[concurrency proxyStatsMatcher extraStatTags]"`)
	if pid := m.envoyPID(); pid != first || !running(pid) {
		t.Errorf("Envoy is %d, was %d", pid, first)
	}
	onDisk := func() {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			b, err := os.ReadFile(filepath.Join(m.set.StateDir, "accepted.xds"))
			if err == nil && !bytes.Contains(b, cp.ownBody()) {
				err = errors.New("the ProxyConfig is not on disk")
			}
			return err
		})
	}
	onDisk()

	// The control plane is away: the next Envoy has it nevertheless.
	cp.kill()
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, deadline, web.call)
	envoytest.Eventually(t, deadline, func() error {
		if args, workers := startedWith(m.envoyPID()); workers != 2 {
			return fmt.Errorf("Envoy has %d workers, and was started with %s", workers, args)
		}
		return nil
	})
	// So has the next agent, which takes Envoy over: it is as it should be.
	second := m.envoyPID()
	m.kill()
	m.start()
	logged("taking over the running Envoy")
	if pid := m.envoyPID(); pid != second {
		t.Errorf("Envoy is %d, was %d", pid, second)
	}
	if strings.Contains(log(), "restarting Envoy") {
		t.Error("Envoy was restarted")
	}
	envoytest.Eventually(t, deadline, web.call)

	// An agent that starts replaces an Envoy that runs with other settings.
	cp.start()
	cp.configure(`{"concurrency": 1, "statusPort": 15077}`)
	logged(`names="[concurrency drainDuration]"`)
	onDisk()
	if port := (&Agent{c: Config{StateDir: m.set.StateDir}}).StatusPort(); port != 15077 {
		t.Errorf("the next agent serves its metrics at port %d, want 15077", port)
	}
	m.kill()
	m.start()
	envoytest.Eventually(t, deadline, func() error {
		if args, workers := startedWith(m.envoyPID()); workers != 1 || strings.Contains(args, "--drain-time-s 7 ") {
			return fmt.Errorf("Envoy has %d workers, and was started with %s", workers, args)
		}
		return nil
	})
	envoytest.Eventually(t, deadline, web.call)
	m.stop()
}

func scrape(port int) (string, error) {
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/stats/prometheus", port), http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := (&http.Client{Timeout: envoytest.Attempt}).Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

// TestProbeOfProxyConfig: the application is probed as the ProxyConfig says, as long as it says so.
func TestProbeOfProxyConfig(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	cp := newPlane(t, 0)
	ports := envoytest.FreePorts(t, 2)
	cp.set(ports[0])
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	m.start()
	envoytest.Eventually(t, deadline, cp.caller(ports[0]).call)
	reported := func(what string) {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			if got := cp.health(); !strings.HasPrefix(got, what) || what == "health:" && got != what {
				return fmt.Errorf("reported %q, want %q", got, what)
			}
			return nil
		})
	}
	probe := fmt.Sprintf(`{"readinessProbe": {"tcpSocket": {"port": %d}, "periodSeconds": 1}}`, ports[1])
	cp.configure(probe)
	reported("health:connecting to the application")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", ports[1]))
	if err != nil {
		t.Fatal(err)
	}
	reported("health:")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	reported("health:connecting to the application")
	cp.configure(`{"statusPort": 15020}`) // nobody asks any more
	reported("health:")
}

// TestReadProxyConfig: what an agent uses of a ProxyConfig.
func TestReadProxyConfig(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("10.0.0.1")
	read := func(text string) (*hostConfig, error) {
		pc := &meshconfig.ProxyConfig{}
		if err := protojson.Unmarshal([]byte(text), pc); err != nil {
			t.Fatal(err)
		}
		body, err := proto.Marshal(pc)
		if err != nil {
			t.Fatal(err)
		}
		return readProxyConfig(body, own)
	}
	for text, want := range map[string][]string{
		`{}`: nil, `{"drainDuration": "45s", "terminationDrainDuration": "9s", "statusPort": 15020}`: nil,
		`{"concurrency": 0}`: nil,
		`{"concurrency": 2}`: {"concurrency"}, `{"drainDuration": "1s"}`: {"drainDuration"}, `{"extraStatTags": ["", "a", "a"]}`: {"extraStatTags"},
		`{"proxyStatsMatcher": {"inclusionSuffixes": ["a"]}}`: {"proxyStatsMatcher"},
	} {
		c, err := read(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		usual := defaultStart()
		if got := c.start.differs(&usual); !slices.Equal(got, want) {
			t.Errorf("%s differs in %q, want %q", text, got, want)
		}
	}
	if c, err := read(`{"proxyStatsMatcher": {"inclusionPrefixes": ["http.{pod_ip}_"]}, "extraStatTags": ["a", "a"]}`); err != nil || c.start.Matcher.Prefixes[0] != "http.10.0.0.1_" || len(c.start.Tags) != 1 {
		t.Errorf("%+v, %v", c, err)
	}
	for _, c := range [][2]string{
		{`{"concurrency": 1025}`, "concurrency: 1025"},
		{`{"drainDuration": "7200s"}`, "drainDuration: 2h0m0s"},
		{`{"terminationDrainDuration": "-1s"}`, "terminationDrainDuration: -1s"},
		{`{"extraStatTags": ["a|b"]}`, "extraStatTags"},
		{`{"proxyStatsMatcher": {"inclusionPrefixes": [""]}}`, "0 bytes"},
		{`{"proxyStatsMatcher": {"inclusionRegexps": ["["]}}`, "not a regular expression"},
		{`{"proxyStatsMatcher": {"inclusionRegexps": ["a{1000}b{1000}c{1000}d{1000}e{1000}"]}}`, "too large"},
		{`{"proxyStatsMatcher": {"inclusionSuffixes": ["` + strings.Repeat("a", 513) + `"]}}`, "513 bytes"},
		{`{"statusPort": 22}`, "statusPort: 22 is not from 1024"},
		{`{"statusPort": 65536}`, "statusPort: 65536"},
		{`{"readinessProbe": {}}`, "one of httpGet and tcpSocket"},
		{`{"readinessProbe": {"exec": {"command": ["ls"]}}}`, "only httpGet and tcpSocket"},
		{`{"readinessProbe": {"httpGet": {"port": 80, "host": "10.0.0.2"}}}`, "not this host"},
		{`{"readinessProbe": {"tcpSocket": {"port": 80, "host": "169.254.169.254"}}}`, "not this host"},
		{`{"proxyMetadata": {"ISTIO_META_WORKLOAD_NAME": "a\nb"}}`, "cannot be seen"},
	} {
		text, want := c[0], c[1]
		if c, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want %s", text, c, err, want)
		}
	}
	for _, host := range []string{"", "localhost", "127.0.0.1", "::1", "10.0.0.1", "::ffff:10.0.0.1"} {
		if _, err := read(`{"readinessProbe": {"httpGet": {"port": 80, "host": "` + host + `"}}}`); err != nil {
			t.Errorf("%q: %v", host, err)
		}
	}
	if _, err := readProxyConfig([]byte("\xff"), own); err == nil {
		t.Error("garbage is a ProxyConfig")
	}
}

// TestEveryEnvoyStartsWithAProxyConfig: each supported release starts with everything that a
// ProxyConfig may say of its start, and has the statistics and the tag.
func TestEveryEnvoyStartsWithAProxyConfig(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			binary := envoytest.BinaryVersion(t, version)
			cp := newPlane(t, 0)
			ports := envoytest.FreePorts(t, 2)
			cp.set(ports[0])
			cp.configure(`{"concurrency": 2, "drainDuration": "0s", "terminationDrainDuration": "0s", "extraStatTags": ["own_tag", "own.tag"],
			 "proxyStatsMatcher": {"inclusionPrefixes": ["runtime."], "inclusionSuffixes": ["` + "num" + "_layers" + `"], "inclusionRegexps": ["` + strings.Repeat("[a-z]{9}", 60) + `", "main_thread.*"]}}`)
			m := newMachine(t, cp.token("orders-1", "shop/orders"))
			m.set.AsTold, m.set.StatsPort, m.set.Envoy = true, ports[1], binary
			m.start()
			envoytest.Eventually(t, deadline, cp.caller(ports[0]).call)
			envoytest.Eventually(t, deadline, func() error {
				text, err := scrape(ports[1])
				if err == nil && (!strings.Contains(text, "envoy_runtime_num_keys") || !strings.Contains(text, `own_tag="blue"`)) {
					err = errors.New("the statistics or the tag of the ProxyConfig are missing")
				}
				return err
			})
			if args, workers := startedWith(m.envoyPID()); workers != 2 || !strings.Contains(args, "--drain-time-s 0 ") {
				t.Errorf("Envoy has %d workers, and was started with %s", workers, args)
			}
			if why := cp.refusals(); len(why) > 0 {
				t.Errorf("refused: %q", why)
			}
			m.stop()
		})
	}
}

// TestEnvoyStartsWithoutAProxyConfigThatItRefuses: after two starts in which Envoy never connected,
// and until there is another ProxyConfig.
func TestEnvoyStartsWithoutAProxyConfigThatItRefuses(t *testing.T) {
	t.Parallel()
	a, err := New(Config{Logger: slog.New(slog.DiscardHandler), StateDir: t.TempDir(), RunDir: envoytest.ShortDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	var connected time.Time
	l := &launcher{a: a, connected: func() time.Time { return connected }, config: bootstrap.Config{
		Node:      bootstrap.Node{Type: bootstrap.TypeSidecar, Address: netip.MustParseAddr("127.0.0.1"), Name: "web", Namespace: "shop", Domain: "cluster.local"},
		XDSSocket: "/xds.sock", SDSSocket: "/sds.sock", ALSSocket: "/als.sock", AdminSocket: "/admin.sock", Token: "TOKEN",
	}}
	threads := func() string {
		t.Helper()
		next, err := l.renew(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.Index(next.Args, "--concurrency"); i >= 0 {
			return next.Args[i+1]
		}
		return "usual"
	}
	set := func(n int32) { a.config.Store(&hostConfig{start: startSettings{Concurrency: n, Drain: defaultDrain}}) }
	set(7)
	starts := func(want ...string) {
		t.Helper()
		for i, w := range want {
			if got := threads(); got != w {
				t.Errorf("start %d has %s threads, want %s", i, got, w)
			}
		}
	}
	starts("7", "7", "usual", "usual")
	if got := a.Status().NextStart; !slices.Equal(got, []string{"concurrency"}) {
		t.Errorf("not in force: %q", got)
	}
	set(6) // another one
	starts("6", "6")
	connected = time.Now().Add(time.Hour) // as after each start from now on
	starts("6", "6", "6")
	connected = time.Time{}
	starts("6", "usual")
	a.config.Store(nil)
	starts("usual", "usual", "usual", "usual")
}
