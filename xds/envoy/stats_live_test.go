package envoy_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/internal/envoytest"
	agent "github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// statistics are those of an agent's Envoy: which there are, when, and under which names.
type statistics struct {
	all      bool // without the choice of an agent
	dynamic  bool // with the agent's sockets, at which nobody is
	deferred bool // those of requests and connections from the first one on
	include  []string
}

// startWith runs an Envoy with the resources of a proxy and an agent's statistics.
func (s statistics) startWith(t *testing.T, version, manifests string, who proxyFile) *envoytest.Envoy {
	t.Helper()
	b, err := agent.Build(agent.Config{
		Node:      agent.Node{Type: agent.TypeSidecar, Address: netip.MustParseAddr(who.IP), Name: "web", Namespace: "shop", Domain: "cluster.local"},
		XDSSocket: "/xds.sock", SDSSocket: "/sds.sock", ALSSocket: "/als.sock", AdminSocket: "/admin.sock", Token: "TOKEN", IncludeStats: s.include,
	})
	fatalIf(t, err, "building a bootstrap")
	config := b.GetStatsConfig()
	if s.all {
		config.StatsMatcher = nil
	}
	resources := buildAll(view.Build(snapshotOf(t, manifests, ""), who.proxy()))
	file := &bootstrapv3.Bootstrap{}
	fatalIf(t, protojson.Unmarshal(bootstrap(t, resources), file), "reading own JSON")
	file.StatsConfig = config
	if s.dynamic {
		file.DynamicResources = b.GetDynamicResources()
		own := b.GetStaticResources()
		file.StaticResources.Secrets = own.GetSecrets()
		file.StaticResources.Clusters = append(own.GetClusters(), file.GetStaticResources().GetClusters()[1:]...)
	}
	if s.deferred {
		file.DeferredStatOptions = b.GetDeferredStatOptions()
	}
	body, err := protojson.Marshal(file)
	fatalIf(t, err, "marshaling bootstrap")
	var node map[string]any
	fatalIf(t, json.Unmarshal(body, &node), "reading own JSON")
	withoutSDS(node)
	withSecrets(t, node, newAuthority(t), who)
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	body, err = json.Marshal(node)
	fatalIf(t, err, "marshaling bootstrap")
	return envoytest.Start(t, envoytest.Config{Bootstrap: body, Version: version})
}

// names are the statistics that an Envoy has.
func names(t *testing.T, e *envoytest.Envoy) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for line := range strings.Lines(e.Admin(t, "/stats")) {
		if name, _, ok := strings.Cut(line, ": "); ok {
			out[name] = true
		}
	}
	return out
}

// shopIn is a service with a port for HTTP and one for TCP, and a proxy that calls it and
// has an application of its own.
func shopIn(t *testing.T, domain, address string, port int) (string, proxyFile) {
	t.Helper()
	socket := filepath.Join(envoytest.ShortDir(t), domain+".sock")
	return strings.NewReplacer("SOCKET", socket, "DOMAIN", domain, "ADDRESS", address, "PORT1", strconv.Itoa(port), "PORT2", strconv.Itoa(port+1)).Replace(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.DOMAIN]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: PORT1, name: http, protocol: HTTP}, {number: PORT2, name: tcp, protocol: TCP}]
  endpoints: [{address: 10.0.0.7, serviceAccount: orders}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec: {host: orders.DOMAIN, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 5}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  ingress:
  - {port: {number: PORT1, name: http, protocol: HTTP}, bind: ADDRESS, defaultEndpoint: "127.0.0.1:PORT1"}
  - {port: {number: PORT2, name: tcp, protocol: TCP}, bind: ADDRESS, defaultEndpoint: "127.0.0.1:PORT2"}
  egress:
  - {port: {number: 0, name: tcp, protocol: TCP}, bind: "unix://SOCKET", hosts: ["./*"]}
  - {bind: 127.0.0.99, hosts: ["./*"]}
`), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: address, Interception: "NONE"}
}

// metricNames are the names of Prometheus metrics that an Envoy has.
func metricNames(t *testing.T, e *envoytest.Envoy) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	for line := range strings.Lines(e.Admin(t, "/stats/prometheus")) {
		if name := regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*`).FindString(line); name != "" {
			out[name] = true
		}
	}
	return out
}

// TestMetricNamesAreThoseOfEveryHost: what differs from mesh to mesh (hosts, ports,
// addresses) is in labels, each once and whole.
func TestMetricNamesAreThoseOfEveryHost(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			port := envoytest.FreePorts(t, 1)[0]
			one, other := statistics{all: true}, statistics{all: true}
			file, who := shopIn(t, "shop.internal", "127.0.0.11", 18480)
			a := one.startWith(t, version, file, who)
			file, who = shopIn(t, "fifty.items.example", "127.0.0.12", port)
			b := other.startWith(t, version, file, who)
			namesA, namesB := metricNames(t, a), metricNames(t, b)
			for name := range namesA {
				if !namesB[name] {
					t.Errorf("only one of two meshes has a metric %s", name)
				}
			}
			for name := range namesB {
				if !namesA[name] {
					t.Errorf("only the other of two meshes has a metric %s", name)
				}
			}
			text := a.Admin(t, "/stats/prometheus")
			for _, label := range []string{
				`cluster_name="outbound|18480||orders.shop.internal"`, `cluster_name="inbound|18480||"`,
				`http_conn_manager_prefix="outbound_127.0.0.99_18480"`, `http_conn_manager_prefix="inbound_127.0.0.11_18480"`,
				`listener_address="127.0.0.11_18480"`, `tcp_prefix="outbound|18481||orders.shop.internal"`,
			} {
				if !strings.Contains(text, "{"+label+"}") {
					t.Errorf("no metric has the label %s", label)
				}
			}
			if twice := regexp.MustCompile(`(?m)^.*cluster_name.*cluster_name.*$`).FindString(text); twice != "" {
				t.Errorf("a cluster is named twice: %s", twice)
			}
		})
	}
}

