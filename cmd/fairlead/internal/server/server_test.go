package server

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/files"
)

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a"), "sub/b.yaml": ""})
	for name, c := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"no_dir":       {func(c *Config) { c.Roots = nil }, "name a directory of manifests with --config-dir"},
		"file_for_dir": {func(c *Config) { c.Roots[0].Path += "/a.yaml" }, "is not a directory: name the directory that the file is in"},
		"overlap":      {func(c *Config) { c.Roots = append(c.Roots, files.Root{Path: dir + "/sub"}) }, "overlaps with"},
		"twice":        {func(c *Config) { c.Roots = append(c.Roots, files.Root{Path: dir + "/"}) }, "overlaps with"},
		"no_state":     {func(c *Config) { c.StateDir = "" }, "--state-dir is empty"},
		"address":      {func(c *Config) { c.XDSAddress = "15012" }, `--xds-address "15012": write HOST:PORT`},
		"port":         {func(c *Config) { c.HTTPAddress = "127.0.0.1:99999" }, `--http-address "127.0.0.1:99999": write HOST:PORT`},
		"advertise":    {func(c *Config) { c.Advertise = []string{"a:1", "b"} }, `--advertise "b": write HOST:PORT`},
		"negative":     {func(c *Config) { c.SourceWait = -time.Second }, "--source-wait -1s: it cannot be negative"},
		"debounce":     {func(c *Config) { c.DebounceAfter, c.DebounceMax = time.Minute, time.Second }, "--debounce-after 1m0s is longer than --debounce-max 1s"},
		"share":        {func(c *Config) { c.RemovalShare = 30 }, "--removal-share 30: it is a share, from 0 to 1"},
		"window":       {func(c *Config) { c.RemovalWindow = -1 }, "--removal-window -1ns: it cannot be negative"},
		"share_nan":    {func(c *Config) { c.RemovalShare = math.NaN() }, "--removal-share NaN: it is a share, from 0 to 1"},
		"slow":         {func(c *Config) { c.SlowProxyTimeout = 1 }, "--slow-proxy-timeout 1ns: proxies that do read would be cut off: write 1s or more"},
		"age":          {func(c *Config) { c.MaxConnectionAge = time.Millisecond }, "--max-connection-age 1ms: every request would need a new connection: write 1s or more"},
		"negative age": {func(c *Config) { c.MaxConnectionAge = -time.Second }, "--max-connection-age -1s: it cannot be negative"},
		"streams":      {func(c *Config) { c.MaxStreams = -1 }, "--max-streams -1: it cannot be negative"},
		"vhosts":       {func(c *Config) { c.VirtualHosts = "on" }, `--virtual-hosts "on": write auto or off`},
		"mesh_dir":     {func(c *Config) { c.MeshConfigFile = dir }, "is a directory: name the file"},
		"two_dirs":     {func(c *Config) { c.MeshConfigFile, c.MeshNetworksFile = dir, dir }, fmt.Sprintf("--mesh-config %q is a directory: name the file\n--mesh-networks %q is", dir, dir)},
		"mesh_missing": {func(c *Config) { c.MeshConfigFile = dir + "/mesh.yaml" }, "(--mesh-config), of which no good version is known"},
		"plain_open":   {func(c *Config) { c.PlaintextAddress = "0.0.0.0:0" }, `--xds-plaintext-address "0.0.0.0:0": only a loopback address`},
		"plain_name":   {func(c *Config) { c.PlaintextAddress = "localhost:0" }, `--xds-plaintext-address "localhost:0": only a loopback address`},
		"plain_there":  {func(c *Config) { c.PlaintextAddress = taken(t) }, "listening in plaintext (--xds-plaintext-address)"},
		"not_here_xds": {func(c *Config) { c.XDSAddress = "203.0.113.1:15012" }, "listening for hosts (--xds-address)"},
		"not_here":     {func(c *Config) { c.HTTPAddress = "203.0.113.1:15014" }, "203.0.113.1:15014"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, dir)
			c.change(&cfg)
			s, err := New(t.Context(), cfg)
			if err == nil {
				t.Fatalf("it was taken: %v", s.Close())
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error: %v\nwant: %s", err, c.want)
			}
			expectNothing(t, cfg)
		})
	}
}

