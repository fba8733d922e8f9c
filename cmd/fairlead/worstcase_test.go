package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// worstCase writes n times the same sort of thing.
type worstCase struct {
	name string
	// n is a size that takes long enough to be measured.
	n    int
	text func(n int) string
}

// istioObject writes one object.
func istioObject(apiVersion, kind string, i int, spec string) string {
	return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: x%05d, namespace: evil, labels: {app: a}}\nspec:\n%s\n---\n", apiVersion, kind, i, spec)
}

// repeated joins n texts.
func repeated(n int, one func(i int) string) string {
	var s strings.Builder
	for i := range n {
		s.WriteString(one(i))
	}
	return s.String()
}

// objects are n objects of a kind.
func objects(apiVersion, kind string, spec func(i int) string) func(n int) string {
	return func(n int) string {
		return repeated(n, func(i int) string { return istioObject(apiVersion, kind, i, spec(i)) })
	}
}

// oneObject is one object with n items below some lines.
func oneObject(apiVersion, kind, spec string, item func(i int) string) func(n int) string {
	return func(n int) string { return istioObject(apiVersion, kind, 0, spec+repeated(n, item)) }
}

const (
	networkingV1 = "networking.istio.io/v1"
	securityV1   = "security.istio.io/v1"
	telemetryV1  = "telemetry.istio.io/v1"
	extensionsV1 = "extensions.istio.io/v1alpha1"
	httpPort     = "  ports: [{name: http, number: 80, protocol: HTTP}]\n  resolution: STATIC\n"
	tcpPort      = "  ports: [{name: tcp, number: 3306, protocol: TCP}]\n  resolution: STATIC\n"
	selecting    = "  selector: {matchLabels: {app: a}}\n"
)

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255) }

