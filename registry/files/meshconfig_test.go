package files

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestReadMeshConfig(t *testing.T) {
	t.Parallel()
	top := treeOf(t, map[string]string{"mesh.yaml": "trustDomain: one.example\n"})
	path := filepath.Join(top, "mesh.yaml")
	cfg := Config{MeshConfigFile: path, StateDir: t.TempDir(), Logger: discard(), ScanInterval: time.Hour}
	read := func() (present, lastGood string, err error) {
		t.Helper()
		s, err := New(cfg)
		check(t, err)
		p, l, err := s.ReadMeshConfig()
		if p != nil {
			present = p.Spec.GetTrustDomain()
		}
		if l != nil {
			lastGood = l.Spec.GetTrustDomain()
		}
		return present, lastGood, err
	}
	expect := func(what, present, lastGood string, bad bool) {
		t.Helper()
		p, l, err := read()
		if p != present || l != lastGood || (err != nil) != bad {
			t.Errorf("%s: present %q, last good %q, error %v", what, p, l, err)
		}
	}
	expect("nothing is stored", "one.example", "", false)

	cfg.Decoder = manifests{}
	r := start(t, cfg)
	r.Await("mesh=one.example")
	r.Stop()
	write(t, top, map[string]string{"mesh.yaml": "trustDomian: two.example\n"})
	expect("broken", "", "one.example", true)
	write(t, top, map[string]string{"mesh.yaml": ""})
	expect("empty", "", "one.example", true)
	check(t, os.Remove(path))
	expect("gone", "", "one.example", true)

	// What was broken while the source ran is no good version either.
	write(t, top, map[string]string{"mesh.yaml": "]"})
	r = start(t, cfg)
	r.Await("mesh=one.example")
	r.Stop()
	expect("still broken", "", "one.example", true)

	write(t, top, map[string]string{"mesh.yaml": "trustDomain: two.example\n"})
	expect("fixed", "two.example", "one.example", false)
	cfg.StateDir = t.TempDir()
	write(t, top, map[string]string{"mesh.yaml": "]"})
	expect("never good", "", "", true)
}

func TestIgnore(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1", "sub/mesh.yaml": "m 1"})
	r := start(t, Config{Roots: []Root{{Path: dir}}, Ignore: []string{filepath.Join(dir, "sub", "mesh.yaml")}})
	r.Await("a=1")
	write(t, dir, map[string]string{"sub/mesh.yaml": "m 2", "sub/b.yaml": "b 1"})
	r.Await("a=1", "b=1")
}

func TestCheckRoots(t *testing.T) {
	t.Parallel()
	if err := CheckRoots([]Root{{Path: "a"}, {Path: "ab"}, {Path: "b"}}); err != nil {
		t.Error(err)
	}
	for _, roots := range [][]Root{{{Path: "a"}, {Path: "a/b"}}, {{Path: "a/b"}, {Path: "a"}}, {{Path: "a"}, {Path: "./a"}}} {
		if CheckRoots(roots) == nil {
			t.Errorf("%v were taken", roots)
		}
	}
}