// taken is a loopback address that somebody listens at.
func taken(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// expectNothing: a flag is wrong, and its correction is not a mesh with an
// authority of before.
func expectNothing(t *testing.T, cfg Config) {
	t.Helper()
	for _, dir := range []string{cfg.StateDir, cfg.RunDir} {
		list, err := os.ReadDir(dir)
		if err != nil && dir != "" || len(list) > 0 {
			t.Errorf("%q has %v: %v", dir, list, err)
		}
	}
}

// TestSources: each directory stands for itself, by a name that every command
// takes.
func TestSources(t *testing.T) {
	t.Parallel()
	one := treeOf(t, map[string]string{"a.yaml": rule("default", "a") + rule("shop", "both")})
	two := treeOf(t, map[string]string{"b.yaml": rule("shop", "both") + rule("other", "x")})
	lost := filepath.Join(t.TempDir(), "lost")
	cfg := config(t, one, two, lost)
	cfg.Roots[1].Namespaces = []string{"shop"}
	cfg.MeshConfigFile = filepath.Join(one, "mesh.yaml") // inside, where it is no manifest
	put(t, cfg.MeshConfigFile, "rootNamespace: house\n")
	r := start(t, cfg)
	second, third := "files:"+two, rootName(2, lost)
	r.eventually(func() error {
		s := r.sources()
		if len(s.NotReady) != 1 || !strings.Contains(s.NotReady[0], "source "+third+" has not delivered: "+lost) {
			return fmt.Errorf("not ready: %q", s.NotReady)
		}
		return errors.Join(
			s.fault(second, "b.yaml:1:1: error [FL0301]", "DestinationRule shop/both", filepath.Join(one, "a.yaml")+":6", filepath.Join(two, "b.yaml")+":1"),
			s.fault(second, "b.yaml:", "[FL0107]", "other"),
			s.fault(third, lost, "unreadable"),
		)
	})
	s := r.sources()
	var names []string
	for _, st := range s.Files {
		names = append(names, st.Source)
	}
	if want := []string{"mesh-config", "files", second, third}; !slices.Equal(names, want) {
		t.Errorf("sources %q, want %q", names, want)
	}
	if len(s.Files[1].Faults) != 0 {
		t.Errorf("faults of the first directory: %v", s.Files[1].Faults)
	}
	if ns := r.registry.Snapshot().MeshConfig.Spec.GetRootNamespace(); ns != "house" {
		t.Errorf("root namespace %q", ns)
	}
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	available := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "fairlead_source_available" {
			continue
		}
		for _, m := range f.GetMetric() {
			available[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	if len(available) != 4 || available[second] != 1 || available[third] != 0 {
		t.Errorf("metrics: %v", available)
	}
	put(t, filepath.Join(lost, "c.yaml"), rule("default", "c"))
	r.eventually(func() error { return errors.Join(asErrors(r.NotReady())...) })
}

func asErrors(list []string) []error {
	var errs []error
	for _, s := range list {
		errs = append(errs, errors.New(s))
	}
	return errs
}

// TestRelease: what one directory lost is held for that one alone.
func TestRelease(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 6 {
		many.WriteString(rule("default", fmt.Sprintf("many%d", i)))
	}
	one := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	two := treeOf(t, map[string]string{"b.yaml": many.String()})
	r := start(t, config(t, one, two))
	count := func(n int) func() error {
		return func() error {
			if s := r.registry.Snapshot(); s == nil || len(s.DestinationRules) != n {
				return fmt.Errorf("not %d objects: %+v", n, s)
			}
			return nil
		}
	}
	r.eventually(count(7))
	put(t, filepath.Join(two, "b.yaml"), "# nothing\n")
	put(t, filepath.Join(one, "a.yaml"), "# nothing\n")
	r.eventually(count(6))
	name := "files:" + two
	r.eventually(func() error {
		for _, src := range r.sources().Registry.Sources {
			if src.HeldCount != map[string]int{name: 6}[src.Name] {
				return fmt.Errorf("%s holds %d", src.Name, src.HeldCount)
			}
		}
		return nil
	})
	release := func(source string) error {
		return r.client.Do(t.Context(), http.MethodPost, "/v1/release/"+url.PathEscape(source), struct{}{}, nil)
	}
	if err := release("nobody"); err == nil || !strings.Contains(err.Error(), "the sources are files, "+name+", ") {
		t.Errorf("error: %v", err)
	}
	if err := release(name); err != nil {
		t.Fatal(err)
	}
	r.eventually(count(0))
}

// TestFilesDeletedOneByOne: a directory that loses its files one by one is held like one that
// loses all at once.
func TestFilesDeletedOneByOne(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	manifests := map[string]string{}
	for i := range 10 {
		manifests[fmt.Sprintf("%d.yaml", i)] = rule("default", fmt.Sprintf("r%d", i))
	}
	dir := treeOf(t, manifests)
	r := start(t, config(t, dir))
	status := func(objects, held int) {
		t.Helper()
		r.eventually(func() error {
			src := r.sources().Registry.Sources[0]
			if src.Objects != objects || src.HeldCount != held {
				return fmt.Errorf("%d objects of %s, %d held; want %d and %d", src.Objects, src.Name, src.HeldCount, objects, held)
			}
			return nil
		})
	}
	status(10, 0)
	for i := range 7 { // each is a reading of its own
		if err := os.Remove(filepath.Join(dir, fmt.Sprintf("%d.yaml", i))); err != nil {
			t.Fatal(err)
		}
		status(10-min(i+1, 4), max(0, i-3))
	}
	for i := 7; i < 10; i++ {
		if err := os.Remove(filepath.Join(dir, fmt.Sprintf("%d.yaml", i))); err != nil {
			t.Fatal(err)
		}
	}
	status(6, 6)
	if held := r.sources().Registry.Sources[0].Held; !held[0].NeedsPerson() {
		t.Errorf("held: %+v", held)
	}
}

func TestRootName(t *testing.T) {
	t.Parallel()
	long := "/" + strings.Repeat("a/", 200) + strings.Repeat("é", 120) + "x\xff"
	for i, c := range []struct{ path, want string }{{"/a", "files"}, {"/a", "files:/a"}} {
		if got := rootName(i, c.path); got != c.want {
			t.Errorf("%d: %q", i, got)
		}
	}
	if got := rootName(1, long); len(got) > 100 || got == rootName(1, long[1:]) || strings.ToValidUTF8(got, "") != got {
		t.Errorf("%q is too long, ambiguous or no text", got)
	}
}

// TestBrokenMeshConfig: broken settings never give way to the defaults.
func TestBrokenMeshConfig(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	cfg := config(t, dir)
	cfg.MeshConfigFile = filepath.Join(t.TempDir(), "mesh.yaml")
	put(t, cfg.MeshConfigFile, "rootNamespce: house\n")
	s, err := New(t.Context(), cfg)
	if err == nil {
		t.Fatalf("it started: %v", s.Close())
	}
	for _, want := range []string{"--mesh-config", "mesh.yaml:1:1", "rootNamespce", "rootNamespace"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error does not say %q: %v", want, err)
		}
	}
	inForce := func(r *running, namespace string) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.MeshConfig.Spec.GetRootNamespace() != namespace || len(s.DestinationRules) != 1 {
				return fmt.Errorf("in force: %+v", s)
			}
			if s.Incomplete { // what the server itself read at its start is kept by the source
				return fmt.Errorf("sources have not delivered: %q", s.Missing)
			}
			return nil
		})
	}
	put(t, cfg.MeshConfigFile, "rootNamespace: house\ntrustDomain: house.example\n")
	r := start(t, cfg)
	inForce(r, "house")
	r.stop()
	for _, broken := range []string{"rootNamespce: other\n", "", "]"} {
		put(t, cfg.MeshConfigFile, broken)
		r = start(t, cfg)
		inForce(r, "house")
		r.eventually(func() error {
			s := r.sources()
			return s.fault("mesh-config", "mesh.yaml:1:1", "error")
		})
		if td := r.authority.TrustDomain().Name(); td != "house.example" {
			t.Errorf("trust domain %q", td)
		}
		r.stop()
	}
	if err := os.Remove(cfg.MeshConfigFile); err != nil {
		t.Fatal(err)
	}
	r = start(t, cfg)
	inForce(r, "house")
	put(t, cfg.MeshConfigFile, "rootNamespace: new\ntrustDomain: house.example\n")
	inForce(r, "new")
}

