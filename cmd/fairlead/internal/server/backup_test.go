package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/attest"
)

func TestReadoptSettings(t *testing.T) {
	t.Parallel()
	now, dir := time.Now(), t.TempDir()
	file := func(content string) string {
		path := filepath.Join(dir, strings.Map(func(r rune) rune { return 'a' + r%26 }, "x"+content))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	at := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339) }
	for _, tt := range []struct{ until, removed, want string }{
		{"", "", ""},
		{at(time.Hour), file(""), ""},
		{at(time.Hour), file("# gone\nweb-2 # old\n\n web-1\nshop/batch # direct\n"), ""},
		{at(-time.Hour), file(""), ""}, // it is over, and nobody is admitted
		{at(time.Hour), "", "go together"},
		{"", file(""), "go together"},
		{"tomorrow", file(""), "write a time such as"},
		{at(attest.MaxReadopt + time.Hour), file(""), "at most 30 days"},
		{at(time.Hour), filepath.Join(dir, "nowhere"), "--readopt-removed"},
		{at(time.Hour), file("web-1, web-2\n"), "one name of a host"},
		{at(time.Hour), file("shop/\n"), "of a direct client"},
	} {
		_, err := Config{ReadoptUntil: tt.until, ReadoptRemoved: tt.removed}.readopt(now)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q, %q: %v, want %q", tt.until, tt.removed, err, tt.want)
		}
	}
	got, err := Config{ReadoptUntil: at(time.Hour), ReadoptRemoved: file("# gone\nweb-2 # old\n\n web-1\nshop/batch # direct\n")}.readopt(now)
	if err != nil || strings.Join(got.Removed, " ") != "shop/batch web-1 web-2" {
		t.Errorf("names %q, %v", got.Removed, err)
	}
}

// A server whose records are gone says so, and what to do.
func TestLostRecordsAreReported(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"mesh.yaml": rule("shop", "a")}))
	r := start(t, cfg)
	r.join("orders-1", "shop/orders")
	if h := r.host("orders-1"); h.Joined.IsZero() {
		t.Errorf("%+v", h)
	}
	r.stop()
	if err := os.RemoveAll(filepath.Join(cfg.StateDir, "pki", "hosts")); err != nil {
		t.Fatal(err)
	}
	for range 2 { // not only the first time
		r = start(t, cfg)
		if s := r.out.String(); !strings.Contains(s, "all host records are missing") || !strings.Contains(s, "host import") {
			t.Error("the log does not have it")
		}
		r.stop()
	}
}
