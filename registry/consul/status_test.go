package consul

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/consul/mapping"
)

// withNotes gives a loop services that have notes, in an order that is not theirs.
func (l *loop) withNotes(services, each int) {
	for i := range services {
		name := fmt.Sprintf("service-%05d", i*7919%services)
		svc := &service{name: name, raw: []byte("x")}
		for j := range each {
			svc.notes = append(svc.notes, mapping.Note{Service: name, Instance: fmt.Sprintf("n/%02d", each-j), Code: mapping.CodeLabels, Message: "m"})
		}
		l.services[name] = svc
	}
}

// TestNotesAreCounted: the status has the first notes, in order, and the number of
// all.
func TestNotesAreCounted(t *testing.T) {
	t.Parallel()
	l := newTestLoop(t, t.TempDir(), "")
	l.withNotes(60, 3)
	l.publishStatus(time.Now())
	st := l.s.Status()
	if st.NoteCount != 180 || len(st.Notes) != listMax {
		t.Fatalf("%d notes of %d, want %d of 180", len(st.Notes), st.NoteCount, listMax)
	}
	for i, n := range st.Notes {
		if want := fmt.Sprintf("service-%05d n/%02d", i/3, i%3+1); n.Service+" "+n.Instance != want {
			t.Errorf("note %d is of %s %s, want %s", i, n.Service, n.Instance, want)
		}
	}
}

// TestStatusCostsLittle: a status is made while changes wait, so it may not handle
// each note of a fleet.
func TestStatusCostsLittle(t *testing.T) {
	t.Parallel()
	l := newTestLoop(t, t.TempDir(), "")
	l.withNotes(5000, 20)
	b := testing.Benchmark(func(b *testing.B) {
		b.Helper()
		b.ReportAllocs()
		for b.Loop() {
			l.publishStatus(time.Now())
		}
	})
	if b.AllocedBytesPerOp() > 1<<20 {
		t.Errorf("a status of 5,000 services with 20 notes each takes %d bytes", b.AllocedBytesPerOp())
	}
}

func BenchmarkStatus(b *testing.B) {
	for _, each := range []int{1, 20} {
		b.Run(strconv.Itoa(each), func(b *testing.B) {
			l := newTestLoop(b, b.TempDir(), "")
			l.withNotes(5000, each)
			b.ReportAllocs()
			for b.Loop() {
				l.publishStatus(time.Now())
			}
		})
	}
}

// TestDeniedRulesAreCountedAndLogged: the number of rules that are missing is not
// that of those listed, and the log has each set once.
func TestDeniedRulesAreCountedAndLogged(t *testing.T) {
	t.Parallel()
	l := newTestLoop(t, t.TempDir(), "")
	var out strings.Builder
	l.log = slog.New(slog.NewTextHandler(&out, nil))
	l.live = true
	for i := range 300 {
		name := fmt.Sprintf("s%03d", i)
		l.services[name] = &service{name: name, denied: i%2 == 0, filtered: i%2 == 1, held: map[string]bool{name: true}}
	}
	l.services["broken"] = &service{name: "broken", fault: "status 500"}
	now := at(0)
	for range 3 {
		now = now.Add(denialLogEvery)
		l.publishStatus(now)
	}
	st := l.s.Status()
	if st.DeniedCount != 300 || len(st.Denied) != listMax || st.UnreadableCount != 1 {
		t.Errorf("%d rules, %d listed, %d unreadable; want 300, %d, 1", st.DeniedCount, len(st.Denied), st.UnreadableCount, listMax)
	}
	if got, want := st.Denied[0], `node:read on some nodes of service "s001"`; got != want {
		t.Errorf("the first is %s, want %s", got, want)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], "level=WARN") || !strings.Contains(lines[0], "rules=300") || strings.Count(lines[0], "node:read") != denialLogMax {
		t.Errorf("the log says %q", out.String())
	}
	out.Reset()
	delete(l.services, "s007")
	l.publishStatus(now.Add(denialLogEvery))
	if !strings.Contains(out.String(), "rules=299") {
		t.Errorf("of another set the log says %q", out.String())
	}
	out.Reset()
	clear(l.services)
	l.publishStatus(now.Add(2 * denialLogEvery))
	if !strings.Contains(out.String(), "level=INFO") {
		t.Errorf("of none the log says %q", out.String())
	}
}
