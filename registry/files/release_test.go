package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
)

// denies is a file of DENY policies, each for a path of its own.
func denies(names ...string) string {
	var text strings.Builder
	for _, name := range names {
		fmt.Fprintf(&text, "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: %s, namespace: shop}\n"+
			"spec: {action: DENY, rules: [{to: [{operation: {paths: [\"/%s\"], ports: [\"80\"]}}]}]}\n", name, name)
	}
	return text.String()
}

// policies waits until these policies are in force.
func (r *running) policies(want ...string) {
	r.t.Helper()
	envoytest.Eventually(r.t, patience, func() error {
		f := r.Last()
		if f == nil {
			return errors.New("nothing was sent")
		}
		var got []string
		for _, p := range f.AuthorizationPolicies {
			got = append(got, p.Name)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("policies are %v, want %v", got, want)
		}
		return nil
	})
}

// TestRestrictingLoss: a file that is written in place and lacks a policy counts when it has rested for
// long, also if the server starts meanwhile; one that is renamed into place, deleted or released at once.
func TestRestrictingLoss(t *testing.T) {
	t.Parallel()
	held := func(r *running) {
		r.awaitStatus("held", func(*Status) bool {
			return r.hasFault("[FL0310]: was written in place and lacks AuthorizationPolicy shop/two")
		})
	}
	for name, c := range map[string]struct {
		lossAfter time.Duration
		do        func(r *running, path string)
		want      []string
	}{
		"waits": {time.Hour, func(r *running, path string) {
			check(r.t, os.WriteFile(path, []byte(denies("one")), 0o600))
			held(r)
			r.stays(stillForLoss + stillFor)
		}, []string{"one", "two"}},
		"counts": {2 * time.Second, func(r *running, path string) {
			check(r.t, os.WriteFile(path, []byte(denies("one")), 0o600))
		}, []string{"one"}},
		"is_written_again": {time.Hour, func(r *running, path string) {
			check(r.t, os.WriteFile(path, []byte(denies("one")), 0o600))
			held(r)
			check(r.t, os.WriteFile(path, []byte(denies("one", "three", "two")), 0o600))
		}, []string{"one", "three", "two"}},
		"by_rename": {time.Hour, func(r *running, path string) { replace(r.t, path, denies("one")) }, []string{"one"}},
		"deleted":   {time.Hour, func(r *running, path string) { check(r.t, os.Remove(path)) }, nil},
		"moved": {time.Hour, func(r *running, path string) {
			check(r.t, os.WriteFile(filepath.Join(filepath.Dir(path), "z.yaml"), []byte(denies("two")), 0o600))
			check(r.t, os.WriteFile(path, []byte(denies("one")), 0o600))
		}, []string{"one", "two"}},
		"released": {time.Hour, func(r *running, path string) {
			check(r.t, os.WriteFile(path, []byte(denies("one")), 0o600))
			held(r)
			if !r.Release() {
				r.t.Error("there is nothing to release")
			}
		}, []string{"one"}},
		"loosened_only": {time.Hour, func(r *running, path string) {
			check(r.t, os.WriteFile(path, []byte(strings.Replace(denies("one", "two"), `"/two"`, `"/two/x"`, 1)), 0o600))
			r.awaitStatus("read", func(s *Status) bool { return s.Counters.Decodes == 2 })
		}, []string{"one", "two"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": denies("one", "two")})
			cfg := Config{Roots: []Root{{Path: dir}}, LossAfter: c.lossAfter, StateDir: t.TempDir(), ScanInterval: 200 * time.Millisecond}
			r := startReal(t, cfg)
			r.policies("one", "two")
			c.do(r, filepath.Join(dir, "a.yaml"))
			r.policies(c.want...)
			r.Stop()
			r = startReal(t, cfg)
			r.policies(c.want...)
		})
	}
}

// TestLossOfOthersWaitsAsBefore: what restricts nobody is not held.
func TestLossOfOthersWaitsAsBefore(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, map[string]string{"a.yaml": "a 1\nb 1\n"})
	cfg := atDir(dir)
	cfg.LossAfter = time.Hour
	r := start(t, cfg)
	r.Await("a=1", "b=1")
	write(t, dir, map[string]string{"a.yaml": "a 1\n"})
	r.Await("a=1")
}

// TestCutFile: a file that lost its end keeps what it lacks, over restarts, until it is whole, deleted or
// released.
func TestCutFile(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	cut := strings.TrimSuffix(denies("one"), "\n")
	for name, c := range map[string]struct {
		do   func(r *running, path string)
		want []string
	}{
		"whole":    {func(r *running, path string) { replace(r.t, path, denies("one")) }, []string{"one"}},
		"restored": {func(r *running, path string) { replace(r.t, path, denies("one", "two")) }, []string{"one", "two"}},
		"deleted":  {func(r *running, path string) { check(r.t, os.Remove(path)) }, nil},
		"emptied": {func(r *running, path string) {
			check(r.t, os.Truncate(path, 0))
			r.awaitStatus("empty", func(*Status) bool { return r.hasFault("[FL0150]") })
		}, []string{"one", "two"}},
		"released": {func(r *running, _ string) {
			if !r.Release() {
				r.t.Error("there is nothing to release")
			}
		}, []string{"one"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := treeOf(t, map[string]string{"a.yaml": denies("one", "two")})
			cfg := Config{Roots: []Root{{Path: dir}}, StateDir: t.TempDir(), LossAfter: 2 * time.Second}
			path := filepath.Join(dir, "a.yaml")
			r := startReal(t, cfg)
			r.policies("one", "two")
			if r.Release() {
				t.Error("there was something to release")
			}
			replace(t, path, cut)
			for range 2 {
				r.awaitStatus("cut off", func(*Status) bool { return r.hasFault("error [FL0309]: this does not end with a newline, as it did") })
				r.policies("one", "two")
				r.stays(stillForLoss + stillFor)
				r.Stop()
				r = startReal(t, cfg)
			}
			r.awaitStatus("cut off", func(*Status) bool { return r.hasFault("error [FL0309]") })
			c.do(r, path)
			r.policies(c.want...)
			r.Stop()
			r = startReal(t, cfg)
			r.policies(c.want...)
		})
	}
}
