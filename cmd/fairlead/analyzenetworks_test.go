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
	good := write("networks.yaml", "networks:\n  a: {endpoints: [{fromCidr: 10.1.0.0/16}], gateways: [{address: 203.0.113.1, port: 15443}]}\n  b: {endpoints: [{fromRegistry: dc2}], gateways: [{registryServiceName: gone.mesh, port: 15443}]}\n")
	code, out, _ := cli(t, "analyze", "--mesh-networks", good, manifests)
	for _, want := range []string{
		`networks.yaml:1:1: warning [FL0266] MeshNetworks: network "b" has no gateway, so that proxies of other networks connect to the addresses of its workloads, as in Istio. registryServiceName gone.mesh: there is no service "gone.mesh"; correct`,
		`networks.yaml:1:1: warning [FL0272] MeshNetworks: fromRegistry "dc2" takes in nothing: no workload is of a Consul datacenter of this name, and everything in files is Kubernetes; correct the name, or give --consul-address`,
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
	named := write("named.txt", "networks: {a: {endpoints: [{fromCidr: 10.1.0.0/16}], gateways: [{address: gw.invalid, port: 15443}]}}")
	if code, out, _ := cli(t, "analyze", "--mesh-networks", named, manifests); code != 0 || strings.Contains(out, "MeshNetworks") || !strings.Contains(out, `workload 10.1.0.2 of orders.shop.mesh takes no mTLS`) {
		t.Errorf("a gateway with a name counts as none: exit code %d\n%s", code, out)
	}
	if code, out, errs := cli(t, append(args, "--mesh-networks", named)...); !strings.Contains(errs, "the gateway gw.invalid is left out: ") || !strings.Contains(out, "10.1.0.1\"") {
		t.Errorf("render with a name that nobody knows: exit code %d\n%s", code, errs)
	}
	bad := write("bad.txt", "networks: {a: {gateways: [{address: gw_1!, port: 1}]}}")
	for _, command := range []string{"analyze", "validate"} {
		if code, out, _ := cli(t, command, "--mesh-networks", bad, manifests); code != 1 || !strings.Contains(out, `error [FL0120] MeshNetworks networks.a.gateways[0].address: "gw_1!" is neither an IP address nor a DNS name`) {
			t.Errorf("%s: exit code %d\n%s", command, code, out)
		}
	}
	if code, _, errs := cli(t, append(args, "--mesh-networks", bad)...); code != 2 || !strings.Contains(errs, "FL0120") {
		t.Errorf("render: exit code %d\n%s", code, errs)
	}
}

// TestApplyKnowsNetworks holds that apply checks a change with the networks of the mesh, as the server
// will have them, and does nothing where their file is wrong.
func TestApplyKnowsNetworks(t *testing.T) {
	t.Parallel()
	dir, networks := t.TempDir(), filepath.Join(t.TempDir(), "networks.yaml")
	put := func(text string) {
		if err := os.WriteFile(networks, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("networks: {a: {endpoints: [{fromCidr: 10.1.0.0/16}], gateways: [{address: 203.0.113.1, port: 15443}]}}")
	change := write(t, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.0.1}]
`)
	args := []string{"apply", "--run-dir", t.TempDir(), "--config-dir", dir, "--dry-run", change}
	if code, out, errs := cli(t, args...); code != 0 || strings.Contains(out, "FL0267") {
		t.Errorf("without networks: exit code %d\n%s%s", code, out, errs)
	}
	args = append(args, "--mesh-networks", networks)
	if code, out, errs := cli(t, args...); code != 0 || !strings.Contains(out, "warning [FL0267] ServiceEntry shop/orders") {
		t.Errorf("with networks: exit code %d\n%s%s", code, out, errs)
	}
	put("networks: {a: {gatways: []}}")
	if code, out, errs := cli(t, args...); code != 2 || !strings.Contains(errs, "gatways") {
		t.Errorf("with wrong networks: exit code %d\n%s%s", code, out, errs)
	}
}
