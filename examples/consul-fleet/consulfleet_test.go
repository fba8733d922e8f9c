package consulfleet

import (
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	consulapi "github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

const (
	web = "spiffe://cluster.local/ns/default/sa/web"
	api = "spiffe://cluster.local/ns/default/sa/api"
)

// fleet is the example as people have it after `make demo-consul`, on addresses
// of its own.
type fleet struct {
	*meshtest.Mesh
	demo   *meshtest.Process
	client *meshtest.Client
	// state is the demo's directory, tmp that of its sockets.
	state, tmp string
	// entry is where people come in, direct the Envoy of api-1.
	entry, direct, consul string
	// catalog asks the Consul server. It is one client for all questions: Consul limits
	// the connections from an address, which is also that of the control plane here.
	catalog *consulapi.Client
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	envoy, consul := envoytest.Binary(t), consultest.Binary(t)
	m := meshtest.New(t, "examples/consul-fleet/mesh", map[string]int{"web": 18091, "api-1": 18092, "api-2": 18093, "api-3": 18094, "stock": 18095})
	network := strings.TrimSuffix(m.Address(1), ".1")
	f := &fleet{
		Mesh: m, client: meshtest.NewClient(t, ""), state: filepath.Join(m.Dir, "demo"), consul: consul,
		entry:  fmt.Sprintf("http://%s/", net.JoinHostPort(m.Address(21), "8080")),
		direct: fmt.Sprintf("http://%s/", net.JoinHostPort(m.Address(22), "9080")),
	}
	var err error
	if f.catalog, err = consulapi.NewClient(&consulapi.Config{Address: net.JoinHostPort(m.Address(20), "8500")}); err != nil {
		t.Fatal(err)
	}
	// The script makes the directory of the sockets in here, so that every process
	// of this demo can be known by its arguments.
	if f.tmp, err = os.MkdirTemp("", "fc"); err != nil { //nolint:usetesting // the path of a unix socket is short
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(f.tmp) })
	fairlead, shared := m.Binaries()
	app := filepath.Join(f.tmp, "app")
	if err := os.Symlink(shared, app); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for pid := range f.processes(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	f.demo = m.Start("demo", "env", "TMPDIR="+f.tmp, "python3", "demo.py", "--fairlead", fairlead, "--app", app, "--envoy", envoy,
		"--consul", consul, "--mesh", m.ConfigDir, "--consul-dir", f.registrations(t), "--network", network, "--state", f.state)
	f.demo.Eventually(envoytest.Patience, func() error {
		if log := f.demo.Log(); !strings.Contains(log, "Ctrl-C ends everything") {
			return fmt.Errorf("it has not come up:\n%s", log)
		}
		return nil
	})
	return f
}

// registrations copies what Consul's agents read: each application has a port of
// its own, where its check asks.
func (f *fleet) registrations(t *testing.T) string {
	t.Helper()
	to := filepath.Join(f.Dir, "consul")
	paths, err := filepath.Glob("consul/*/*.hcl")
	if err != nil || len(paths) != 6 {
		t.Fatalf("there are %d files for Consul: %v", len(paths), err)
	}
	check := regexp.MustCompile(`127\.0\.0\.1:\d+`)
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := fmt.Sprintf("127.0.0.1:%d", f.Port(filepath.Base(filepath.Dir(path))))
		path = filepath.Join(f.Dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, check.ReplaceAll(content, []byte(at)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// processes are those of the demo, by their arguments.
func (f *fleet) processes(t *testing.T) map[int]string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	found := map[int]string{}
	for _, d := range dirs {
		var pid int
		line, err := os.ReadFile(filepath.Join(d, "cmdline"))
		if _, bad := fmt.Sscanf(filepath.Base(d), "%d", &pid); err != nil || bad != nil {
			continue // it has just ended
		}
		if text := string(line); strings.Contains(text, f.tmp) || strings.Contains(text, f.state) {
			found[pid] = strings.ReplaceAll(text, "\x00", " ")
		}
	}
	return found
}

// told is what the demo printed before some text: a pid, or a script.
func (f *fleet) told(t *testing.T, pattern string) string {
	t.Helper()
	m := regexp.MustCompile(pattern).FindStringSubmatch(f.demo.Log())
	if m == nil {
		t.Fatalf("the demo does not say %q:\n%s", pattern, f.demo.Log())
	}
	return m[1]
}

// signal does what the demo says: kill, with a pid.
func (f *fleet) signal(t *testing.T, pattern string, sig syscall.Signal) {
	t.Helper()
	var pid int
	if _, err := fmt.Sscan(f.told(t, pattern), &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// instances asks n times and counts who answered.
func (f *fleet) instances(t *testing.T, n int) map[string]int {
	t.Helper()
	count := map[string]int{}
	for range n {
		a, err := f.client.Get(t.Context(), f.entry)
		name := "error"
		switch {
		case err != nil:
			t.Errorf("asking web: %v", err)
		case a.Next == nil || a.Next.Next == nil || a.Next.Next.Name != "stock":
			t.Errorf("the chain is broken: %+v", a)
		case a.Next.Caller != web || a.Next.Next.Caller != api:
			t.Errorf("callers are %q and %q", a.Next.Caller, a.Next.Next.Caller)
		default:
			name = a.Next.Name
		}
		count[name]++
	}
	return count
}

// share checks that the canary has its share, within four standard deviations.
func (f *fleet) share(t *testing.T, n int, share float64) {
	t.Helper()
	count := f.instances(t, n)
	mean, sigma := float64(n)*share, math.Sqrt(float64(n)*share*(1-share))
	if got := float64(count["api-3"]); math.Abs(got-mean) > 4*sigma {
		t.Errorf("%v of %d requests: the canary should have %.0f ± %.0f", count, n, mean, 4*sigma)
	}
	if count["api-1"]+count["api-2"]+count["api-3"] != n {
		t.Errorf("not all %d requests were answered: %v", n, count)
	}
}

// without waits until 50 requests in a row are answered, none of them by an
// instance.
func (f *fleet) without(t *testing.T, name string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		for range 50 {
			a, err := f.client.Get(t.Context(), f.entry)
			if err != nil {
				return err
			}
			if a.Next.Name == name {
				return fmt.Errorf("%s still answers", name)
			}
		}
		return nil
	})
}

// with waits until an instance answers.
func (f *fleet) with(t *testing.T, name string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		for range 50 {
			if a, err := f.client.Get(t.Context(), f.entry); err == nil && a.Next.Name == name {
				return nil
			}
		}
		return fmt.Errorf("%s does not answer", name)
	})
}

func unharmed(t *testing.T, load *meshtest.Load) {
	t.Helper()
	if r := load.Stop(); r.Failed != 0 || r.Good == 0 {
		t.Errorf("requests failed meanwhile: %+v", r)
	}
}

// TestConsulFleet goes through the README, step by step, on one fleet.
func TestConsulFleet(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	// Each builds on those before.
	_ = t.Run("split", f.stepSplit) &&
		t.Run("plaintext", f.stepPlaintext) &&
		t.Run("weights", f.stepWeights) &&
		t.Run("maintenance", f.stepMaintenance) &&
		t.Run("consul_killed", f.stepConsulKilled) &&
		t.Run("application_killed", f.stepApplicationKilled) &&
		t.Run("ends", f.stepEnds)
}

func (f *fleet) stepSplit(t *testing.T) {
	f.share(t, 3000, 0.1)
	count := f.instances(t, 300)
	if count["api-1"] < 60 || count["api-2"] < 60 {
		t.Errorf("the two instances with the tag version=v1 should share: %v", count)
	}
}

// stepPlaintext asks as curl does, and as an application beside web does.
func (f *fleet) stepPlaintext(t *testing.T) {
	a, err := meshtest.NewClient(t, "api.service.consul").Get(t.Context(), f.direct)
	if err == nil {
		t.Errorf("plaintext is answered by %+v", a)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, err := f.status(t)
		if err != nil {
			return fmt.Errorf("all should be well: %w", err)
		}
		if n := len(regexp.MustCompile(`(?m)^(api-[123]|stock)\.default .* mtls `).FindAllString(status, -1)); n != 4 {
			return fmt.Errorf("proxy-status should say mtls of four proxies, says it of %d:\n%s", n, status)
		}
		return nil
	})
}

