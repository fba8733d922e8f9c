package traffic

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// deputyMesh is a gateway of namespace edge.
const deputyMesh = meshtest.GatewayWorkload + `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8080, name: http, protocol: HTTP}, bind: 127.0.0.13, hosts: ["*.shop.test"]}
`

// deputyOwn is a service of the tenant.
const deputyOwn = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own, namespace: shop}
spec:
  hosts: [own.shop.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT}}]
---
`

// deputyRoutes are of the tenant: to the bank, also by a delegate, and to a service of its own. Those of own are for
// sidecars, too.
const deputyRoutes = deputyOwn + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: part, namespace: shop}
spec:
  http:
  - route: [{destination: {host: bank.bank.test}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: left, namespace: shop}
spec:
  hosts: [left.shop.test]
  gateways: [edge/public]
  http:
  - match: [{uri: {prefix: /bank}}]
    delegate: {name: part}
  - route: [{destination: {host: own.shop.test}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: own, namespace: shop}
spec:
  hosts: [own.shop.test]
  gateways: [edge/public, mesh]
  http:
  - match: [{uri: {prefix: /bank}}]
    route: [{destination: {host: bank.bank.test}}]
  - route: [{destination: {host: own.shop.test}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: client, namespace: shop}
spec:
  workloadSelector: {labels: {app: client}}
  egress:
  - {port: {number: 80, name: http, protocol: HTTP}, bind: 127.0.0.11, hosts: ["./own.shop.test", "*/bank.bank.test"]}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: client, namespace: shop}
spec: {address: 127.0.0.11, labels: {app: client}, serviceAccount: client}
`

const deputyBank = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bank, namespace: bank}
spec:
  hosts: [bank.bank.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: PORT}}]
`

// deputyDelegate is of the tenant, for others to include: to the bank, and to a service of its own.
const deputyDelegate = deputyOwn + `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: part, namespace: shop}
spec:
  http:
  - match: [{uri: {prefix: /shop/bank}}]
    route: [{destination: {host: bank.bank.test}}]
  - route: [{destination: {host: own.shop.test}}]
`

// deputyOperator is of the operator: it gives a path to the tenant by a delegate, and leads to the bank itself.
const deputyOperator = `---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: www, namespace: edge}
spec:
  hosts: [www.shop.test]
  gateways: [edge/public]
  http:
  - match: [{uri: {prefix: /shop}}]
    delegate: {name: part, namespace: shop}
  - match: [{uri: {prefix: /bank}}]
    route: [{destination: {host: bank.bank.test}}]
