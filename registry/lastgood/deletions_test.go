package lastgood_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// TestDeletionsWaitForPendingOnes: while more are pending, deletions are collected into one
// line, which names the first five; but not for ever.
func TestDeletionsWaitForPendingOnes(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := slog.New(slog.NewTextHandler(&out, nil))
	begin := time.Unix(1_700_000_000, 0)
	var d lastgood.Deletions
	write := func(pending bool, after time.Duration) string {
		out.Reset()
		d.Log(log, "file deleted", "files deleted", pending, begin.Add(after))
		return out.String()
	}
	if got := write(false, 0); got != "" {
		t.Errorf("nothing was deleted: %s", got)
	}
	for i, name := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		at := time.Duration(i) * time.Second
		d.Add(name, 2, begin.Add(at))
		if got := write(true, at); got != "" {
			t.Fatalf("more are pending after %s: %s", name, got)
		}
	}
	if got := write(false, 7*time.Second); !strings.Contains(got, `msg="files deleted" count=7 objects=14 first="[a b c d e]"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("at the end: %s", got)
	}
	if got := write(false, 8*time.Second); got != "" {
		t.Errorf("they are logged already: %s", got)
	}
	// A flow of deletions that does not end is logged, too; the wait begins with the first one.
	d.Add("h", 1, begin.Add(20*time.Second))
	d.Add("i", 1, begin.Add(29*time.Second))
	if got := write(true, 29*time.Second); got != "" {
		t.Errorf("before the limit: %s", got)
	}
	if got := write(true, 30*time.Second); !strings.Contains(got, `msg="files deleted" count=2`) {
		t.Errorf("at the limit: %s", got)
	}
	d.Add("j", 3, begin.Add(40*time.Second))
	if got := write(false, 40*time.Second); !strings.Contains(got, `msg="file deleted" path=j objects=3`) {
		t.Errorf("one alone: %s", got)
	}
}