// status asks as the demo says.
func (f *fleet) status(t *testing.T) (string, error) {
	t.Helper()
	return f.CLI("proxy-status", "--run-dir", f.told(t, `proxy-status --run-dir (\S+)`))
}

// stepWeights gives the canary a half.
func (f *fleet) stepWeights(t *testing.T) {
	load := f.client.StartLoad(t, f.entry, 50)
	f.Edit("api.yaml", "weight: 90", "weight: 0")
	f.Edit("api.yaml", "weight: 10", "weight: 100")
	f.without(t, "api-1")
	f.without(t, "api-2")
	f.Edit("api.yaml", "weight: 100", "weight: 50")
	f.Edit("api.yaml", "weight: 0", "weight: 50")
	f.with(t, "api-1")
	f.share(t, 1000, 0.5)
	unharmed(t, load)
}

// maint does what the demo says.
func (f *fleet) maint(t *testing.T, how string) {
	t.Helper()
	args := strings.Fields(f.told(t, `consul (maint -enable .*:8500)`))
	args[1] = how
	if out, err := exec.CommandContext(t.Context(), f.consul, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// stepMaintenance loses no request: an instance in maintenance still answers
// those that are on their way.
func (f *fleet) stepMaintenance(t *testing.T) {
	load := f.client.StartLoad(t, f.entry, 50)
	f.maint(t, "-enable")
	f.without(t, "api-1")
	f.with(t, "api-2")
	f.well(t, `(?m)^api-1\S*\.default .* withdrawn `, "out of service on purpose: ") // planned work needs nobody
	f.maint(t, "-disable")
	f.with(t, "api-1")
	f.well(t, `(?m)^api-1\S*\.default .* healthy `, "")
	unharmed(t, load)
}

// well waits until the status says that all is well, and has a row.
func (f *fleet) well(t *testing.T, row, text string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, err := f.status(t)
		if err != nil || !regexp.MustCompile(row).MatchString(status) || !strings.Contains(status, text) {
			return fmt.Errorf("all should be well, and %s be there: %w\n%s", row, err, status)
		}
		return nil
	})
}

