package persist_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/persist"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// disk has parts and a mark, and returns the configured errors.
type disk struct {
	mu      sync.Mutex // guards all following fields
	parts   map[int]string
	mark    string
	refused map[int]error // by part; -1 is the mark
	saving  func(part int)
}

func (d *disk) save(part int, content string) error {
	d.mu.Lock()
	saving := d.saving
	d.mu.Unlock()
	if saving != nil {
		saving(part)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refused[part]; err != nil {
		return err
	}
	d.parts[part] = content
	return nil
}

func (d *disk) saveMark(mark string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.refused[-1]; err != nil {
		return err
	}
	d.mark = mark
	return nil
}

func (d *disk) expect(t *testing.T, what, mark string, parts map[int]string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mark != mark || !maps.Equal(d.parts, parts) {
		t.Errorf("%s: the disk has %v, %q; want %v, %q", what, d.parts, d.mark, parts, mark)
	}
}

func (d *disk) refuse(errs map[int]error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refused = errs
}

func newDisk() (*disk, *persist.Writer[string, string], *strings.Builder) {
	d, log := &disk{parts: map[int]string{}}, &strings.Builder{}
	return d, persist.New(persist.Config[string, string]{
		What: "the catalog", Save: d.save, SaveMark: d.saveMark, Logger: slog.New(slog.NewTextHandler(log, nil)),
	}), log
}

func offer(w *persist.Writer[string, string], parts map[int]string, mark string) {
	if mark == "" {
		w.Offer(parts, nil)
		return
	}
	w.Offer(parts, &mark)
}

// TestFailedPartsAreRetried: parts that could not be written are retried, the mark is written
// only after all parts, and the error is logged once.
func TestFailedPartsAreRetried(t *testing.T) {
	t.Parallel()
	d, w, log := newDisk()
	d.refuse(map[int]error{2: errors.New("full")})
	offer(w, map[int]string{1: "a", 2: "b"}, "first")
	w.Flush()
	d.expect(t, "one part is refused", "", map[int]string{1: "a"})
	w.Flush()
	if n, reason := w.Trouble(); n != 2 || reason != "full" {
		t.Errorf("%d failures, because %q", n, reason)
	}
	// What is offered meanwhile is newer; a mark that is not offered again stands.
	offer(w, map[int]string{2: "c"}, "")
	w.Flush()
	d.refuse(map[int]error{-1: errors.New("full")})
	w.Flush()
	d.expect(t, "the mark is refused", "", map[int]string{1: "a", 2: "c"})
	d.refuse(nil)
	w.Flush()
	d.expect(t, "nothing is refused", "first", map[int]string{1: "a", 2: "c"})
	if _, reason := w.Trouble(); reason != "" {
		t.Errorf("it still says %q", reason)
	}
	if n, m := strings.Count(log.String(), "state failed\" what=\"the catalog\""), strings.Count(log.String(), "works again\""); n != 1 || m != 1 {
		t.Errorf("logged %d and %d times:\n%s", n, m, log)
	}
}

// TestTheNewestIsWritten: content that is offered while an older one is being written is not
// overwritten by it, and neither is its mark.
func TestTheNewestIsWritten(t *testing.T) {
	t.Parallel()
	d, w, _ := newDisk()
	d.refuse(map[int]error{1: errors.New("full")})
	d.saving = func(int) { offer(w, map[int]string{1: "new"}, "new") }
	offer(w, map[int]string{1: "old", 2: "kept"}, "old")
	w.Flush()
	d.refuse(nil)
	d.saving = nil
	w.Flush()
	d.expect(t, "after all", "new", map[int]string{1: "new", 2: "kept"})
}

// TestRunRetries: Run retries after a while, and writes what is pending at the end.
func TestRunRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, w, _ := newDisk()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { w.Run(ctx) })
		d.refuse(map[int]error{1: errors.New("full")})
		offer(w, map[int]string{1: "a"}, "")
		synctest.Wait()
		d.expect(t, "it is refused", "", map[int]string{})
		d.refuse(nil)
		<-time.After(time.Minute) // of synctest's clock
		d.expect(t, "it was tried again", "", map[int]string{1: "a"})
		d.refuse(map[int]error{1: errors.New("full")})
		offer(w, map[int]string{1: "b"}, "end")
		synctest.Wait()
		d.refuse(nil)
		cancel()
		wg.Wait()
		d.expect(t, "it has ended", "end", map[int]string{1: "b"})
	})
}

// TestTrouble: an error of the disk is reported rather than that nothing is offered.
func TestTrouble(t *testing.T) {
	t.Parallel()
	d, w, _ := newDisk()
	w.Withhold("held")
	if _, reason := w.Trouble(); reason != "held" {
		t.Errorf("it says %q", reason)
	}
	d.refuse(map[int]error{1: errors.New("full")})
	offer(w, map[int]string{1: "a"}, "")
	w.Flush()
	if _, reason := w.Trouble(); reason != "full" {
		t.Errorf("it says %q", reason)
	}
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	v := persist.NewDecision()
	if f, held := v.Last(); f != nil || held != 0 {
		t.Error("there is a decision before the first one")
	}
	a, b := &mesh.Fragment{}, &mesh.Fragment{}
	v.Decided(a, 1)
	v.Decided(b, 2)
	if f, held := v.Last(); f != b || held != 2 {
		t.Errorf("%d are held of another fragment", held)
	}
	<-v.Changed()
	select {
	case <-v.Changed():
		t.Error("it signals without a new decision")
	default:
	}
}
