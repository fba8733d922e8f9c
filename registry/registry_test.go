package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// running is a Registry in a synctest bubble.
type running struct {
	*Registry
	t       *testing.T
	changed <-chan struct{}
	ended   chan error
	cancel  context.CancelFunc
	seen    uint64 // the generation that after saw last
}

func run(t *testing.T, c Config) *running {
	t.Helper()
	c.Logger, c.Fallback = silent(), fallback()
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	changed, unsubscribe := r.Subscribe()
	ctx, cancel := context.WithCancel(t.Context())
	x := &running{Registry: r, t: t, changed: changed, ended: make(chan error, 1), cancel: cancel}
	go func() { x.ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		unsubscribe()
		cancel()
		synctest.Wait()
	})
	return x
}

// after lets time pass and tells how many snapshots came since it was last
// called.
func (x *running) after(d time.Duration) int {
	x.t.Helper()
	<-time.After(d)
	synctest.Wait()
	s := x.Snapshot()
	if s == nil {
		return 0
	}
	n := s.Generation - x.seen
	x.seen = s.Generation
	return int(n)
}

func (x *running) want(d time.Duration, snapshots int, what string) {
	x.t.Helper()
	if got := x.after(d); got != snapshots {
		x.t.Fatalf("%s: %d snapshots after %s, want %d", what, got, d, snapshots)
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := newFakeSource("a"), newFakeSource("b")
		x := run(t, Config{Sources: []Source{a, b}})
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 1, "x")})
		x.want(59*time.Second, 0, "one source of two")
		if st := x.Status(); st.Complete || fmt.Sprint(st.Missing) != "[b]" || x.Complete() {
			t.Errorf("status: %+v", st)
		}
		b.say(&mesh.Fragment{Workloads: workloads("b", 0, 1, "x")})
		x.want(0, 1, "both sources: at once")
		if s := x.Snapshot(); s.Incomplete || len(s.Workloads) != 2 || !x.Complete() {
			t.Errorf("snapshot: %+v", s)
		}
		select {
		case <-x.changed:
		default:
			t.Error("the changed did not ring")
		}
		changed, cancel := x.Subscribe()
		defer cancel()
		select {
		case <-changed:
		default:
			t.Error("a late subscriber is not told")
		}
	})
}

func TestMissingSource(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b, c := newFakeSource("a"), newFakeSource("b"), newFakeSource("c")
		x := run(t, Config{Sources: []Source{a, b, c}})
		c.say(&mesh.Fragment{})
		x.want(2*time.Minute, 0, "nothing to serve after the wait")
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 1, "x")})
		x.want(0, 1, "something after the wait: at once")
		if s := x.Snapshot(); !s.Incomplete || fmt.Sprint(s.Missing) != "[b]" || x.Complete() {
			t.Errorf("incomplete: %v, missing: %v", s.Incomplete, s.Missing)
		}
		a.say(&mesh.Fragment{Workloads: workloads("a", 0, 2, "x")})
		x.want(time.Second, 1, "a change while incomplete")
		if !x.Snapshot().Incomplete {
			t.Error("complete without the third")
		}
		b.say(&mesh.Fragment{})
		x.want(0, 1, "the missing one, though empty: at once")
		if x.Snapshot().Incomplete || !x.Status().Complete || !x.Complete() {
			t.Error("still incomplete")
		}
	})
}

func TestHealthOvertakesConfig(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		files, agents := newFakeSource("files"), newFakeSource("agents")
		x := run(t, Config{Sources: []Source{files, agents}})
		list := workloads("a", 0, 3, "x")
		v1, v2 := virtualService("v", "1"), virtualService("v", "2")
		files.say(&mesh.Fragment{Workloads: list, VirtualServices: []*mesh.VirtualService{v1}})
		agents.say(&mesh.Fragment{})
		x.want(time.Second, 1, "start")
		files.say(&mesh.Fragment{Workloads: list[:2], VirtualServices: []*mesh.VirtualService{v2}})
		x.want(50*time.Millisecond, 0, "debounced")
		agents.say(&mesh.Fragment{Health: []*mesh.HealthReport{{
			ServiceAccount: mesh.ServiceAccount{Namespace: "a", Name: "default"}, Address: list[0].Address, Health: mesh.Unhealthy, Own: true,
		}}})
		x.want(10*time.Millisecond, 1, "health")
		s := x.Snapshot()
		if s.Workloads[0].Health != mesh.Unhealthy || s.VirtualServices[0] != v1 || len(s.Workloads) != 2 {
			t.Errorf("health %d, route %v, workloads %d", s.Workloads[0].Health, s.VirtualServices[0] == v1, len(s.Workloads))
		}
		x.want(100*time.Millisecond, 1, "config")
		s = x.Snapshot()
		if s.VirtualServices[0] != v2 || s.Workloads[0].Health != mesh.Unhealthy || len(s.Changed) != 1 {
			t.Errorf("changed: %v", s.Changed)
		}
		x.want(time.Minute, 0, "quiet")
	})
}

func TestBurstOfFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		files := newFakeSource("files")
		x := run(t, Config{Sources: []Source{files}})
		files.say(&mesh.Fragment{})
		x.want(time.Second, 1, "start")
		pushes := 0
		f := &mesh.Fragment{}
		for i := range 50 {
			next := *f
			if i%2 == 0 {
				next.Workloads = append(slices.Clone(f.Workloads), workload("a", i, "x"))
			} else {
				next.VirtualServices = append(slices.Clone(f.VirtualServices), virtualService(fmt.Sprintf("v%03d", i), ""))
			}
			f = &next
			files.say(f)
			pushes += x.after(20 * time.Millisecond)
		}
		if pushes += x.after(time.Second); pushes != 2 {
			t.Errorf("%d pushes for 50 files in a second, want 2", pushes)
		}
		if s := x.Snapshot(); len(s.Workloads) != 25 || len(s.VirtualServices) != 25 {
			t.Errorf("%d workloads, %d virtual services", len(s.Workloads), len(s.VirtualServices))
		}
	})
}

