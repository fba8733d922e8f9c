package files

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// before57 decodes settings as releases did for which a single field that is not in force kept
// the whole file out.
type before57 struct{ manifests }

func (before57) ReadMeshConfig(path string, content []byte) (*manifest.MeshSettings, []manifest.Fault) {
	s, faults := manifest.ReadMeshConfig(path, content)
	if s != nil && s.Partial {
		return nil, faults
	}
	return s, faults
}

// TestSettingsKeepFields: a field of the settings that is invalid keeps its value, also after
// restarts, after edits while nothing ran, and in an earlier release.
func TestSettingsKeepFields(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"mesh.yaml": "trustDomain: one.example\nconnectTimeout: 3s\n"})
	path := filepath.Join(dir, "mesh.yaml")
	cfg := Config{MeshConfigFile: path, StateDir: t.TempDir(), ScanInterval: time.Hour, Decoder: manifests{}, Logger: discard()}
	r := start(t, cfg)
	r.Await("mesh=one.example")
	timeout := func(c *mesh.MeshConfig) time.Duration { return c.Spec.GetConnectTimeout().AsDuration() }
	expect := func(what string, c *mesh.MeshConfig, domain string) {
		t.Helper()
		if c == nil || c.Spec.GetTrustDomain() != domain || timeout(c) != 3*time.Second {
			t.Errorf("%s: %v", what, c)
		}
	}
	partial := "connectTimeout: 5\ninboundClusterStatName: a\nextensionProviders: [{name: a, envoyExtAuthzGrpc: {service: a.example, port: 80}}]\n"
	replace(t, path, "trustDomain: two.example\n"+partial)
	r.Await("mesh=two.example")
	expect("a field is wrong", r.Last().MeshConfig, "two.example")
	for _, fault := range []string{"mesh.yaml:2:17: error [FL0115] MeshConfig connectTimeout: ", "mesh.yaml:3:25: error [FL0130] MeshConfig inboundClusterStatName: "} {
		if !r.hasFault(fault) {
			t.Errorf("there is no %q: %v", fault, r.Status().Faults)
		}
	}
	if kept := r.Status().Kept; len(kept) > 0 {
		t.Errorf("the file is in force, and said to be kept: %v", kept)
	}
	r.Stop()

	read := func(decoder Decoder) (present, lastGood *mesh.MeshConfig) {
		t.Helper()
		cfg := cfg
		cfg.Decoder = decoder
		s, err := New(cfg)
		check(t, err)
		present, lastGood, _ = s.ReadMeshConfig()
		return present, lastGood
	}
	present, lastGood := read(manifests{})
	expect("at the start", present, "two.example")
	expect("at the start, last good", lastGood, "two.example")
	if n := len(present.Spec.GetExtensionProviders()); n != 1 {
		t.Errorf("%d providers", n)
	}
	earlier, lastGood := read(before57{})
	expect("an earlier release", lastGood, "two.example")
	if earlier != nil {
		t.Error("an earlier release accepts the file: the test is wrong")
	}

	write(t, dir, map[string]string{"mesh.yaml": "trustDomain: three.example\nconnectTimeout: never\n"})
	present, _ = read(manifests{})
	expect("edited meanwhile", present, "three.example")
	r = start(t, cfg)
	r.Await("mesh=three.example")
	expect("after a restart", r.Last().MeshConfig, "three.example")

	replace(t, path, "trustDomain: [four.example]\nconnectTimeout: 1s\n")
	r.awaitStatus("kept out", func(s *Status) bool { return len(s.Kept) == 1 })
	expect("kept out", r.Last().MeshConfig, "three.example")
	r.Stop()
	present, lastGood = read(manifests{})
	expect("kept out, at the start", lastGood, "three.example")
	if present != nil {
		t.Errorf("a file that is kept out gives %v", present)
	}
	r = start(t, cfg)
	r.Await("mesh=three.example")
	expect("kept out, after a restart", r.Last().MeshConfig, "three.example")

	replace(t, path, "trustDomain: five.example\nconnectTimeout: never\n")
	r.Await("mesh=five.example")
	expect("in force again", r.Last().MeshConfig, "five.example")
	replace(t, path, "trustDomain: six.example\n")
	r.Await("mesh=six.example")
	if got := timeout(r.Last().MeshConfig); got != 10*time.Second {
		t.Errorf("a field that was removed is still %s", got)
	}
}

// TestUnreadableStateIsSkipped: of several texts of an object, the last that can be read counts.
func TestUnreadableStateIsSkipped(t *testing.T) {
	t.Parallel()
	key := mesh.Key{Kind: mesh.KindMeshConfig}
	e := lastgood.Entry{
		Contents: [][]byte{[]byte("inboundClusterStatName: a\n"), []byte("connectTimeout: 3s\n"), []byte("newer: 1\n")},
		Kept:     []lastgood.EntryKept{{Key: key, Content: 1}, {Key: key, Content: 2}},
	}
	v := e.Revive(func(b *lastgood.Blob) lastgood.Decoded { return decodeMeshConfig(before57{}, "mesh.yaml", b) }, time.Time{})
	if f := v.Fragment(key); f == nil || f.MeshConfig.Spec.GetConnectTimeout().AsDuration() != 3*time.Second {
		t.Errorf("got %v", f)
	}
}