// stepConsulKilled ends the Consul server, then the control plane, which starts
// with the catalog that it has on disk.
func (f *fleet) stepConsulKilled(t *testing.T) {
	load := f.client.StartLoad(t, f.entry, 50)
	f.signal(t, `kill -9 (\d+) +the Consul server`, syscall.SIGKILL)
	load.Wait(t, 100)
	f.Edit("api.yaml", "subset: v2}\n      weight: 50", "subset: v2}\n      weight: 0")
	f.without(t, "api-3")
	f.signal(t, `kill -9 (\d+) +the control plane`, syscall.SIGKILL)
	load.Wait(t, 100)
	again := f.Start("control plane again", "sh", f.told(t, `sh (\S+start-server.sh)`))
	again.Eventually(envoytest.Patience, func() error {
		status, _ := f.status(t) // an error: Consul is away
		if n := len(regexp.MustCompile(`(?m)^\S+\.default .* live `).FindAllString(status, -1)); n != 5 {
			return fmt.Errorf("%d of five proxies are back:\n%s", n, status)
		}
		return nil
	})
	load.Wait(t, 100)
	f.Edit("api.yaml", "subset: v2}\n      weight: 0", "subset: v2}\n      weight: 50")
	f.with(t, "api-3")
	unharmed(t, load)
	// With Consul back, the catalog counts again.
	f.Start("Consul server again", "sh", f.told(t, `sh (\S+start-consul-server.sh)`))
	f.maint(t, "-enable")
	f.without(t, "api-1")
	f.maint(t, "-disable")
	f.with(t, "api-1")
	f.well(t, "", "")
}

// stepApplicationKilled loses no request from when Consul knows that the check fails.
func (f *fleet) stepApplicationKilled(t *testing.T) {
	f.signal(t, `kill (\d+) +the application of api-2`, syscall.SIGTERM)
	f.checkFails(t, "api-2")
	f.without(t, "api-2")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, err := f.status(t)
		if err == nil || !strings.Contains(status, "unhealthy: api-2.default is unhealthy and gets no traffic: ") {
			return fmt.Errorf("%w: the status does not say what Consul says\n%s", err, status)
		}
		return nil
	})
	if count := f.instances(t, 200); count["error"] > 0 || count["api-2"] > 0 {
		checks, err := f.checks(t)
		sent, errSent := f.CLI("proxy-config", "endpoint", "web", "-o", "json", "--run-dir", f.told(t, `proxy-status --run-dir (\S+)`))
		t.Errorf("%v answered.\nConsul's checks: %v %v\nthe server sent: %s %v", count, checks, err, sent, errSent)
	}
}

// checkFails waits until Consul knows that the check of an instance fails; that lasts
// while there is no application. That no request reaches the instance does not show it:
// Consul may have taken it out for another reason, such as gossip on a busy machine,
// and take it in again before the check counts.
func (f *fleet) checkFails(t *testing.T, name string) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		checks, err := f.checks(t)
		if err == nil && checks[name] != consulapi.HealthCritical {
			err = fmt.Errorf("the check of %s does not fail: %v", name, checks)
		}
		return err
	})
}

// checks is what the Consul server knows of the checks of api, by instance.
func (f *fleet) checks(t *testing.T) (map[string]string, error) {
	t.Helper()
	list, _, err := f.catalog.Health().Checks("api", (&consulapi.QueryOptions{}).WithContext(t.Context()))
	if err != nil {
		return nil, err
	}
	status := map[string]string{}
	for _, check := range list {
		status[check.ServiceID] = check.Status
	}
	return status, nil
}

// stepEnds does what Ctrl-C does.
func (f *fleet) stepEnds(t *testing.T) {
	// A script, a Consul server and a control plane that the test has started, and
	// a Consul agent, an application, an agent and an Envoy for each host: but that
	// of api-2.
	if up := f.processes(t); len(up) != 3+4*5-1 {
		t.Errorf("%d processes are up: %v", len(up), up)
	}
	if err := syscall.Kill(f.demo.PID(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if !f.demo.Ended() {
			return fmt.Errorf("it does not end on Ctrl-C:\n%s", f.demo.Log())
		}
		return nil
	})
	// With what the test has started by the scripts.
	if left := f.processes(t); len(left) != 0 {
		t.Errorf("left running: %v", left)
	}
	if left, err := filepath.Glob(filepath.Join(f.tmp, "fairlead-*")); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestWithout shows that the script tells what is missing.
func TestWithout(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "python3", "demo.py", "--state", t.TempDir(), "--envoy", "/nowhere/envoy",
		"--consul", "/nowhere/consul", "--fairlead", "/nowhere/fairlead").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/nowhere/fairlead") || strings.Contains(string(out), "Traceback") {
		t.Errorf("it should say what is missing in one line: %v\n%s", err, out)
	}
}
