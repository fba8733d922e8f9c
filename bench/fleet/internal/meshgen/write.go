package meshgen

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Write makes the directory of the mesh: for each service a file of its own
// kind, one of its routes where it has some, and one of its hosts.
func (s Spec) Write(dir string) error {
	for i := range s.Services {
		if err := writeFiles(dir, s.files(i)); err != nil {
			return err
		}
	}
	return writeFiles(dir, s.gatewayFiles())
}

func writeFiles(dir string, files map[string]string) error {
	for path, content := range files {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			return fmt.Errorf("writing a mesh: %w", err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return fmt.Errorf("writing a mesh: %w", err)
		}
	}
	return nil
}

func (s Spec) files(service int) map[string]string {
	out := map[string]string{
		s.serviceFile(service): s.service(service),
		s.hostsFile(service):   s.hosts(service, -1, ""),
	}
	if s.HasRoute(service) {
		out[s.routeFile(service)] = s.route(service, "r000000")
	}
	return out
}

func (s Spec) file(service int, kind string) string {
	return filepath.Join(s.Namespace(service), s.Name(service)+kind+".yaml")
}
func (s Spec) serviceFile(service int) string { return s.file(service, "") }
func (s Spec) hostsFile(service int) string   { return s.file(service, "-hosts") }
func (s Spec) routeFile(service int) string   { return s.file(service, "-routes") }

func head(b *strings.Builder, kind, name, namespace string) {
	fmt.Fprintf(b, "apiVersion: networking.istio.io/v1\nkind: %s\nmetadata: {name: %s, namespace: %s}\nspec:\n", kind, name, namespace)
}

func (s Spec) service(i int) string {
	var b strings.Builder
	head(&b, "ServiceEntry", s.Name(i), s.Namespace(i))
	fmt.Fprintf(&b, "  hosts: [%s]\n  location: MESH_INTERNAL\n  resolution: STATIC\n", s.Host(i))
	if !s.Capture {
		fmt.Fprintf(&b, "  addresses: [%s]\n", virtualIP(i))
	}
	b.WriteString("  ports:\n  - {number: 8080, name: http, protocol: HTTP}\n")
	if s.hasTCP(i) {
		b.WriteString("  - {number: 9000, name: tcp, protocol: TCP}\n")
	}
	fmt.Fprintf(&b, "  workloadSelector:\n    labels: {app: %s}\n", s.Name(i))
	if s.HasRoute(i) {
		b.WriteString("---\n")
		head(&b, "DestinationRule", s.Name(i), s.Namespace(i))
		fmt.Fprintf(&b, `  host: %s
  trafficPolicy:
    connectionPool: {tcp: {maxConnections: 200, connectTimeout: 3s}, http: {http1MaxPendingRequests: 100}}
    outlierDetection: {consecutive5xxErrors: 5, interval: 10s, baseEjectionTime: 30s}
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
`, s.Host(i))
	}
	return b.String()
}

// route is a VirtualService; the revision is a word that no other edit has.
func (s Spec) route(i int, revision string) string {
	var b strings.Builder
	head(&b, "VirtualService", s.Name(i), s.Namespace(i))
	fmt.Fprintf(&b, `  hosts: [%[1]s]
  http:
  - match:
    - headers: {x-canary: {exact: "true"}}
    route:
    - destination: {host: %[1]s, subset: v2}
  - route:
    - destination: {host: %[1]s, subset: v1}
      weight: 90
    - destination: {host: %[1]s, subset: v2}
      weight: 10
    timeout: 15s
    retries: {attempts: 3, perTryTimeout: 4s, retryOn: "5xx,connect-failure"}
    headers: {request: {set: {x-revision: %[2]s}}}
`, s.Host(i), revision)
	return b.String()
}

// hosts are the WorkloadEntries of a service; one may have another address.
func (s Spec) hosts(i, moved int, address string) string {
	var b strings.Builder
	for e := range s.endpointsOf(i) {
		if e > 0 {
			b.WriteString("---\n")
		}
		head(&b, "WorkloadEntry", s.workload(i, e), s.Namespace(i))
		at := s.address(i, e)
		if e == moved {
			at = address
		}
		fmt.Fprintf(&b, "  address: %s\n  serviceAccount: %s\n  locality: %s\n", at, s.Name(i), zone(e))
		fmt.Fprintf(&b, "  labels: {app: %s, instance: %s, version: %s}\n", s.Name(i), s.workload(i, e), version(e))
		if s.OwnSidecars && s.isProxy(i, e) {
			b.WriteString("---\n" + s.sidecar(i, e))
		}
	}
	return b.String()
}

// sidecarHosts is how many services a Sidecar of one proxy lists by name.
const sidecarHosts = 100

// sidecar is the Sidecar of one proxy. No two list the same hosts: each begins
// at another service, and service 0, which edits are made of, is in all.
func (s Spec) sidecar(i, endpoint int) string {
	var b strings.Builder
	head(&b, "Sidecar", s.workload(i, endpoint), s.Namespace(i))
	fmt.Fprintf(&b, "  workloadSelector: {labels: {instance: %s}}\n  egress:\n  - hosts:\n", s.workload(i, endpoint))
	first := endpoint*s.clients() + i
	seen := map[int]bool{}
	for k := range min(sidecarHosts, s.Services) {
		// Neighbours share most: they are 100 of a window that moves by one.
		seen[(first+k)%s.Services] = true
	}
	for _, e := range []int{s.EditedRoute(), s.EditedHosts(), s.lastOfMany(Share)} {
		seen[e] = true
	}
	for k := range s.Services {
		if seen[k] {
			fmt.Fprintf(&b, "    - %s\n", strconv.Quote(s.Namespace(k)+"/"+s.Host(k)))
		}
	}
	return b.String()
}
