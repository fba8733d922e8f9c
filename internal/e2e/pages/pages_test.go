package pages

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestFiveCommandsAsTheyStand follows the short way of docs/first-two-vms.md: two unmodified programs, and a
// canary by mTLS.
func TestFiveCommandsAsTheyStand(t *testing.T) {
	l := newLab(t)
	for version, port := range map[string]int{"api-v1": 8080, "api-v2": 8081} {
		l.hosts["10.0.0.2"].terminal(version, fmt.Sprintf("app --name %s --listen :%d", version, port))
	}
	l.follow("docs/first-two-vms.md", "The same in five commands")
	l.encrypted("http://api.lab/", "spiffe://cluster.local/ns/lab/sa/web")
	l.well()
}

// TestFirstTwoHostsAsTheyStand follows docs/first-two-vms.md from its first step to the last: users of their own,
// packet capture, names, a canary and a policy. In the place of systemd the test starts what its units start.
func TestFirstTwoHostsAsTheyStand(t *testing.T) {
	l := newLab(t)
	for version, port := range map[string]int{"api-v1": 8080, "api-v2": 8081} {
		l.hosts["10.0.0.2"].terminal(version, fmt.Sprintf("app --name %s --listen :%d", version, port))
	}
	l.hosts["10.0.0.1"].addUsers("web")
	l.hosts["10.0.0.2"].addUsers("api")
	settings, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "systemd", "server.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	l.hosts["10.0.0.1"].write("/etc/fairlead/server.yaml", string(settings))
	for _, title := range []string{"1. The mesh", "2. The agents", "3. Capture", "4. Names", "5. A canary", "6. A policy"} {
		l.follow("docs/first-two-vms.md", title)
	}
	l.well()
}

// TestRunForRealAsItStands follows README.md "Run it for real": what somebody does who has a mesh already.
func TestRunForRealAsItStands(t *testing.T) {
	l := newLab(t)
	l.hosts["10.0.0.2"].terminal("orders", "app --name orders --listen :8080")
	one := l.hosts["10.0.0.1"]
	for _, path := range []string{"/etc/fairlead/mesh/orders.yaml", "orders.yaml"} {
		one.write(path, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: orders-v1, namespace: shop}
spec: {address: 10.0.0.2, labels: {app: orders}, serviceAccount: orders}
`)
	}
	l.follow("README.md", "Run it for real")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := one.shell("fairlead proxy-status")
		if err == nil && !regexp.MustCompile(`(?m)^orders-1\.shop +orders-1 +live +.* healthy `).MatchString(out) {
			err = errors.New("the host is not in it, or not healthy")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// TestConsulAsItStands follows the start of docs/consul.md, and what README.md has of it: two unmodified
// programs, of which Consul's catalog has the addresses, by mTLS.
func TestConsulAsItStands(t *testing.T) {
	for page, title := range map[string]string{"docs/consul.md": "Start", "README.md": "With Consul"} {
		t.Run(filepath.Base(page), func(t *testing.T) { consulAsItStands(t, page, title) })
	}
}

func consulAsItStands(t *testing.T, page, title string) {
	t.Helper()
	l := newLab(t)
	l.hosts["10.0.0.2"].terminal("api", "app --name api --listen :8080")
	one := l.hosts["10.0.0.1"]
	one.write("consul.hcl", `services = [
  {name = "web", address = "10.0.0.1", port = 8000},
  {name = "api", address = "10.0.0.2", port = 8080},
]
`)
	one.terminal("consul", consultest.Binary(t)+" agent -dev -bind 127.0.0.1 -log-level error -config-file consul.hcl")
	envoytest.Eventually(t, envoytest.Patience, func() error {
		out, err := one.shell("curl -sS http://127.0.0.1:8500/v1/catalog/services")
		if err == nil && !strings.Contains(out, `"api"`) {
			err = fmt.Errorf("the catalog has %s", out)
		}
		return err
	})
	l.follow(page, title)
	l.encrypted("http://api.service.consul:8080/", "spiffe://cluster.local/ns/default/sa/web")
	l.well()
}

// encrypted waits until a program without TLS is answered through the HTTP proxy, by one that sees the
// identity of the caller's certificate.
func (l *twoHosts) encrypted(url, caller string) {
	l.t.Helper()
	envoytest.Eventually(l.t, envoytest.Patience, func() error {
		out, err := l.hosts["10.0.0.1"].shell("http_proxy=http://127.0.0.1:15080 curl -sSf --max-time 10 " + url)
		if err == nil && !strings.Contains(out, caller) {
			err = fmt.Errorf("the caller is not named: %s", out)
		}
		return err
	})
}

// well waits until the mesh needs nobody and nothing is odd. On the wire is nothing that anybody can read, since
// the hosts are there.
func (l *twoHosts) well() {
	l.t.Helper()
	if text, records := l.text(), l.records(); text != 0 || records == 0 {
		l.t.Errorf("on the wire: %d packets of HTTP in plaintext, %d of TLS", text, records)
	} else {
		l.t.Logf("on the wire: no packet of HTTP in plaintext, %d of TLS", records)
	}
	envoytest.Eventually(l.t, envoytest.Patience, func() error {
		out, err := l.hosts["10.0.0.1"].shell("fairlead proxy-status")
		if err == nil && strings.Contains(out, "warning") {
			err = errors.New("a newcomer would wonder what the warning is")
		}
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		l.t.Log(out)
		return nil
	})
}