func TestHeldRemoval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		files := newFakeSource("files")
		x := run(t, Config{Sources: []Source{files}})
		all := workloads("a", 0, 20, "x")
		files.say(&mesh.Fragment{Workloads: all})
		x.want(time.Second, 1, "start")
		some := &mesh.Fragment{Workloads: all[:5]}
		files.say(some)
		x.want(time.Second, 0, "held")
		st := x.Status().Sources[0]
		if st.HeldCount != 15 || st.Held[0].Reason != SourceShrank || st.Held[0].NeedsPerson() || st.HeldTotal != 15 || st.Objects != 20 {
			t.Errorf("status: %+v", st)
		}
		files.say(some) // 5 s later, as package files does
		x.want(9*time.Second, 0, "too early")
		files.say(some)
		x.want(time.Second, 1, "confirmed by the same fragment")
		if got := len(x.Snapshot().Workloads); got != 5 || x.Status().Sources[0].HeldCount != 0 {
			t.Errorf("%d workloads", got)
		}
		files.say(&mesh.Fragment{})
		x.want(time.Hour, 0, "empty")
		if err := x.Release("files"); err != nil {
			t.Error(err)
		}
		x.want(time.Second, 1, "released")
		if got := len(x.Snapshot().Workloads); got != 0 {
			t.Errorf("%d workloads", got)
		}
		if err := x.Release("files"); !errors.Is(err, ErrNothingHeld) {
			t.Errorf("second release: %v", err)
		}
		if err := x.Release("nobody"); err == nil || errors.Is(err, ErrNothingHeld) {
			t.Errorf("release of an unknown source: %v", err)
		}
	})
}

func TestSameReadingPublishesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		files := newFakeSource("files")
		x := run(t, Config{Sources: []Source{files}})
		f := &mesh.Fragment{Workloads: workloads("a", 0, 20, "x")}
		files.say(f)
		x.want(time.Second, 1, "start")
		files.say(f)
		other := *f
		other.Workloads = slices.Clone(f.Workloads)
		files.say(&other)
		x.want(time.Minute, 0, "the same again")
		if st := x.Status().Sources[0]; st.Readings != 3 {
			t.Errorf("%d readings", st.Readings)
		}
		moved := *f.Workloads[3]
		moved.Origin = &mesh.Origin{Path: "x.yaml", Line: 9}
		other.Workloads = slices.Clone(f.Workloads)
		other.Workloads[3] = &moved
		third := other
		files.say(&third)
		x.want(time.Second, 1, "moved within its file")
		if s := x.Snapshot(); len(s.Changed) != 0 || s.Workloads[3].Origin.Line != 9 {
			t.Errorf("changed: %v", s.Changed)
		}
	})
}

func TestEnds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		end        func(x *running, s *fakeSource)
	}{
		{"source_fails", `running source "files": broken`, func(_ *running, s *fakeSource) { s.fail <- errBroken }},
		{"source_ends", `running source "files": the source ended`, func(_ *running, s *fakeSource) { s.fail <- nil }},
		{"ctx_ends", "", func(x *running, _ *fakeSource) { x.cancel() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, other := newFakeSource("files"), newFakeSource("other")
				x := run(t, Config{Sources: []Source{s, other}})
				c.end(x, s)
				err := <-x.ended
				if got := fmt.Sprint(err); got != c.want && (c.want != "" || err != nil) {
					t.Errorf("got %q, want %q", got, c.want)
				}
				if err := x.Run(t.Context()); err == nil {
					t.Error("it ran twice")
				}
			})
		})
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	_, err := New(Config{
		Sources: []Source{newFakeSource("a"), newFakeSource("a")}, Bindings: map[string]*mesh.Binding{"b": {Namespaces: []string{"x"}}}, SourceWait: -1,
	})
	for _, want := range []string{"Logger", "Fallback", `two sources have the name "a"`, `unknown source "b"`, "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not tell of %s", err, want)
		}
	}
}

// TestRemovalsOneByOne: what a source loses in many readings is weighed together; a person
// releases what is held, and the log reports it once in a while.
func TestRemovalsOneByOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newFakeSource("a")
		x := run(t, Config{Sources: []Source{a}, RemovalWindow: time.Minute})
		for i := range 41 {
			a.say(of(upTo(i, 40)...))
			x.after(100 * time.Millisecond)
		}
		x.after(time.Hour)
		if n := len(x.Snapshot().Workloads); n != 28 {
			t.Fatalf("%d workloads in force, want 28: 30%% may go at once", n)
		}
		if st := x.Status().Sources[0]; st.HeldCount != 28 || !st.Held[0].NeedsPerson() {
			t.Errorf("status: %+v", st)
		}
		if err := x.Release("a"); err != nil {
			t.Fatal(err)
		}
		x.after(time.Second)
		if n := len(x.Snapshot().Workloads); n != 0 {
			t.Errorf("%d workloads are in force after the release", n)
		}
		a.say(of(upTo(0, 10)...))
		x.after(2 * time.Minute)
		a.say(of(upTo(1, 10)...))
		x.after(time.Second)
		if n := len(x.Snapshot().Workloads); n != 9 {
			t.Errorf("%d workloads: what was released counts again", n)
		}
		a.say(of(upTo(5, 10)...)) // five of ten within the window
		x.after(time.Second)
		if n := len(x.Snapshot().Workloads); n != 9 {
			t.Errorf("%d workloads, want 9", n)
		}
	})
}