// TestStatisticsOfOneMoreService: most services of a mesh are never called by most hosts.
// They cost next to nothing until they are.
func TestStatisticsOfOneMoreService(t *testing.T) {
	t.Parallel()
	const few, many, perService, bytesPerService = 20, 120, 8, 120
	servicesOf := func(n int) string {
		var out strings.Builder
		for i := range n {
			_, _ = fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: s%[1]d, namespace: shop}
spec:
  hosts: [s%[1]d.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 18490, name: http, protocol: HTTP}]
  endpoints: [{address: 10.1.0.%[1]d, serviceAccount: s}, {address: 10.2.0.%[1]d, serviceAccount: s}]
`, i+1)
		}
		return out.String()
	}
	who := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE"}
	count := func(n int) (int, int) {
		e := statistics{deferred: true}.startWith(t, "", servicesOf(n), who)
		defer e.Kill()
		return len(names(t, e)), len(e.Admin(t, agent.StatsPath+"?usedonly"))
	}
	n, size := count(few)
	moreN, moreSize := count(many)
	if each := float64(moreN-n) / (many - few); each > perService {
		t.Errorf("one more service has %.1f statistics, not at most %d", each, perService)
	}
	if each := float64(moreSize-size) / (many - few); each > bytesPerService {
		t.Errorf("one more service has %.0f bytes of metrics, not at most %d", each, bytesPerService)
	}
	t.Logf("%d services: %d statistics, %d bytes; %d services: %d, %d bytes", few, n, size, many, moreN, moreSize)
}

// TestNamedStatisticsExist: what our sources read and our pages name is among the statistics
// that an agent's Envoy has. Which words are statistics, an Envoy with all of them says.
func TestNamedStatisticsExist(t *testing.T) {
	t.Parallel()
	file, who := shopIn(t, "shop.internal", "127.0.0.13", envoytest.FreePorts(t, 1)[0])
	all, kept := map[string]bool{}, map[string]bool{}
	for _, dynamic := range []bool{false, true} { // waiting for its listeners, an Envoy lacks some of their statistics
		for to, s := range map[*map[string]bool]statistics{&all: {all: true, dynamic: dynamic}, &kept: {dynamic: dynamic}} {
			e := s.startWith(t, "", file, who)
			addEnds(*to, names(t, e))
			e.Kill()
		}
	}
	named := namedWords(t, all)
	for _, must := range []string{"downstream_cx_active", "update_rejected", "cluster_manager.cds.update_success", "downstream_global_cx_overflow"} {
		if len(named[must]) == 0 {
			t.Errorf("%s is named nowhere: the search is broken", must)
		}
	}
	for _, word := range slices.Sorted(maps.Keys(named)) {
		if !kept[word] {
			t.Errorf("an agent's Envoy has no statistic %s, which %s names: let it through in xds/bootstrap", word, strings.Join(named[word], ", "))
		}
	}
	more := names(t, statistics{include: []string{`circuit_breakers\.default\.rq_open$`}}.startWith(t, "", file, who))
	if !slices.ContainsFunc(slices.Collect(maps.Keys(more)), func(n string) bool { return strings.HasSuffix(n, ".rq_open") }) {
		t.Error("a pattern of the agent's flag adds nothing")
	}
}

// TestOpenConnectionsAreCounted: by their number the agent knows when a drain is over.
func TestOpenConnectionsAreCounted(t *testing.T) {
	t.Parallel()
	port := envoytest.FreePorts(t, 1)[0]
	file, who := shopIn(t, "shop.internal", "127.0.0.14", port)
	e := statistics{deferred: true}.startWith(t, "", file, who)
	var c net.Conn
	envoytest.Eventually(t, envoytest.Patience, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", at("127.0.0.14", port))
		return err
	})
	defer func() { _ = c.Close() }()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := e.Stat(t, fmt.Sprintf("listener.127.0.0.14_%d.downstream_cx_active", port)); n != 1 {
			return fmt.Errorf("%d open connections are counted", n)
		}
		return nil
	})
}

// addEnds adds the names, and what follows each dot and each ";." in them.
func addEnds(to, names map[string]bool) {
	for name := range names {
		for {
			to[name] = true
			_, rest, ok := strings.Cut(name, ".")
			if !ok {
				break
			}
			name = rest
		}
	}
}

// namedWords are the words in sources and pages that are statistics or ends of them, with the
// files. Words without an underscore and a dot are words of English.
func namedWords(t *testing.T, statistics map[string]bool) map[string][]string {
	t.Helper()
	word := regexp.MustCompile(`[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*`)
	out := map[string][]string{}
	root := envoytest.ModuleRoot(t)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && rel != "." || d.Name() == "testdata" || rel == filepath.Join("xds", "envoy")) {
			return filepath.SkipDir
		}
		if ext := filepath.Ext(path); d.IsDir() || ext != ".go" && ext != ".md" || rel == filepath.Join("xds", "bootstrap", "stats.go") || rel == "CHANGELOG.md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, at := range word.FindAllIndex(text, -1) {
			w := string(text[at[0]:at[1]])
			inPath := at[0] > 0 && text[at[0]-1] == '/' || at[1] < len(text) && text[at[1]] == '/'
			if !inPath && strings.Contains(w, "_") && statistics[w] && !slices.Contains(out[w], rel) {
				out[w] = append(out[w], rel)
			}
		}
		return nil
	})
	fatalIf(t, err, "reading the project")
	return out
}
