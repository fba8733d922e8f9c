package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/tenantrules"
)

// platformObjects are what others have: a service, its workload, a route at a shared gateway, and a part of
// routes. tenantObjects are what the tenant has without the object that is tried.
const (
	platformObjects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: orders-1, namespace: shop}
spec: {address: 10.1.0.1, serviceAccount: orders, labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: shared-1, namespace: edge}
spec: {address: 10.2.0.1, serviceAccount: shared, labels: {istio: shared}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shared, namespace: edge}
spec: {selector: {istio: shared}, servers: [{hosts: ["*/*"], port: {number: 8080, name: http, protocol: HTTP}}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: shop}
spec: {hosts: [orders.example.com], gateways: [edge/shared], http: [{route: [{destination: {host: orders.shop.internal}}]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: part, namespace: shop}
spec: {http: [{match: [{uri: {prefix: /part}}], route: [{destination: {host: orders.shop.internal}}]}]}
`
	tenantObjects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: app, namespace: evil}
spec:
  hosts: [app.evil.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, protocol: TCP}, {number: 443, name: tls, protocol: TLS}]
  endpoints: [{address: 10.6.6.6, serviceAccount: app}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own, namespace: evil}
spec:
  hosts: [own.evil.internal]
  exportTo: ["."]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 82, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: orders}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: app-1, namespace: evil}
spec: {address: 10.6.6.1, serviceAccount: app, labels: {app: orders}}
`
	checkerMesh = `extensionProviders:
- name: checker
  envoyExtAuthzHttp: {service: checker.shop.internal, port: "80"}
- name: traces
  opentelemetry: {service: orders.shop.internal, port: 80}
- name: files
  envoyFileAccessLog: {path: /dev/stdout}
`
)

// fieldRig renders what others and the tenant's own proxies get.
type fieldRig struct {
	t         *testing.T
	dir, mesh string
}

func newFieldRig(t *testing.T) *fieldRig {
	t.Helper()
	r := &fieldRig{t: t, dir: t.TempDir()}
	r.mesh = filepath.Join(r.dir, "mesh.yaml")
	r.put("platform/all.yaml", platformObjects)
	r.put("mesh.yaml", checkerMesh)
	return r
}

func (r *fieldRig) put(name, content string) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// render is what proxies get with an object of the tenant: those of others, and its own; and what is
// reported.
func (r *fieldRig) render(object string, args ...string) (others, own, errs string) {
	r.t.Helper()
	r.put("evil/app.yaml", tenantObjects)
	r.put("evil/try.yaml", "# tried\n"+object)
	tenant := filepath.Join(r.dir, "evil")
	common := append([]string{
		"render", "--mesh-config", r.mesh, "--config-dir", filepath.Join(r.dir, "platform"), "--config-dir", tenant + "=evil",
		"--config-hosts", tenant + "=*.evil.internal,10.6.0.0/16",
	}, args...)
	of := func(more ...string) string {
		r.t.Helper()
		code, out, failed := cli(r.t, append(common, more...)...)
		if code == exitFailed {
			r.t.Fatalf("%s: %s", more, failed)
		}
		errs = failed // the same for each proxy
		return out
	}
	others = of("--namespace", "third", "--ip", "10.9.9.9") + of("--namespace", "third", "--ip", "10.9.9.9", "--interception", "REDIRECT") +
		of("--workload", "shop/orders-1", "--interception", "REDIRECT") + of("--workload", "edge/shared-1", "--type", "router")
	own = of("--namespace", "evil", "--ip", "10.9.9.8") + of("--workload", "evil/app-1", "--interception", "REDIRECT") +
		of("--namespace", "evil", "--ip", "10.9.9.7", "--type", "router", "--labels", "istio=shared")
	return others, own, errs
}

// TestTenantsTryEachField: each row of the table of fields holds for a tenant that names in it what is
// of others.
func TestTenantsTryEachField(t *testing.T) {
	t.Parallel()
	base := newFieldRig(t)
	others, own, errs := base.render("")
	if errs != "" || !strings.Contains(others, "orders.shop.internal") || !strings.Contains(others, "app.evil.internal") {
		t.Fatalf("the mesh before: %s", errs)
	}
	n := 0
	for i, row := range tenantrules.Rows() {
		for j, try := range row.Tries() {
			n++
			t.Run(fmt.Sprintf("%d_%s_%s_%d", i, strings.ReplaceAll(row.Fields[0], " ", "-"), strings.ReplaceAll(string(row.Rule), " ", "-"), j), func(t *testing.T) {
				t.Parallel()
				tryField(t, row, try, others, own)
			})
		}
	}
	if n < 70 {
		t.Errorf("%d tries", n)
	}
}

// tryField tries a document of a row; others and own are what proxies get without it.
func tryField(t *testing.T, row tenantrules.Row, try, others, own string) {
	t.Helper()
	r := newFieldRig(t)
	gotOthers, gotOwn, errs := r.render(try)
	reaches, counts, refused := gotOthers != others, gotOwn != own, strings.Contains(errs, ": error [FL")
	switch row.Rule {
	case tenantrules.Own:
		if reaches || refused || counts == row.Elsewhere {
			t.Errorf("reaches others: %v, counts for its own: %v; refused: %s", reaches, counts, errs)
		}
	case tenantrules.AsIstio:
		if !reaches || refused {
			t.Errorf("reaches others: %v; refused: %s", reaches, errs)
		}
	case tenantrules.Refused:
		if reaches || counts || !refused {
			t.Errorf("reaches others: %v, counts for its own: %v; refused: %s", reaches, counts, errs)
		}
	case tenantrules.Setting:
		flag := []string{row.Flag, filepath.Join(r.dir, "evil")}
		if row.Name != "" {
			flag[1] += "=" + row.Name
			if strings.Contains(gotOthers, row.Name) || !counts || !strings.Contains(errs, row.Flag) {
				t.Errorf("others use %s, or counts for its own: %v, or %s", row.Name, counts, errs)
			}
			if gotOthers, _, errs = r.render(try, flag...); !strings.Contains(gotOthers, row.Name) || strings.Contains(errs, row.Flag) {
				t.Errorf("with %s others do not use %s: %s", row.Flag, row.Name, errs)
			}
			return
		}
		if reaches || counts || !strings.Contains(errs, row.Flag) {
			t.Errorf("reaches others: %v, counts for its own: %v; refused: %s", reaches, counts, errs)
		}
		if gotOthers, gotOwn, errs = r.render(try, flag...); gotOthers == others && gotOwn == own || strings.Contains(errs, row.Flag) {
			t.Errorf("with %s it does not count: %s", row.Flag, errs)
		}
	case tenantrules.NoEffect:
		if reaches || refused || !strings.Contains(errs, "no effect") {
			t.Errorf("reaches others: %v; refused or not reported: %s", reaches, errs)
		}
	case tenantrules.Plain:
		t.Error("a plain field is not tried")
	}
}
