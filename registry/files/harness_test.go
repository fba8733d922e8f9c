package files

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	meshapi "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

func TestMain(m *testing.M) {
	// The tests here wait far more than they work.
	flag.Parse()
	if err := flag.Set("test.parallel", "24"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// fakeDecoder reads a line an object:
//
//	NAME VALUE     a VirtualService, NAME may be NS/NAME
//	NAME !         one that is broken
//	!              one whose name is unknown
//	!!             the text is not YAML
//	# anything     ignored
type fakeDecoder struct{ decodes atomic.Int64 }

func (d *fakeDecoder) Decode(opts manifest.Options, path string, content []byte) lastgood.Decoded {
	d.decodes.Add(1)
	var out lastgood.Decoded
	for i, line := range strings.Split(string(content), "\n") {
		words := strings.Fields(line)
		at := &mesh.Origin{Source: "files", Path: path, Line: i + 1, Column: 1}
		switch {
		case len(words) == 0 || words[0] == "#":
		case words[0] == "!!":
			return lastgood.Decoded{Unparsable: true, Faults: []manifest.Fault{faultAt(at, mesh.Key{}, "not YAML")}}
		case words[0] == "!":
			out.Objects = append(out.Objects, lastgood.Object{Origin: at})
			out.Faults = append(out.Faults, faultAt(at, mesh.Key{}, "no name"))
		default:
			addTo(&out, at, opts.Namespace, words)
		}
	}
	return out
}

func addTo(d *lastgood.Decoded, at *mesh.Origin, namespace string, words []string) {
	ns, name, ok := strings.Cut(words[0], "/")
	if !ok {
		ns, name = namespace, words[0]
	}
	key := mesh.Key{Kind: mesh.KindVirtualService, Namespace: ns, Name: name}
	value := strings.Join(words[1:], " ")
	o := lastgood.Object{Key: key, Origin: at, Hash: mesh.Hash(sha256.Sum256([]byte(value)))}
	if value == "!" {
		d.Faults = append(d.Faults, faultAt(at, key, "broken"))
	} else {
		vs := &mesh.VirtualService{
			Meta: mesh.Meta{Key: key, Hash: o.Hash, Origin: at},
			Spec: &networking.VirtualService{Hosts: []string{value}},
		}
		o.Fragment = &mesh.Fragment{VirtualServices: []*mesh.VirtualService{vs}}
	}
	d.Objects = append(d.Objects, o)
}

// DecodeMeshNetworks reads the real format.
func (d *fakeDecoder) DecodeMeshNetworks(path string, content []byte) (*mesh.Networks, []manifest.Fault) {
	return manifest.DecodeMeshNetworks(path, content)
}

func (d *fakeDecoder) ReadMeshConfig(path string, content []byte) (*manifest.MeshSettings, []manifest.Fault) {
	at := &mesh.Origin{Path: path, Line: 1, Column: 1}
	text := strings.TrimSpace(string(content))
	if text == "!!" {
		return nil, []manifest.Fault{faultAt(at, mesh.Key{Kind: mesh.KindMeshConfig}, "not YAML")}
	}
	return &manifest.MeshSettings{Config: &mesh.MeshConfig{
		Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindMeshConfig}, Origin: at, Hash: mesh.Hash(sha256.Sum256(content))},
		Spec: &meshapi.MeshConfig{TrustDomain: text},
	}}, nil
}

func faultAt(o *mesh.Origin, key mesh.Key, message string) manifest.Fault {
	return manifest.Fault{Origin: o, Key: key, Severity: manifest.Error, Message: message}
}

// objects is what a fragment holds, as "ns/name=value" lines; the namespace
// default is left out.
func objects(f *mesh.Fragment) []string {
	list := []string{}
	for _, vs := range f.VirtualServices {
		name := vs.Name
		if vs.Namespace != "default" {
			name = vs.Namespace + "/" + name
		}
		list = append(list, name+"="+vs.Spec.GetHosts()[0])
	}
	if f.MeshConfig != nil {
		list = append(list, "mesh="+f.MeshConfig.Spec.GetTrustDomain())
	}
	if f.MeshNetworks != nil {
		list = append(list, fmt.Sprint("networks=", slices.Sorted(maps.Keys(f.MeshNetworks.Spec.GetNetworks()))))
	}
	slices.Sort(list)
	return list
}

