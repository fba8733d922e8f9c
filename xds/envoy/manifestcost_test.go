package envoy_test

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// costScene is a manifest whose cost for an Envoy is measured.
type costScene struct {
	name, manifest string
	// sidecar means a sidecar of the manifest's namespace, instead of a gateway of another one.
	sidecar bool
	// only is the release that takes it; empty for all.
	only string
}

// BenchmarkManifests measures what manifests cost an Envoy. With BENCH_ENVOY it writes the page of that name.
func BenchmarkManifests(b *testing.B) {
	page := os.Getenv("BENCH_ENVOY")
	if page == "" {
		b.Skip("BENCH_ENVOY names the page to write")
	}
	began := time.Now()
	var rows strings.Builder
	versions := envoytest.Ends()
	none := map[string]cost{}
	for _, version := range versions {
		none[version] = costOf(b, version, costScene{manifest: costRoutes("s.shop.mesh", "{"+costTo+"}")})
	}
	for _, s := range costScenes() {
		size := float64(len(s.manifest)) / 1e6
		_, _ = fmt.Fprintf(&rows, "| %s | %.1f |", s.name, size*1000)
		for _, version := range versions {
			if s.only != "" && s.only != version {
				rows.WriteString(" refused | | | |")
				continue
			}
			c := costOf(b, version, s)
			mb, seconds := max(0, c.mb-none[version].mb), max(0, c.seconds-none[version].seconds)
			_, _ = fmt.Fprintf(&rows, " %.0f | %.2f | %.0f | %.1f |", mb, seconds, mb/size, seconds/size)
		}
		rows.WriteString("\n")
	}
	text := fmt.Sprintf(costPage, began.Format(time.DateOnly), runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), versions[0], versions[1],
		none[versions[0]].mb, none[versions[1]].mb, costHeader(versions), rows.String())
	fatalIf(b, os.WriteFile(page, []byte(text), 0o600), "writing the page")
}

const costPage = `# What manifests cost an Envoy

Written by ` + "`make bench-envoy`" + `.

%s, %s/%s, %d CPUs. Envoy %s and %s, with two workers. Memory is what is resident once Envoy is ready, CPU is that of the process until then; both are what is more than with one service and one route
(%.0f and %.0f MB). The proxy is a gateway of another namespace, or in rows that begin with "sidecar" a sidecar of the manifest's namespace. All is one manifest of a source that is bound to nothing.

"A MB" is a MB of manifest: over 50 MB or one second, a source that is bound to namespaces has a limit ([limits](../docs/reference-limits.md#size-of-objects), [decision 104](../docs/adr/0104-hash-tables-of-tenants.md)). "Refused" means that this release of Envoy refuses the configuration.

%s%s
`

func costHeader(versions []string) string {
	var head, line strings.Builder
	for _, v := range versions {
		_, _ = fmt.Fprintf(&head, " %s: MB | CPU s | MB a MB | s a MB |", v)
		line.WriteString("---|---|---|---|")
	}
	return "| Manifest | kB |" + head.String() + "\n|---|---|" + line.String() + "\n"
}

// cost is what a process has taken.
type cost struct{ mb, seconds float64 }

func costOf(tb testing.TB, version string, sc costScene) cost {
	tb.Helper()
	port := strconv.Itoa(envoytest.FreePorts(tb, 1)[0])
	file, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte(strings.ReplaceAll(tenantGateways, "PORT", port)+sc.manifest))
	refuse(tb, faults)
	f := &mesh.Fragment{Source: "test"}
	for _, o := range file.Objects {
		if piece := o.Fragment(); piece != nil {
			f.Append(piece)
		}
	}
	p := edgeProxy()
	if sc.sidecar {
		p = proxyFile{Namespace: "shop", ServiceAccount: "s", IP: serverIP}
	}
	s := mesh.Merge(mesh.Input{Fallback: manifest.DefaultMeshConfig(), Fragments: []*mesh.Fragment{f.Sorted()}})
	var node map[string]any
	fatalIf(tb, json.Unmarshal(bootstrap(tb, buildAll(view.Build(s, p.proxy()))), &node), "reading own JSON")
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	node["layeredRuntime"] = map[string]any{"layers": []any{map[string]any{"name": "static", "staticLayer": map[string]any{"re2.max_program_size.error_level": 32768}}}}
	body, err := json.Marshal(node)
	fatalIf(tb, err, "marshaling bootstrap")
	e := envoytest.Start(tb, envoytest.Config{Bootstrap: body, Version: version})
	defer e.Kill()
	return spent(tb, e.PID())
}

// spent is what a process has taken.
func spent(tb testing.TB, pid int) cost {
	tb.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	fatalIf(tb, err, "reading the memory of Envoy")
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	var kib, user, system float64
	_, err = fmt.Sscan(rest, &kib)
	fatalIf(tb, err, "reading the memory of Envoy")
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fatalIf(tb, err, "reading the time of Envoy")
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // from the state on, the third
	_, err = fmt.Sscan(fields[11]+" "+fields[12], &user, &system)
	fatalIf(tb, err, "reading the time of Envoy")
	const ticks = 100 // a second, on every Linux
	return cost{mb: kib / 1024, seconds: (user + system) / ticks}
}
