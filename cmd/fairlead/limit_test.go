package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandsRefuseWhatTheServerRefuses gives commands a directory that is bound to a namespace, with
// more than it may have after expansion, and an unbound one with as much.
func TestCommandsRefuseWhatTheServerRefuses(t *testing.T) {
	t.Parallel()
	large := entry("evil", "large", "large.evil.internal", "10.0.0.1", "")
	large = strings.Replace(large, "hosts: [large.evil.internal]", "hosts: [a.evil.internal, b.evil.internal, c.evil.internal, large.evil.internal]", 1)
	small := entry("evil", "small", "small.evil.internal", "10.0.0.2", "")
	dir := tenantDirs(t, map[string]string{"evil": large + small, "platform": strings.ReplaceAll(large, "evil", "shop")})
	const limit = "--max-expansion=4"
	want := filepath.Join(dir("evil"), "all.yaml") + ":2:1: error [FL0311] ServiceEntry evil/large: its directory or prefix, which is bound to namespaces, makes 5 after expansion"

	code, out, errs := cli(t, "analyze", limit, dir("evil")+"=evil", dir("platform"))
	if code != exitInvalid || !strings.Contains(out, want) || strings.Count(out, "FL0311") != 1 {
		t.Errorf("analyze: %d\n%s%s", code, out, errs)
	}
	if code, out, errs = cli(t, "analyze", dir("evil")+"=evil", dir("platform")); strings.Contains(out, "FL0311") {
		t.Errorf("analyze without a limit: %d\n%s%s", code, out, errs)
	}
	if code, out, errs = cli(t, "validate", dir("evil")+"=evil"); code != 0 {
		t.Errorf("validate: %d\n%s%s", code, out, errs)
	}
	code, _, errs = cli(t, "render", "--namespace", "third", "--ip", "10.9.9.9", limit, "--config-dir", dir("evil")+"=evil", "--config-dir", dir("platform"))
	if code != exitInvalid || !strings.Contains(errs, want) {
		t.Errorf("render: %d\n%s", code, errs)
	}
	more := write(t, entry("evil", "more", "more.evil.internal", "10.0.0.3", ""))
	code, out, errs = cli(t, "apply", "--max-expansion=5", "--dry-run", "--config-dir", dir("evil")+"=evil", more)
	if code == 0 || !strings.Contains(out, "all.yaml:2:1: error [FL0311] ServiceEntry evil/large") {
		t.Errorf("apply: %d\n%s%s", code, out, errs)
	}
	if code, _, errs = cli(t, "analyze", "--max-expansion=-1", dir("evil")+"=evil"); code == 0 || !strings.Contains(errs, "--max-expansion -1: it must be at least 1") {
		t.Errorf("a limit below 1: %d %s", code, errs)
	}
}
