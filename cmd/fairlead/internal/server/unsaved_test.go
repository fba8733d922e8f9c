package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul/client"
)

// TestAllSourcesSayWhatIsNotSaved: the list of sources has none that cannot say it,
// whatever sources there will be.
func TestAllSourcesSayWhatIsNotSaved(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"mesh/a.yaml": rule("shop", "a"), "settings.yaml": "{}"})
	cfg := config(t, filepath.Join(dir, "mesh"))
	cfg.MeshConfigFile = filepath.Join(dir, "settings.yaml")
	cfg.Consul = Consul{Client: client.Config{Address: "http://127.0.0.1:1"}, KVPrefix: "mesh"}
	r := start(t, cfg)
	list, _ := r.sourceList()
	if saved := r.savedSources(); len(saved) != len(list)+1 || len(saved) < 5 {
		t.Errorf("%d of %d sources say what is not saved", len(saved), len(list)+1)
	}
}

// TestUnsavedSourcesAreReported takes the state directory of a running server away: a
// change is served all the same, and readiness and a metric say for each source that it
// is not saved, until it is.
func TestUnsavedSourcesAreReported(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	dir := treeOf(t, map[string]string{"a.yaml": rule("shop", "a")})
	cfg := config(t, dir)
	cfg.StateDir = filepath.Join(t.TempDir(), "state")
	r := start(t, cfg)
	r.eventually(func() error {
		if why := r.NotReady(); len(why) > 0 {
			return errors.New(strings.Join(why, "; "))
		}
		return nil
	})
	away := cfg.StateDir + ".away"
	if err := errors.Join(os.Rename(cfg.StateDir, away), os.WriteFile(cfg.StateDir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "b.yaml"), rule("shop", "b"))
	generation := r.registry.Status().Generation
	r.eventually(func() error {
		if r.registry.Status().Generation == generation {
			return errors.New("the change is not in force")
		}
		if text := strings.Join(r.remarks(), "; "); !strings.Contains(text, "source files is not saved") {
			return fmt.Errorf("remarks: %q", text)
		}
		return r.sourceMetric("fairlead_source_unsaved", "files", 1)
	})
	if why := r.NotReady(); len(why) > 0 {
		t.Errorf("not ready: %q", why)
	}
	if err := errors.Join(os.Remove(cfg.StateDir), os.Rename(away, cfg.StateDir)); err != nil {
		t.Fatal(err)
	}
	r.eventually(func() error { return r.sourceMetric("fairlead_source_unsaved", "files", 0) })
}

// sourceMetric compares the metric of a source.
func (r *running) sourceMetric(name, source string, want float64) error {
	list, err := r.metrics.Gather()
	if err != nil {
		return err
	}
	for _, f := range list {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == source {
				if got := m.GetGauge().GetValue(); got != want {
					return fmt.Errorf("%s of %s is %v", name, source, got)
				}
				return nil
			}
		}
	}
	return fmt.Errorf("there is no %s of %s", name, source)
}
