package files

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// settingsFile is a file of one object, with what objects says of it.
type settingsFile struct {
	text, want string
	// config reads the file at the path.
	config func(path string) Config
	// commented is what is in force of a file with nothing but a comment.
	commented string
	// losing are texts that lack a field.
	losing map[string]string
	// present reads the file as a server does before it runs.
	present func(s *Source) (present, lastGood *mesh.Fragment, err error)
}

func settingsFiles() map[string]settingsFile {
	return map[string]settingsFile{
		"mesh_config": {
			text: "# of all\naccessLogFile: /dev/stdout\nprotocolDetectionTimeout: 5s\ntrustDomain: one.example\n", want: "mesh=one.example", commented: "mesh=cluster.local",
			losing: map[string]string{
				"cut":  "# of all\naccessLogFile: /dev/stdout\nprotocolDetectionTimeout: 5s\n",
				"null": "# of all\naccessLogFile:\nprotocolDetectionTimeout: 5s\ntrustDomain: one.example\n",
			},
			config:  func(path string) Config { return Config{MeshConfigFile: path, Decoder: manifests{}} },
			present: func(s *Source) (*mesh.Fragment, *mesh.Fragment, error) { return s.readFile(mesh.KindMeshConfig) },
		},
		"mesh_networks": {
			text: "networks:\n  a: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n  b:\n    gateways:\n    - address: 192.0.2.1\n      port: 15443\n", want: "networks=[a b]", commented: "networks=[]",
			losing: map[string]string{
				"cut":  "networks:\n  a: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n  b: {gateways: []}\n",
				"null": "networks:\n  a: {endpoints: [{fromCidr: 10.0.0.0/8}]}\n  b:\n",
			},
			config:  func(path string) Config { return Config{MeshNetworksFile: path, Decoder: manifests{}} },
			present: func(s *Source) (*mesh.Fragment, *mesh.Fragment, error) { return s.readFile(mesh.KindMeshNetworks) },
		},
	}
}

// TestEveryCutOfSettings cuts the files of mesh settings and of networks after each byte: they stay in force as they
// were. Without the mark that holds for cuts within a line.
func TestEveryCutOfSettings(t *testing.T) {
	t.Parallel()
	for name, c := range settingsFiles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := c.config("/r/settings.yaml")
			roots, err := newRoots(cfg)
			check(t, err)
			next := func(old *lastgood.Version, content string) *lastgood.Version {
				b := lastgood.NewBlob([]byte(content))
				return lastgood.NextVersion(old, b, roots[0].decode(&cfg, "/r/settings.yaml", b), time.Time{})
			}
			marked := c.text + manifest.EndMark + "\n"
			for _, text := range []string{marked, c.text} {
				whole := next(nil, text)
				want := whole.Fragment(roots[0].key())
				if want == nil || len(whole.Faults()) > 0 {
					t.Fatalf("the whole file has %v", whole.Faults())
				}
				for n := range len(text) - 1 {
					if text != marked && n > 0 && text[n-1] == '\n' {
						continue
					}
					v := next(whole, text[:n])
					if got := v.Fragment(roots[0].key()); !lastgood.Same(got, want) {
						t.Fatalf("a cut after %d bytes changes what is in force:\n%q", n, text[:n])
					}
					if len(v.Faults()) == 0 {
						t.Fatalf("a cut after %d bytes has no fault:\n%q", n, text[:n])
					}
				}
			}
		})
	}
}

// TestSettingsLoseTheirEnd: a file of mesh settings or networks that is cut off or empty stays in force as it was, over
// restarts, and a server that starts reads its last good version; one with a comment alone is deliberate.
func TestSettingsLoseTheirEnd(t *testing.T) {
	t.Parallel()
	for name, c := range settingsFiles() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := c.text + manifest.EndMark + "\n"
			path := filepath.Join(treeOf(t, map[string]string{"settings.yaml": text}), "settings.yaml")
			cfg := c.config(path)
			cfg.StateDir, cfg.LossAfter = t.TempDir(), time.Second
			r := start(t, cfg)
			r.Await(c.want)
			for _, size := range []int{0, len(c.text) / 2, len(c.text) - 3, len(c.text), len(text) - 1} {
				check(t, os.Truncate(path, int64(size)))
				faulty := func(*Status) bool { return r.hasFault("error [") }
				r.awaitStatus(fmt.Sprintf("a fault of %d bytes", size), faulty)
				r.stays(stillForLoss)
				r.Stop()
				s, err := New(withLog(cfg))
				check(t, err)
				now, last, err := c.present(s)
				if got := fmt.Sprint(objects(now)); got != "["+c.want+"]" && (got != "[]" || err == nil) || fmt.Sprint(objects(last)) != "["+c.want+"]" {
					t.Errorf("of %d bytes a server reads %s, with the last good version %v: %v", size, got, objects(last), err)
				}
				r = start(t, cfg)
				r.awaitStatus(fmt.Sprintf("a fault of %d bytes after a restart", size), faulty)
				r.Always(c.want)
				check(t, os.WriteFile(path, []byte(text), 0o600))
				r.awaitStatus("whole", func(st *Status) bool { return len(st.Faults) == 0 && len(st.Kept) == 0 })
			}
			r.Always(c.want)
			check(t, os.WriteFile(path, []byte("# nothing is set\n...\n"), 0o600))
			r.Await(c.commented)
		})
	}
}

func withLog(cfg Config) Config {
	cfg.Logger, cfg.ScanInterval = discard(), time.Hour
	return cfg
}

// TestSettingsLoseAField: a file of mesh settings or networks that is written in place and lacks a field, as a copy that
// is cut off at the end of a line, or has null in its place, counts when it rests; one that is renamed into place at once.
func TestSettingsLoseAField(t *testing.T) {
	t.Parallel()
	for name, c := range settingsFiles() {
		for how, text := range c.losing {
			t.Run(name+"_"+how, func(t *testing.T) {
				t.Parallel()
				path := filepath.Join(treeOf(t, map[string]string{"settings.yaml": c.text}), "settings.yaml")
				cfg := c.config(path)
				cfg.StateDir, cfg.LossAfter = t.TempDir(), time.Hour
				r := start(t, cfg)
				r.Await(c.want)
				was := r.Last()
				check(t, os.WriteFile(path, []byte(text), 0o600))
				r.awaitStatus("it waits", func(*Status) bool {
					return r.hasFault("[FL0310]") && r.hasFault("which it had; this counts when the file rests for 1h0m0s")
				})
				r.stays(stillForLoss)
				if !lastgood.Same(r.Last(), was) {
					t.Errorf("it is in force: %v", r.Last())
				}
				check(t, os.WriteFile(path, []byte(c.text+"# whole again\n"), 0o600))
				r.awaitStatus("whole", func(st *Status) bool { return len(st.Faults) == 0 })
				replace(t, path, text)
				r.awaitStatus("in force", func(st *Status) bool { return len(st.Faults) == 0 && !lastgood.Same(r.Last(), was) })
			})
		}
	}
}