// TestChartsMeshConfig: a server starts with a file that has fields without an effect and fields
// that are not in force, reports these, and after an edit, or a restart, a field that is wrong
// has its last good value.
func TestChartsMeshConfig(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	cfg := config(t, dir)
	cfg.MeshConfigFile = filepath.Join(t.TempDir(), "mesh.yaml")
	const chart = "inboundClusterStatName: a\ndefaultConfig: {discoveryAddress: \"istiod.istio-system.svc:15012\", proxyMetadata: {A: b}}\ndefaultProviders: {metrics: [prometheus]}\n"
	put(t, cfg.MeshConfigFile, chart+"connectTimeout: 3s\n")
	r := start(t, cfg)
	inForce := func(r *running, namespace string) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.MeshConfig.Spec.GetRootNamespace() != namespace {
				return errors.New("not published")
			}
			if timeout := s.MeshConfig.Spec.GetConnectTimeout().AsDuration(); timeout != 3*time.Second {
				t.Errorf("connectTimeout %s", timeout)
			}
			src := r.sources()
			return src.fault("mesh-config", "mesh.yaml:1:25", "inboundClusterStatName", "error", "clusters have Envoy's names")
		})
	}
	inForce(r, "istio-system")
	put(t, cfg.MeshConfigFile, chart+"connectTimeout: 3\nrootNamespace: house\n")
	inForce(r, "house")
	r.stop()
	r = start(t, cfg)
	inForce(r, "house")
	src := r.sources()
	if err := src.fault("mesh-config", "mesh.yaml:4:17", "connectTimeout", "error"); err != nil {
		t.Error(err)
	}
}