// worstCases are, for each kind, objects that name the same, or what overlaps, many times, and
// that have much of everything.
func worstCases() map[mesh.Kind][]worstCase {
	same := func(spec string) func(int) string { return func(int) string { return spec } }
	format := func(f string) func(int) string { return func(i int) string { return fmt.Sprintf(f, i) } }
	regex := strings.Repeat("(a|b[c-e]+)", 20)
	nested := func(i int) string { return strings.Repeat("w.", i%100) + fmt.Sprintf("g%d.evil.test", i/100) }
	workloads := objects(networkingV1, "WorkloadEntry", same("  address: 10.0.0.1\n  serviceAccount: a"))
	services := func(n int) string {
		return repeated(n, func(i int) string {
			return istioObject(networkingV1, "ServiceEntry", 50000+i, fmt.Sprintf("  hosts: [h%d.evil.test]\n", i)+httpPort+"  endpoints: [{address: 10.0.0.1}]")
		})
	}
	// with writes as many objects as there are of others that they concern.
	with := func(some, others func(n int) string) func(int) string {
		return func(n int) string { return some(n) + others(n) }
	}
	// beside writes a number of others: together they make a product, which the limits of a source bound.
	beside := func(some func(n int) string, others string) func(int) string {
		return func(n int) string { return some(n) + others }
	}
	fleet := objects(networkingV1, "WorkloadEntry", func(i int) string { return "  address: " + address(i) + "\n  labels: {app: a}" })
	wildRoutes := oneObject(networkingV1, "VirtualService", "  hosts: ['*.evil.test']\n  http:\n", func(i int) string {
		return fmt.Sprintf("  - match: [{uri: {prefix: /%d/}}]\n    route: [{destination: {host: h0.evil.test}}]\n", i)
	})
	wildSubsets := oneObject(networkingV1, "DestinationRule", "  host: '*.evil.test'\n  subsets:\n", format("  - {name: v%[1]d, labels: {version: v%[1]d}}\n"))
	delegating := func(n int) string {
		return istioObject(networkingV1, "VirtualService", 0, "  hosts: [s.evil.test]\n  http:\n"+repeated(n, format("  - {match: [{uri: {prefix: /%d/}}], delegate: {name: x00001}}\n")))
	}
	delegate := func(n int) string {
		return istioObject(networkingV1, "VirtualService", 1, "  http:\n"+repeated(n, format("  - {match: [{headers: {a: {exact: b%d}}}], route: [{destination: {host: s.evil.test}}]}\n")))
	}
	selectors := func(n int) string {
		return repeated(n, func(i int) string {
			return istioObject(networkingV1, "ServiceEntry", 50000+i, fmt.Sprintf("  hosts: [h%d.evil.test]\n  workloadSelector: {labels: {app: a}}\n", i)+httpPort)
		})
	}
	service := istioObject(networkingV1, "ServiceEntry", 99999, "  hosts: [s.evil.test]\n  workloadSelector: {labels: {app: a}}\n"+httpPort)
	return map[mesh.Kind][]worstCase{
		mesh.KindServiceEntry: {
			{"endpoints", 2000, oneObject(networkingV1, "ServiceEntry", "  hosts: [a.evil.test, b.evil.test, c.evil.test, d.evil.test]\n"+httpPort+"  endpoints:\n", func(i int) string { return "  - {address: " + address(i) + "}\n" })},
			{"hosts", 600, objects(networkingV1, "ServiceEntry", func(i int) string {
				return fmt.Sprintf("  hosts: [h%d.evil.test]\n", i) + httpPort + "  endpoints: [{address: 10.0.0.1}]"
			})},
			{"one-host", 600, objects(networkingV1, "ServiceEntry", same("  hosts: [h.evil.test]\n"+httpPort+"  endpoints: [{address: 10.0.0.1}]"))},
			{"wildcards", 600, objects(networkingV1, "ServiceEntry", func(i int) string {
				return fmt.Sprintf("  hosts: ['*.%s']\n", nested(i)) + httpPort + "  endpoints: [{address: 10.0.0.1}]"
			})},
			{"addresses", 600, objects(networkingV1, "ServiceEntry", func(i int) string {
				return fmt.Sprintf("  hosts: [h%d.evil.test]\n  addresses: [%s, 10.0.0.0/9]\n", i, address(i)) + tcpPort + "  endpoints: [{address: 10.0.0.1}]"
			})},
			{"short-names", 300, objects(networkingV1, "ServiceEntry", func(i int) string {
				return fmt.Sprintf("  hosts: [a.h%[1]d.evil.svc.cluster.local, '*.w%[1]d.evil.svc.cluster.local']\n", i) + httpPort + "  endpoints: [{address: 10.0.0.1}]"
			})},
			{"selecting-workloads", 100, beside(selectors, fleet(100))},
		},
		mesh.KindWorkloadEntry: {
			{"one-address", 1500, workloads},
			{"one-address-selected", 1500, func(n int) string { return workloads(n) + service }},
			{"labels", 1500, func(n int) string {
				return repeated(n, func(i int) string {
					return istioObject(networkingV1, "WorkloadEntry", i, fmt.Sprintf("  address: %s\n  labels: {app: a, x%d: a}", address(i), i%50))
				}) + service
			}},
			{"selected-by-services", 100, beside(fleet, selectors(20))},
		},
		mesh.KindWorkloadGroup: {{"same", 1000, objects(networkingV1, "WorkloadGroup", same("  metadata: {labels: {app: a}}\n  template: {serviceAccount: a}"))}},
		mesh.KindVirtualService: {
			{"one-host", 600, objects(networkingV1, "VirtualService", same("  hosts: [s.evil.test]\n  http: [{route: [{destination: {host: s.evil.test}}]}]"))},
			{"routes", 1000, oneObject(networkingV1, "VirtualService", "  hosts: [s.evil.test]\n  http:\n", func(i int) string {
				return fmt.Sprintf("  - match: [{uri: {prefix: /%d}}]\n    route: [{destination: {host: s.evil.test}}]\n", i)
			})},
			{"regex", 300, oneObject(networkingV1, "VirtualService", "  hosts: [s.evil.test]\n  http:\n", func(i int) string {
				return fmt.Sprintf("  - match: [{uri: {regex: '/%d%s'}}]\n    route: [{destination: {host: s.evil.test}}]\n", i, regex)
			})},
			{"wildcards", 600, objects(networkingV1, "VirtualService", func(i int) string {
				return fmt.Sprintf("  hosts: ['*.%s']\n  http: [{route: [{destination: {host: s.evil.test}}]}]", nested(i))
			})},
			{"wildcards-of-services", 300, with(objects(networkingV1, "VirtualService", func(i int) string {
				return fmt.Sprintf("  hosts: ['*.evil.test']\n  http: [{match: [{uri: {prefix: /%d/}}], route: [{destination: {host: h0.evil.test}}]}]", i)
			}), services)},
			{"routes-of-services", 100, beside(wildRoutes, services(50))},
			{"services-with-routes", 100, beside(services, wildRoutes(50))},
			{"hosts", 1000, oneObject(networkingV1, "VirtualService", "  http: [{route: [{destination: {host: s.evil.test}}]}]\n  hosts:\n", format("  - h%d.evil.test\n"))},
			{"hosts-at-gateways", 1000, func(n int) string {
				return istioObject(networkingV1, "VirtualService", 0, "  http: [{route: [{destination: {host: s.evil.test}}]}]\n  hosts:\n"+repeated(n, format("  - h%d.evil.test\n"))+"  gateways:\n"+repeated(n, format("  - g%d\n")))
			}},
			{"other-server-names", 500, func(n int) string {
				return istioObject(networkingV1, "VirtualService", 0, "  hosts:\n"+repeated(n, format("  - h%d.evil.test\n"))+"  tls:\n  - route: [{destination: {host: s.evil.test}}]\n    match:\n    - port: 443\n      sniHosts:\n"+repeated(n, format("      - x%d.evil.test\n")))
			}},
			{"delegate-at-gateways", 500, func(n int) string {
				return istioObject(networkingV1, "VirtualService", 0, "  hosts: [s.evil.test]\n  gateways:\n"+repeated(n, format("  - shared/g%d\n"))+"  http:\n  - {match: [{uri: {prefix: /}}], delegate: {name: x00001}}\n") + delegate(n)
			}},
			{"delegating", 100, beside(delegating, delegate(50))},
			{"delegate", 100, beside(delegate, delegating(50))},
		},
		mesh.KindDestinationRule: {
			{"one-host", 1000, objects(networkingV1, "DestinationRule", same("  host: s.evil.test"))},
			{"subsets", 1000, oneObject(networkingV1, "DestinationRule", "  host: s.evil.test\n  subsets:\n", format("  - {name: v%[1]d, labels: {version: v%[1]d}}\n"))},
			{"wildcards", 1000, objects(networkingV1, "DestinationRule", func(i int) string { return fmt.Sprintf("  host: '*.%s'", nested(i)) })},
			{"wildcards-of-services", 300, with(objects(networkingV1, "DestinationRule", same("  host: '*.evil.test'")), services)},
			{"subsets-of-services", 50, beside(wildSubsets, services(50))},
			{"services-with-subsets", 50, beside(services, wildSubsets(50))},
		},
		mesh.KindGateway: {
			{"same", 500, objects(networkingV1, "Gateway", same("  selector: {app: a}\n  servers: [{hosts: ['*.evil.test'], port: {name: http, number: 80, protocol: HTTP}}]"))},
			{"hosts", 1000, oneObject(networkingV1, "Gateway", "  selector: {app: a}\n  servers:\n  - port: {name: http, number: 80, protocol: HTTP}\n    hosts:\n", format("    - h%d.evil.test\n"))},
			{"virtual-services", 200, with(objects(networkingV1, "Gateway", same("  selector: {app: a}\n  servers: [{hosts: ['*.evil.test'], port: {name: http, number: 80, protocol: HTTP}}]")),
				objects(networkingV1, "VirtualService", format("  hosts: [v%d.evil.test]\n  gateways: [x00000, x00001, mesh]\n  http: [{route: [{destination: {host: s.evil.test}}]}]")))},
		},
		mesh.KindSidecar: {
			{"same", 1000, objects(networkingV1, "Sidecar", same("  workloadSelector: {labels: {app: a}}\n  egress: [{hosts: ['./*']}]"))},
			{"hosts", 5000, oneObject(networkingV1, "Sidecar", "  egress:\n  - hosts:\n", format("    - ./h%d.evil.test\n"))},
			{"hosts-of-services", 300, with(oneObject(networkingV1, "Sidecar", "  egress:\n  - hosts:\n", format("    - ./h%d.evil.test\n")), services)},
			{"listeners-of-services", 100, with(oneObject(networkingV1, "Sidecar", "  egress:\n", func(i int) string {
				return fmt.Sprintf("  - {port: {number: %[1]d, protocol: HTTP, name: http-%[1]d}, hosts: ['./*']}\n", 10000+i)
			}), services)},
			{"sidecars-of-services", 300, with(objects(networkingV1, "Sidecar", format("  workloadSelector: {labels: {app: b%d}}\n  egress: [{hosts: ['*/*']}]")), services)},
		},
		mesh.KindPeerAuthentication: {
			{"same", 1000, objects(securityV1, "PeerAuthentication", same(selecting+"  mtls: {mode: STRICT}"))},
			{"ports", 1000, oneObject(securityV1, "PeerAuthentication", selecting+"  portLevelMtls:\n", func(i int) string { return fmt.Sprintf("    %d: {mode: STRICT}\n", i+1) })},
			{"workloads", 300, with(objects(securityV1, "PeerAuthentication", same(selecting+"  mtls: {mode: STRICT}")), fleet)},
		},
		mesh.KindRequestAuthentication: {
			{"same", 1000, objects(securityV1, "RequestAuthentication", same(selecting+"  jwtRules: [{issuer: a, jwks: '{\"keys\":[]}'}]"))},
			{"rules", 500, oneObject(securityV1, "RequestAuthentication", selecting+"  jwtRules:\n", format("  - {issuer: a%d, jwks: '{\"keys\":[]}'}\n"))},
			{"workloads", 300, with(objects(securityV1, "RequestAuthentication", same(selecting+"  jwtRules: [{issuer: a, jwks: '{\"keys\":[]}'}]")), fleet)},
		},
		mesh.KindAuthorizationPolicy: {
			{"same", 1000, objects(securityV1, "AuthorizationPolicy", same(selecting+"  rules: [{to: [{operation: {paths: [/a]}}]}]"))},
			{"values", 2000, oneObject(securityV1, "AuthorizationPolicy", selecting+"  rules:\n  - to:\n    - operation:\n        paths:\n", format("        - /%d\n"))},
			{"rules", 500, oneObject(securityV1, "AuthorizationPolicy", selecting+"  rules:\n", format("  - {from: [{source: {principals: ['a/ns/b/sa/c%d']}}], to: [{operation: {paths: ['/a*']}}]}\n"))},
			{"workloads", 300, with(objects(securityV1, "AuthorizationPolicy", same(selecting+"  rules: [{to: [{operation: {paths: [/a]}}]}]")), fleet)},
		},
		mesh.KindTelemetry: {
			{"same", 1000, objects(telemetryV1, "Telemetry", same(selecting+"  accessLogging: [{disabled: true}]"))},
			{"workloads", 300, with(objects(telemetryV1, "Telemetry", same(selecting+"  accessLogging: [{disabled: true}]")), fleet)},
		},
		mesh.KindProxyConfig:      {{"same", 1000, objects("networking.istio.io/v1beta1", "ProxyConfig", same(selecting+"  concurrency: 2"))}},
		mesh.KindEnvoyFilter:      {{"same", 1000, objects("networking.istio.io/v1alpha3", "EnvoyFilter", same("  workloadSelector: {labels: {app: a}}"))}},
		mesh.KindWasmPlugin:       {{"same", 1000, objects(extensionsV1, "WasmPlugin", same(selecting+"  url: https://a.test/a.wasm"))}},
		mesh.KindTrafficExtension: {{"same", 1000, objects(extensionsV1, "TrafficExtension", same(selecting+"  lua: {inlineCode: 'x'}"))}},
	}
}

