package envoytest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Default is the release that tests use unless they are about a version, and
// Oldest the oldest that is supported.
const (
	Default = "1.40.0"
	Oldest  = "1.36.2"
)

// Versions are the releases of Envoy that Fairlead is tested with, newest first:
// one of each minor release that is supported. They are those that tools/envoy
// installs; a test compares the two.
//
// Who is about what Envoy does with xDS runs over all of them: the conformance
// suites, what is generated, the changes of form. What is long, and depends on the
// release only in that, runs over [Ends].
func Versions() []string { return []string{Default, "1.39.3", "1.38.3", "1.37.0", Oldest} }

// Ends are the newest and the oldest of [Versions].
func Ends() []string { return []string{Default, Oldest} }

// Minor is the minor release of one of [Versions], by which a test says what
// differs from release to release: 38 of "1.38.3".
func Minor(tb testing.TB, version string) int {
	tb.Helper()
	_, rest, _ := strings.Cut(version, ".")
	minor, _, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(minor)
	if err != nil {
		tb.Fatalf("the minor release of %q: %v", version, err)
	}
	return n
}

// Binary is the path of the default Envoy.
func Binary(tb testing.TB) string {
	tb.Helper()
	skipShort(tb)
	if p := os.Getenv("FAIRLEAD_ENVOY"); p != "" {
		return p
	}
	return BinaryVersion(tb, Default)
}

// BinaryVersion is the path of one of [Versions].
func BinaryVersion(tb testing.TB, version string) string {
	tb.Helper()
	skipShort(tb)
	p := filepath.Join(ModuleRoot(tb), ".tools", "envoy-"+version, "envoy")
	if _, err := os.Stat(p); err == nil {
		return p
	}
	Missing(tb, "Envoy %s is not at %q: run `make tools`", version, p)
	return ""
}

// skipShort keeps real Envoys out of the fast tier (go test -short), which
// `make test` runs besides the whole, with the race detector.
func skipShort(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("runs a real Envoy: not in -short")
	}
}

// Missing skips the test because a part it needs is absent, or fails it where
// every part has to be there (FAIRLEAD_E2E=1).
func Missing(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("FAIRLEAD_E2E") == "1" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf(format, args...)
}

// ModuleRoot is the directory of the project's go.mod, also for the tests of the
// modules inside it.
func ModuleRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "fairlead")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			tb.Fatal("no cmd/fairlead above the working directory")
		}
		dir = up
	}
}