// TestTrustDomainStays: an authority has one trust domain.
func TestTrustDomainStays(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": rule("default", "a")})
	cfg := config(t, dir)
	cfg.MeshConfigFile = filepath.Join(t.TempDir(), "mesh.yaml")
	put(t, cfg.MeshConfigFile, "trustDomain: one.example\n")
	r := start(t, cfg)
	settings := func(r *running, namespace string, fault bool) {
		t.Helper()
		r.eventually(func() error {
			s := r.registry.Snapshot()
			if s == nil || s.MeshConfig.Spec.GetRootNamespace() != namespace {
				return errors.New("not published")
			}
			if td := s.MeshConfig.Spec.GetTrustDomain(); td != "one.example" {
				t.Errorf("trust domain %q", td)
			}
			src := r.sources()
			if err := src.fault("mesh-config", "mesh.yaml:1:1", "trustDomain", `"two.example" is not in force`, `"one.example"`); (err == nil) != fault {
				return fmt.Errorf("fault: %w", err)
			}
			return nil
		})
	}
	settings(r, "istio-system", false)
	put(t, cfg.MeshConfigFile, "trustDomain: two.example\nrootNamespace: house\n")
	settings(r, "house", true)
	r.stop()

	r = start(t, cfg) // the same after a restart
	settings(r, "house", true)
	put(t, cfg.MeshConfigFile, "trustDomain: one.example\nrootNamespace: home\n")
	settings(r, "home", false)
	r.stop()

	cfg.MeshConfigFile = ""
	s, err := New(t.Context(), cfg)
	if err == nil {
		t.Fatalf("it started: %v", s.Close())
	}
	if !strings.Contains(err.Error(), `"one.example"`) || !strings.Contains(err.Error(), "name the mesh configuration") {
		t.Errorf("error: %v", err)
	}
}

// TestWhyMissing: a source with which nothing is wrong is on its way.
func TestWhyMissing(t *testing.T) {
	t.Parallel()
	s := &Server{started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	if got, want := s.whyMissing("files"), "it is being read since 2026-01-02T03:04:05Z"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