// readWhole does with a bound directory what the server and the commands do: it reads, judges and
// merges, and makes the configuration of a proxy beside a workload of the directory. It returns
// the CPU time of the thread.
func readWhole(t *testing.T, dir string) time.Duration {
	t.Helper()
	runtime.GC()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	tree, err := readTree(nil, []string{dir + "=evil"}, &boundFlags{}, hostPathFlags{})
	if err != nil {
		t.Fatal(err)
	}
	settings := manifest.DefaultMeshConfig()
	analyzeTree(tree, settings)
	snapshot := tree.snapshot(settings)
	proxy := view.Proxy{
		Type: view.Sidecar, Interception: view.InterceptRedirect, ID: "sidecar~10.0.0.1~x.evil~evil.svc.cluster.local", Addresses: []string{"10.0.0.1"},
		ServiceAccount: mesh.ServiceAccount{Namespace: "evil", Name: "a"}, Labels: map[string]string{"app": "a"}, Names: true,
	}
	for part := range (&view.Settings{}).NewIndex(snapshot).Build(proxy).Parts() {
		envoy.Build(part)
	}
	return used() - before
}

// cost reads a directory some times by turns with another, and returns the least CPU time of each:
// whatever else the machine does, and the collector of garbage, only add to it.
func cost(t *testing.T, one, other string) (once, twice time.Duration) {
	t.Helper()
	const least, most, bound = 3, 30, 2.5
	once, twice = readWhole(t, one), readWhole(t, other)
	for runs := 1; runs < least || runs < most && float64(twice) > bound*float64(once); runs++ {
		once, twice = min(once, readWhole(t, one)), min(twice, readWhole(t, other))
	}
	return once, twice
}

