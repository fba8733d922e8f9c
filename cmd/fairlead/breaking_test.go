package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
)

// The objects of a mesh of two services, of a gateway, and of a service of which nothing is there.
const (
	meshHead = "apiVersion: networking.istio.io/v1\n"
	shopWeb  = meshHead + "kind: WorkloadEntry\nmetadata: {name: web, namespace: shop, labels: {app: web}}\nspec: {address: 10.0.0.1, serviceAccount: web}\n" +
		"---\n" + meshHead + "kind: ServiceEntry\nmetadata: {name: web, namespace: shop}\nspec: {hosts: [web.mesh], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: web}}}\n"
	shopAPI = meshHead + "kind: WorkloadEntry\nmetadata: {name: api, namespace: shop, labels: {app: api}}\nspec: {address: 10.0.0.2, serviceAccount: api}\n" +
		"---\n" + meshHead + "kind: ServiceEntry\nmetadata: {name: api, namespace: shop}\nspec: {hosts: [api.mesh], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: api}}}\n"
	shopNone  = meshHead + "kind: ServiceEntry\nmetadata: {name: none, namespace: shop}\nspec: {hosts: [none.mesh], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: none}}}\n"
	shopGroup = meshHead + "kind: WorkloadGroup\nmetadata: {name: none, namespace: shop}\nspec: {metadata: {labels: {app: none}}, template: {serviceAccount: none}}\n"
	shopEdge  = meshHead + "kind: WorkloadEntry\nmetadata: {name: edge, namespace: shop, labels: {edge: a}}\nspec: {address: 10.0.0.3, serviceAccount: edge}\n" +
		"---\n" + meshHead + "kind: Gateway\nmetadata: {name: edge, namespace: shop}\nspec: {selector: {edge: a}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*.example.com']}]}\n"
)

func shopRoute(name, spec string) string {
	return meshHead + "kind: VirtualService\nmetadata: {name: " + name + ", namespace: shop}\nspec: " + spec + "\n"
}

func routeOfWeb(destinations string) string {
	return shopRoute("web", "{hosts: [web.mesh], http: [{route: ["+destinations+"]}]}")
}

