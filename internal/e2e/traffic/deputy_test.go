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
const deputyMesh = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: edge}
spec: {address: 127.0.0.13, labels: {istio: ingressgateway}, serviceAccount: edge}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 8080, name: http, protocol: HTTP}, bind: 127.0.0.13, hosts: ["*.shop.test"]}
`

// deputyRoutes are of the tenant: to the bank, also by a delegate, and to a service of its own. Those of own are for
// sidecars, too.
const deputyRoutes = `
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

// TestGatewayIsNoDeputy: a tenant leads a shared gateway to the service of a third one, by a route of its own and by a
// delegate. Both are warnings; with --config-routes-only they are errors, and the gateway answers 503 to them alone. The sidecar of a client follows the routes in any case.
func TestGatewayIsNoDeputy(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	m := meshtest.New(t, "", map[string]int{"own": 18081, "bank": 18082})
	tenants := map[string]string{"shop": strings.ReplaceAll(deputyRoutes, "127.0.0.11", m.Address(11)), "bank": deputyBank}
	args := []string{"--config-hosts", filepath.Join(m.Dir, "shop") + "=*.shop.test", "--config-hosts", filepath.Join(m.Dir, "bank") + "=*.bank.test"}
	var local []string
	for ns, text := range tenants {
		dir := filepath.Join(m.Dir, ns)
		app := map[string]string{"shop": "own", "bank": "bank"}[ns]
		text = strings.ReplaceAll(text, "PORT", strconv.Itoa(m.Port(app)))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		local = append(local, "--allow-local-addresses", dir)
		args = append(args, "--config-dir", dir+"="+ns, "--allow-local-addresses", dir)
		m.StartApp(meshtest.Host{Name: app, App: []string{}})
	}
	m.Write("mesh.yaml", deputyMesh)
	m.StartServer(args...)
	edge := meshtest.Host{Name: "edge", Workload: "edge/edge", Address: 13, Agent: []string{"--drain-time", "1s"}}
	client := meshtest.Host{Name: "client", Workload: "shop/client", Address: 11, Agent: []string{"--drain-time", "1s"}}
	m.StartAgent(edge, m.Token("--host", edge.Name, "--workload", edge.Workload, "--type", "router"))
	m.StartAgent(client, m.Token("--host", client.Name, "--workload", client.Workload))
	m.AwaitLive("edge", "client")

	const edgePort, clientPort = "8080", "80"
	ask := func(address, host, path string) string {
		ctx, cancel := context.WithTimeout(t.Context(), envoytest.Attempt)
		defer cancel()
		a, err := meshtest.NewClient(t, host).Fresh().Get(ctx, "http://"+address+path)
		if err != nil {
			return err.Error()
		}
		return a.Name
	}
	await := func(refused bool, says string) {
		t.Helper()
		m.Server.Eventually(envoytest.Patience, func() error {
			for _, host := range []string{"left.shop.test", "own.shop.test"} {
				if got := ask(m.Address(13)+":"+edgePort, host, "/"); got != "own" {
					return fmt.Errorf("%s at the gateway: %s", host, got)
				}
				if got := ask(m.Address(13)+":"+edgePort, host, "/bank"); refused != strings.Contains(got, strconv.Itoa(http.StatusServiceUnavailable)) || !refused && got != "bank" {
					return fmt.Errorf("%s/bank at the gateway: %s", host, got)
				}
			}
			for path, want := range map[string]string{"/": "own", "/bank": "bank"} {
				if got := ask(m.Address(11)+":"+clientPort, "own.shop.test", path); got != want {
					return fmt.Errorf("%s at the client: %s", path, got)
				}
			}
			dirs := []string{"analyze", m.ConfigDir, filepath.Join(m.Dir, "shop") + "=shop", filepath.Join(m.Dir, "bank") + "=bank"}
			if refused {
				dirs = append(dirs, "--config-routes-only")
			}
			out, _ := m.CLI(slices.Concat(dirs, args[:4], local)...)
			for _, object := range []string{"VirtualService shop/left spec.http[0].delegate", "VirtualService shop/own spec.http[0].route[0].destination"} {
				if !strings.Contains(out, says+" [FL0233] "+object) {
					return fmt.Errorf("analyze lacks %s of %s:\n%s", says, object, out)
				}
			}
			return nil
		})
	}
	await(false, "warning")
	m.Server.Stop()
	m.StartServer(append(args, "--config-routes-only")...)
	await(true, "error")
}