// written is a directory with what a case writes for n.
func (c worstCase) written(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.yaml"), []byte(c.text(n)), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTwiceTheInputCostsTwiceTheWork doubles worst cases of every kind: with work that is near
// linear, that costs at most 2.5 times the CPU time. A quadratic step costs four times.
func TestTwiceTheInputCostsTwiceTheWork(t *testing.T) {
	race.SkipSequential(t)
	cases := worstCases()
	kinds := slices.Sorted(maps.Keys(manifest.InForce()))
	for kind := range cases {
		if !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind) // read, and not in force
		}
	}
	for _, kind := range kinds {
		if kind == mesh.KindMeshConfig || kind == mesh.KindMeshNetworks || manifest.NewSpec(kind) == nil {
			continue // of no tenant
		}
		if len(cases[kind]) == 0 {
			t.Errorf("%s: there is no worst case", kind)
		}
		for _, c := range cases[kind] {
			t.Run(string(kind)+"_"+c.name, func(t *testing.T) {
				n := c.n
				dir := c.written(t, n)
				if testing.Short() { // it says only that all of it can be read
					readWhole(t, dir)
					return
				}
				defer debug.SetGCPercent(debug.SetGCPercent(-1))
				// Below some tens of milliseconds a page fault counts as much as a step that is quadratic.
				for n < 64*c.n && readWhole(t, dir) < 40*time.Millisecond {
					n *= 2
					dir = c.written(t, n)
				}
				once, twice := cost(t, dir, c.written(t, 2*n))
				if ratio := float64(twice) / float64(once); ratio > 2.5 {
					t.Errorf("%d things cost %s of CPU time, and twice as many %s: %.1f times", n, once, twice, ratio)
				}
			})
		}
	}
}