// TestApplyRefusesWhatBreaks: a change is refused that newly makes requests of a workload fail, and no other.
func TestApplyRefusesWhatBreaks(t *testing.T) {
	t.Parallel()
	type file map[string]string
	valid := file{"web.yaml": shopWeb, "api.yaml": shopAPI, "route.yaml": routeOfWeb("{destination: {host: api.mesh}}")}
	toNone := routeOfWeb("{destination: {host: api.mesh}, weight: 90}, {destination: {host: none.mesh}, weight: 10}")
	for name, c := range map[string]struct {
		have, apply file
		want        string // empty if it is written
	}{
		"well":                 {valid, file{"route.yaml": routeOfWeb("{destination: {host: web.mesh}}")}, ""},
		"empty_service":        {valid, file{"none.yaml": shopNone}, ""}, // without a route
		"empty_service_routed": {valid, file{"none.yaml": shopNone, "route.yaml": toNone}, `route.yaml:1:1: breaking no-endpoints VirtualService shop/web: sends requests to the host "none.mesh", which has no endpoint: no workload of namespace "shop" has the labels app=none, which it selects`},
		"weight_0":             {valid, file{"none.yaml": shopNone, "route.yaml": routeOfWeb("{destination: {host: api.mesh}, weight: 100}, {destination: {host: none.mesh}, weight: 0}")}, ""},
		"group":                {valid, file{"none.yaml": shopNone + "---\n" + shopGroup, "route.yaml": toNone}, "route.yaml:1:1: breaking no-endpoints VirtualService shop/web"}, // which makes no workloads
		"selector_changed":     {valid, file{"api.yaml": strings.Replace(shopAPI, "workloadSelector: {labels: {app: api}}", "workloadSelector: {labels: {app: apis}}", 1)}, `(did you mean "app=api"?)`},
		"workload_relabelled":  {valid, file{"api.yaml": strings.Replace(shopAPI, "labels: {app: api}}\nspec: {address", "labels: {app: other}}\nspec: {address", 1)}, "route.yaml:1:1: breaking no-endpoints VirtualService shop/web"},
		"port_without_a_service": {valid, file{"web.yaml": strings.Replace(shopWeb, "ports: [{number: 80, name: http, protocol: HTTP}]",
			"ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: more, protocol: HTTP}]", 1)}, `breaking no-destination VirtualService shop/web: sends requests to port 81 of the host "api.mesh", which has no such port; it has 80`},
		"delegate": {file{"web.yaml": shopWeb, "api.yaml": shopAPI, "none.yaml": shopNone, "route.yaml": shopRoute("web", "{hosts: [web.mesh], http: [{delegate: {name: part, namespace: shop}}]}") +
			"---\n" + shopRoute("part", "{http: [{route: [{destination: {host: api.mesh}}]}]}")}, file{"route.yaml": shopRoute("web", "{hosts: [web.mesh], http: [{delegate: {name: part, namespace: shop}}]}") +
			"---\n" + shopRoute("part", "{http: [{route: [{destination: {host: none.mesh}}]}]}")}, "route.yaml:6:1: breaking no-endpoints VirtualService shop/part"},
		"gateway_route": {file{"web.yaml": shopWeb, "none.yaml": shopNone, "edge.yaml": shopEdge}, file{"route.yaml": shopRoute("web", "{hosts: [web.example.com], gateways: [edge], http: [{route: [{destination: {host: none.mesh}}]}]}")}, "(at 1 workload)"},
		"server_left_out": {
			file{"edge.yaml": shopEdge},
			file{"more.yaml": meshHead + "kind: Gateway\nmetadata: {name: more, namespace: shop}\nspec: {selector: {edge: a}, servers: [{port: {number: 80, name: tcp, protocol: TCP}, hosts: ['*']}]}\n"},
			`more.yaml:1:1: breaking gateway-server Gateway shop/more: the server "tcp" on port 80 is left out`,
		},
		"too_much_included": {
			valid,
			file{
				"route.yaml": shopRoute("web", "{hosts: [web.mesh], http: [{match: ["+repeated(400, func(i int) string { return fmt.Sprintf("{uri: {prefix: /a%d/}}, ", i) })+"], delegate: {name: part}}, {route: [{destination: {host: api.mesh}}]}]}"),
				"part.yaml": shopRoute("part", "{http: ["+repeated(251, func(i int) string {
					return fmt.Sprintf("{match: [{uri: {exact: /a%d/}}], route: [{destination: {host: api.mesh}}]}, ", i)
				})+"]}"),
			},
			"route.yaml:1:1: breaking delegate-limit VirtualService shop/web: does not include VirtualService shop/part (",
		},
		"failed_before":           {file{"web.yaml": shopWeb, "none.yaml": shopNone, "api.yaml": shopAPI, "route.yaml": toNone}, file{"route.yaml": strings.Replace(toNone, "weight: 10", "weight: 10, headers: {request: {set: {a: b}}}", 1)}, ""},
		"only_the_reason_changed": {file{"web.yaml": shopWeb, "api.yaml": shopAPI, "route.yaml": toNone}, file{"none.yaml": shopNone}, ""},
		// A workload that is added had no requests that worked; a service may be prepared before its workloads.
		"first_client":        {file{"none.yaml": shopNone, "route.yaml": shopRoute("none", "{hosts: [none.mesh], http: [{route: [{destination: {host: none.mesh}}]}]}")}, file{"web.yaml": shopWeb}, ""},
		"client_and_route":    {file{"none.yaml": shopNone}, file{"web.yaml": shopWeb, "route.yaml": shopRoute("none", "{hosts: [none.mesh], http: [{route: [{destination: {host: none.mesh}}]}]}")}, ""},
		"new_route_to_nobody": {file{"web.yaml": shopWeb, "none.yaml": shopNone}, file{"route.yaml": shopRoute("none", "{hosts: [none.mesh], http: [{route: [{destination: {host: none.mesh}}]}]}")}, "breaking no-endpoints VirtualService shop/none"},
		"aborted":             {file{"web.yaml": shopWeb, "none.yaml": shopNone}, file{"route.yaml": shopRoute("web", "{hosts: [web.mesh], http: [{fault: {abort: {httpStatus: 410, percentage: {value: 100}}}, route: [{destination: {host: none.mesh}}]}]}")}, ""},
		"port_80_of_another": {
			file{"web.yaml": strings.Replace(shopWeb, "{number: 80, name: http, protocol: HTTP}", "{number: 8080, name: http, protocol: HTTP}, {number: 8081, name: more, protocol: HTTP}", 1), "route.yaml": routeOfWeb("{destination: {host: web.mesh}}")},
			file{"api.yaml": shopAPI},
			"",
		},
		"no_workload": {file{"none.yaml": shopNone}, file{"route.yaml": shopRoute("web", "{hosts: [web.example], http: [{route: [{destination: {host: none.mesh}}]}]}")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, from := t.TempDir(), t.TempDir()
			write := func(to string, list file) {
				for name, content := range list {
					if err := os.WriteFile(filepath.Join(to, name), []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
			}
			write(dir, c.have)
			write(from, c.apply)
			written := func() bool {
				for name, content := range c.apply {
					if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.HasPrefix(string(got), content) {
						return false
					}
				}
				return true
			}
			args := []string{"apply", from, "--config-dir", dir, "--run-dir", t.TempDir()}
			code, out, errs := cli(t, args...)
			if c.want == "" {
				if code != 0 || !written() || strings.Contains(out, "breaking") {
					t.Errorf("%d, written: %v\n%s%s", code, written(), out, errs)
				}
				return
			}
			if code != 1 || !strings.Contains(out, c.want) || !strings.Contains(out, "--even-if-breaking") || !strings.Contains(out, "refused: nothing was written") || written() {
				t.Errorf("%d, written: %v\n%s%s\nwant %s", code, written(), out, errs, c.want)
			}
			if code, out, errs = cli(t, append(args, "--even-if-breaking")...); code != 0 || !strings.Contains(out, c.want) || !written() {
				t.Errorf("with --even-if-breaking: %d, written: %v\n%s%s", code, written(), out, errs)
			}
			if code, out, errs = cli(t, args...); code != 0 || strings.Contains(out, "breaking") {
				t.Errorf("again, when it is so already: %d\n%s%s", code, out, errs)
			}
		})
	}
}

// TestPushRefusesWhatBreaks: the same for keys of Consul, and for what a deletion breaks. Instances of the
// catalog are workloads.
func TestPushRefusesWhatBreaks(t *testing.T) {
	t.Parallel()
	a := consultest.Start(t, consultest.Options{})
	reg := &api.CatalogRegistration{
		Node: "n", Address: "10.0.0.1", Service: &api.AgentService{ID: "web1", Service: "web", Port: 80, Meta: map[string]string{"protocol": "http"}},
	}
	if _, err := a.Client().Catalog().Register(reg, nil); err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, a, "fairlead/breaking")
	entry, workload, _ := strings.Cut(shopAPI, "---\n")
	p.file("service.yaml", workload)
	p.file("workload.yaml", entry)
	p.file("route.yaml", shopRoute("web", "{hosts: [web.service.consul], http: [{route: [{destination: {host: api.mesh}}]}]}"))
	p.run(0, []string{"push"}, "pushed 3 keys")
	// Without the entry, the instance of the catalog is the only workload there is to send requests.
	p.remove("workload.yaml")
	p.run(0, []string{"push"}, "workload.yaml is not in", "the keys below fairlead/breaking/ are as the files")
	p.run(1, []string{"push", "--prune"}, "route.yaml:1:1: breaking no-endpoints VirtualService shop/web", "(at 1 workload)", "refused: nothing was written")
	if len(p.keys()) != 3 {
		t.Errorf("keys %v", p.keys())
	}
	p.run(0, []string{"push", "--prune", "--even-if-breaking"}, "workload.yaml: deleted")
	p.run(0, []string{"push", "--prune"}, "are as the files: 2 keys")
}

// TestApplyKnowsOtherDirectories: what is missing in one directory may be in another one of the mesh.
func TestApplyKnowsOtherDirectories(t *testing.T) {
	t.Parallel()
	entry, service, _ := strings.Cut(shopAPI, "---\n")
	teamService := strings.Replace(service, "namespace: shop", "namespace: team", 1)
	route := routeOfWeb("{destination: {host: api.mesh}}")
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "b.yaml"), []byte(entry), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		have string
		args []string
		code int
		want string
	}{
		"no_workload_here":         {service, nil, 0, "no workload is known here: whether requests fail was not checked; --other-config-dir names other directories of the mesh"},
		"no_workload_of_namespace": {shopWeb + "---\n" + teamService, nil, 0, "not checked: 1 destination of routes may have its service or workloads elsewhere; --other-config-dir"},
		"one_of_namespace":         {shopWeb + "---\n" + service, nil, 1, "breaking no-endpoints VirtualService shop/web"},
		"told_and_there":           {shopWeb + "---\n" + service, []string{"--other-config-dir", other}, 0, "VirtualService shop/web created"},
		"told_and_not_there":       {shopWeb + "---\n" + teamService, []string{"--other-config-dir", t.TempDir()}, 1, "breaking no-endpoints VirtualService shop/web"},
	} {
		dir, from := t.TempDir(), filepath.Join(t.TempDir(), "route.yaml")
		for path, text := range map[string]string{filepath.Join(dir, "a.yaml"): c.have, from: route} {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, out, errs := cli(t, append([]string{"apply", from, "--config-dir", dir, "--wait", "0"}, c.args...)...)
		if code != c.code || !strings.Contains(out, c.want) || c.code == 0 && strings.Contains(out, "breaking") {
			t.Errorf("%s: %d\n%s%s", name, code, out, errs)
		}
	}
}