// running is a Source under test and what it has sent.
type running struct {
	*Source
	*sourcetest.Recorder
	t       *testing.T
	decoder *fakeDecoder
	logs    *sourcetest.Log
}

const patience = envoytest.Patience

// start runs a source until the test ends or Stop is called.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	r := &running{t: t, decoder: &fakeDecoder{}, logs: &sourcetest.Log{}}
	if cfg.Decoder == nil {
		cfg.Decoder = r.decoder
	}
	cfg.Logger = slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg)
	check(t, err)
	r.Source = s
	r.Recorder = sourcetest.Record(t, sourcetest.Recording{Source: s, Log: r.logs, Objects: objects, Patience: patience})
	return r
}

func (r *running) allSent() []*mesh.Fragment {
	list, _ := r.History()
	return list
}

// stays checks that for a while nothing new is sent.
func (r *running) stays(d time.Duration) {
	r.t.Helper()
	before := r.Last()
	deadline := time.After(d)
	for {
		_, news := r.History()
		select {
		case <-news:
			if now := r.Last(); now != before {
				r.t.Fatalf("a fragment was sent: %v, was %v", objects(now), objects(before))
			}
		case <-deadline:
			return
		}
	}
}

// awaitStatus waits until the status is as the function wants it.
func (r *running) awaitStatus(what string, ok func(*Status) bool) *Status {
	r.t.Helper()
	return sourcetest.AwaitStatus(r.Recorder, r.Status, what, ok)
}

// readAtOnce checks that the file, when it was last read, was not waited for.
func (r *running) readAtOnce(path string) {
	r.t.Helper()
	if !r.lastReadAtOnce(path) {
		r.t.Errorf("%s was waited for", path)
	}
}

// lastReadAtOnce reports whether the file, when it was last read, was not
// waited for. The log tells it, and not the clock: this machine may be busy.
func (r *running) lastReadAtOnce(path string) bool {
	last := ""
	for line := range strings.SplitSeq(r.logs.String(), "\n") {
		if strings.Contains(line, `msg="file was read"`) && strings.Contains(line, " path="+path+" ") {
			last = line
		}
	}
	return strings.HasSuffix(last, "at_once=true")
}

func (r *running) hasFault(text string) bool {
	return slices.ContainsFunc(r.Status().Faults, func(f manifest.Fault) bool { return strings.Contains(f.String(), text) })
}

// beat measures the longest that a writer of a test held still: on a busy
// machine, longer than it was told to, and then it may be accepted.
type beat struct {
	last  time.Time
	stall time.Duration
}

// now is called at each write.
func (b *beat) now() {
	now := time.Now()
	if !b.last.IsZero() {
		b.stall = max(b.stall, now.Sub(b.last))
	}
	b.last = now
}

// pause waits where the passing of time is what is tested.
func pause(d time.Duration) { <-time.After(d) }

// write writes files in place; content by path below dir.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(files[name]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// replace puts a file in place by rename.
func replace(t *testing.T, path, content string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	check(t, os.WriteFile(tmp, []byte(content), 0o600))
	check(t, os.Rename(tmp, path))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// treeOf writes files into a new directory.
func treeOf(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	return dir
}

func atDir(dir string) Config { return Config{Roots: []Root{{Path: dir}}} }

// onlyEvents reads a directory without ever scanning it again.
func onlyEvents(dir string) Config {
	return Config{Roots: []Root{{Path: dir}}, ScanInterval: time.Hour}
}

func numbered(n int, value string) (files map[string]string, want []string) {
	files = map[string]string{}
	for i := range n {
		name := fmt.Sprintf("o%04d", i)
		files[fmt.Sprintf("d%02d/%s.yaml", i%20, name)] = name + " " + value + "\n"
		want = append(want, name+"="+value)
	}
	return files, want
}