`

// deputy is a mesh with a gateway of an operator, and two tenants: shop, which writes routes, and bank.
type deputy struct {
	*meshtest.Mesh
	t       *testing.T
	args    []string // of the server
	analyze []string
}

func newDeputy(t *testing.T, operator, shop string) *deputy {
	t.Helper()
	envoytest.Binary(t)
	m := &deputy{meshtest.New(t, "", map[string]int{"own": 18081, "bank": 18082}), t, nil, []string{"analyze"}}
	m.analyze = append(m.analyze, m.ConfigDir)
	apps := map[string]string{"shop": "own", "bank": "bank"}
	for ns, text := range map[string]string{"shop": strings.ReplaceAll(shop, "127.0.0.11", m.Address(11)), "bank": deputyBank} {
		dir := filepath.Join(m.Dir, ns)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		text = strings.ReplaceAll(text, "PORT", strconv.Itoa(m.Port(apps[ns])))
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		both := []string{"--config-hosts", dir + "=*." + ns + ".test", "--allow-local-addresses", dir}
		m.args = append(append(m.args, "--config-dir", dir+"="+ns), both...)
		m.analyze = append(append(m.analyze, dir+"="+ns), both...)
		m.StartApp(meshtest.Host{Name: apps[ns], App: []string{}})
	}
	m.Write("mesh.yaml", deputyMesh+operator)
	return m
}

// ask returns who answers, or the error.
func (m *deputy) ask(address int, port, host, path string) string {
	ctx, cancel := context.WithTimeout(m.t.Context(), envoytest.Attempt)
	defer cancel()
	a, err := meshtest.NewClient(m.t, host).Fresh().Get(ctx, "http://"+m.Address(address)+":"+port+path)
	if err != nil {
		return err.Error()
	}
	return a.Name
}

// gatewayAnswers compares who answers at the gateway; want has hosts with paths. An empty answer is a refusal.
func (m *deputy) gatewayAnswers(want map[string]string) error {
	for at, name := range want {
		host, path, _ := strings.Cut(at, "/")
		switch got := m.ask(meshtest.GatewayAt, "8080", host, "/"+path); {
		case name == "" && !strings.Contains(got, strconv.Itoa(http.StatusServiceUnavailable)), name != "" && got != name:
			return fmt.Errorf("%s at the gateway: %s, want %q", at, got, name)
		}
	}
	return nil
}

// analyzeSays wants FL0233 of fields, as warnings or errors.
func (m *deputy) analyzeSays(severity string, fields []string, flags ...string) error {
	out, _ := m.CLI(slices.Concat(m.analyze, flags)...)
	for _, field := range fields {
		if !strings.Contains(out, severity+" [FL0233] VirtualService "+field) {
			return fmt.Errorf("analyze lacks %s of %s:\n%s", severity, field, out)
		}
	}
	return nil
}

const routesOnly = "--config-routes-only"

// TestGatewayIsNoDeputy: a tenant leads a shared gateway to the service of a third one, by a route of its own and by a
// delegate. Both are warnings; with --config-routes-only they are errors, and the gateway answers 503 to them alone. The
// sidecar of a client follows the routes in any case.
func TestGatewayIsNoDeputy(t *testing.T) {
	t.Parallel()
	m := newDeputy(t, "", deputyRoutes)
	m.StartServer(m.args...)
	m.StartGateway()
	client := meshtest.Host{Name: "client", Workload: "shop/client", Address: 11, Agent: []string{"--drain-time", "1s"}}
	m.StartAgent(client, m.Token("--host", client.Name, "--workload", client.Workload))
	m.AwaitLive("edge", "client")

	await := func(bank, severity string, flags ...string) {
		t.Helper()
		m.Server.Eventually(envoytest.Patience, func() error {
			err := m.gatewayAnswers(map[string]string{"left.shop.test/": "own", "own.shop.test/": "own", "left.shop.test/bank": bank, "own.shop.test/bank": bank})
			if err != nil {
				return err
			}
			for path, want := range map[string]string{"/": "own", "/bank": "bank"} {
				if got := m.ask(11, "80", "own.shop.test", path); got != want {
					return fmt.Errorf("%s at the client: %s", path, got)
				}
			}
			return m.analyzeSays(severity, []string{"shop/left spec.http[0].delegate", "shop/own spec.http[0].route[0].destination"}, flags...)
		})
	}
	await("bank", "warning")
	m.Server.Stop()
	m.StartServer(append(m.args, routesOnly)...)
	await("", "error", routesOnly)
}

// TestGatewayIsNoDeputyOfADelegate: an operator gives a path of a shared gateway to a tenant, by a delegate. That lets
// the gateway call the tenant's services, and no third tenant's, to which the operator's own routes lead.
func TestGatewayIsNoDeputyOfADelegate(t *testing.T) {
	t.Parallel()
	m := newDeputy(t, deputyOperator, deputyDelegate)
	m.StartServer(append(m.args, routesOnly)...)
	m.StartGateway()
	m.AwaitLive("edge")
	m.Server.Eventually(envoytest.Patience, func() error {
		if err := m.gatewayAnswers(map[string]string{"www.shop.test/shop": "own", "www.shop.test/shop/bank": "", "www.shop.test/bank": "bank"}); err != nil {
			return err
		}
		return m.analyzeSays("error", []string{"shop/part spec.http[0].route[0].destination"}, routesOnly)
	})
}
