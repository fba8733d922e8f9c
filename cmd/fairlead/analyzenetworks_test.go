package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnalyzeNetworks holds that analyze names who is not reached from other networks, and why, and that
// render and validate read the file.
func TestAnalyzeNetworks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	manifests := write("mesh.yaml", `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: reached, namespace: shop}
spec: {address: 10.1.0.1, serviceAccount: orders, labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: plain, namespace: shop}
spec: {address: 10.1.0.2, labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: nowhere, namespace: shop}
spec: {address: 10.3.0.1, network: lost, serviceAccount: orders, labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: none, namespace: shop}
spec: {address: 10.4.0.1, labels: {app: orders}}
`)
	good := write("networks.yaml", "networks:\n  a: {endpoints: [{fromCidr: 10.1.0.0/16}], gateways: [{address: 203.0.113.1, port: 15443}]}\n  b: {gateways: [{registryServiceName: gone.mesh, port: 15443}]}\n")
	code, out, _ := cli(t, "analyze", "--mesh-networks", good, manifests)
	for _, want := range []string{
		`networks.yaml:1:1: warning [FL0266] MeshNetworks: network "b" has no gateway: no service named by registryServiceName`,
		`warning [FL0266] WorkloadEntry shop/nowhere: workload 10.3.0.1 is in network "lost", which has no gateway in the file of networks`,
		`warning [FL0267] WorkloadEntry shop/plain: workload 10.1.0.2 of orders.shop.mesh takes no mTLS, and proxies outside its network "a" reach it by mTLS only`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %s in\n%s", want, out)
		}
	}
	if n := strings.Count(out, "[FL0266]") + strings.Count(out, "[FL0267]"); n != 3 || code != 0 {
		t.Errorf("%d findings, exit code %d:\n%s", n, code, out)
	}
	if _, out, _ := cli(t, "analyze", manifests); strings.Contains(out, "FL0266") || strings.Contains(out, "FL0267") {
		t.Errorf("without networks:\n%s", out)
	}
	args := []string{"render", "--config-dir", dir, "--ip", "10.2.0.1", "--namespace", "shop"}
	if _, out, _ := cli(t, append(args, "--mesh-networks", good)...); !strings.Contains(out, "203.0.113.1") || strings.Contains(out, "10.1.0.1\"") {
		t.Error("render takes no notice of the networks")
	}
	bad := write("bad.txt", "networks: {a: {gateways: [{address: gw.example, port: 1}]}}")
	for _, command := range []string{"analyze", "validate"} {
		if code, out, _ := cli(t, command, "--mesh-networks", bad, manifests); code != 1 || !strings.Contains(out, `error [FL0120] MeshNetworks networks.a.gateways[0].address: "gw.example" is a name`) {
			t.Errorf("%s: exit code %d\n%s", command, code, out)
		}
	}
	if code, _, errs := cli(t, append(args, "--mesh-networks", bad)...); code != 2 || !strings.Contains(errs, "FL0120") {
		t.Errorf("render: exit code %d\n%s", code, errs)
	}
}
