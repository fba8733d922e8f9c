package files

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/lastgood"
)

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestAcceptAt(t *testing.T) {
	t.Parallel()
	at := time.Unix(1000, 0)
	const some, restricting = lastgood.SomeLoss, lastgood.RestrictingLoss
	for name, c := range map[string]struct {
		change change
		loss   lastgood.Loss
		want   time.Duration
	}{
		"in_place":              {want: stillFor},
		"in_place_lossy":        {loss: some, want: stillForLoss},
		"in_place_restricting":  {loss: restricting, want: 10 * time.Second},
		"renamed_restricting":   {change: change{renamed: true}, loss: restricting},
		"gone_restricting":      {change: change{gone: true}, loss: restricting, want: stillForLoss},
		"start_restricting":     {change: change{old: true, sig: sig{mtime: at.Add(-7 * time.Second).UnixNano()}}, loss: restricting, want: 3 * time.Second},
		"start_long_ago":        {change: change{old: true, sig: sig{ctime: at.Add(-time.Hour).UnixNano()}}, loss: restricting},
		"start_in_the_future":   {change: change{old: true, sig: sig{mtime: at.Add(time.Hour).UnixNano()}}, loss: restricting, want: 10 * time.Second},
		"renamed":               {change: change{renamed: true}},
		"renamed_lossy":         {change: change{renamed: true}, loss: some},
		"gone":                  {change: change{gone: true}},
		"gone_lossy":            {change: change{gone: true}, loss: some, want: stillForLoss},
		"gone_by_rename_lossy":  {change: change{gone: true, renamed: true}, loss: some, want: stillForLoss},
		"at_rest_at_start":      {change: change{old: true}},
		"at_rest_at_start_loss": {change: change{old: true}, loss: some},
	} {
		c.change.since = at
		if got := c.change.acceptAt(c.loss, 10*time.Second).Sub(at); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if c.change.readAt().After(c.change.acceptAt(c.loss, 10*time.Second)) {
			t.Errorf("%s: accepted before it is read", name)
		}
	}
}

func TestObserve(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	c := observe(nil, change{sig: sig{size: 1}, since: at(1)})
	c = observe(c, change{sig: sig{size: 1}, since: at(2)})
	if !c.since.Equal(at(1)) {
		t.Error("it looks the same, but its rest began anew")
	}
	c = observe(c, change{sig: sig{size: 2}, since: at(3)})
	if !c.since.Equal(at(3)) || !c.first.Equal(at(1)) {
		t.Errorf("since %v, first %v", c.since, c.first)
	}
	c = observe(c, change{sig: sig{size: 2}, since: at(4), renamed: true})
	c = observe(c, change{sig: sig{size: 2}, since: at(5)})
	if !c.renamed {
		t.Error("a second look made it forget the rename")
	}
	c = observe(c, change{sig: sig{size: 2, ctime: 6}, since: at(5)})
	if !c.renamed {
		t.Error("another mode made it forget the rename")
	}
	c = observe(c, change{sig: sig{size: 2, ctime: 7, mtime: 7}, since: at(5)})
	if c.renamed {
		t.Error("it was written after the rename, to the same size, and is accepted at once")
	}
	c.renamed = true
	c = observe(c, change{sig: sig{size: 3}, since: at(6)})
	if c.renamed {
		t.Error("it was written after the rename and is accepted at once")
	}
	if c = observe(c, change{gone: true, since: at(7)}); !c.gone || !c.since.Equal(at(7)) {
		t.Error("its absence was not noted")
	}
	c.renamed = true
	if c = observe(c, change{since: at(8)}); c.renamed {
		t.Error("it is back after an absence and is accepted at once")
	}
}

// TestModeIsNoWrite: the events of a name come in one batch or in several.
func TestModeIsNoWrite(t *testing.T) {
	t.Parallel()
	name := hop{"/a", "b.yaml"}
	create, write, chmod := func(b *inbox) { b.put(name, appeared, false) }, func(b *inbox) { b.put(name, touched, false) }, func(b *inbox) { b.put(name, touched, true) }
	take := func(b *inbox) { b.take() }
	for i, c := range []struct {
		events  []func(*inbox)
		how     arrival
		written bool
	}{
		{[]func(*inbox){create}, appeared, false},
		{[]func(*inbox){create, chmod}, appeared, false},
		{[]func(*inbox){create, take, chmod}, changedMode, false},
		{[]func(*inbox){create, take, chmod, write}, touched, true},
		{[]func(*inbox){create, take, write, chmod}, touched, true},
		{[]func(*inbox){create, write, chmod}, touched, true},
		{[]func(*inbox){write, create}, appeared, false},
	} {
		b := newInbox()
		for _, event := range c.events {
			event(b)
		}
		if written := b.has(name); written != c.written {
			t.Errorf("case %d: written: %v", i, written)
		}
		if how := b.take().names[name]; how != c.how {
			t.Errorf("case %d: %v", i, how)
		}
	}
}

func TestRacy(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		age          time.Duration
		racy, atRest bool
	}{
		"just_now": {0, true, false}, "a_second": {time.Second, true, false},
		"long_ago": {time.Minute, false, true}, "future": {-time.Hour, true, false},
	} {
		s := sig{mtime: 0, ctime: now.Add(-c.age).UnixNano()}
		if racy(s, now) != c.racy || atRest(s, now) != c.atRest {
			t.Errorf("%s: racy %v, at rest %v", name, racy(s, now), atRest(s, now))
		}
	}
}

func TestSendAt(t *testing.T) {
	t.Parallel()
	at := func(ms int) time.Time { return time.UnixMilli(int64(100_000 + ms)) }
	for name, c := range map[string]struct {
		urgent, writing bool
		want            time.Time
	}{
		"rest": {false, false, at(50)}, "renamed": {true, true, at(50)}, "others_are_written": {false, true, at(1010)},
	} {
		if got := sendAt(at(0), at(10), c.urgent, c.writing); !got.Equal(c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(treeOf(t, map[string]string{"real/x/f": ""}))
	check(t, err)
	link := func(target, name string) { t.Helper(); check(t, os.Symlink(target, filepath.Join(dir, name))) }
	link("real", "a")
	link(filepath.Join(dir, "a"), "b")
	link("b/../real/x", "c")
	link("loop2", "loop1")
	link("loop1", "loop2")
	link("nowhere/f", "dangling")
	for path, want := range map[string]struct {
		real string
		hops []hop
	}{
		"real":     {"real", []hop{{dir, "real"}}},
		"b/x":      {"real/x", []hop{{dir, "b"}, {dir, "a"}, {dir + "/real", "x"}}},
		"c/f":      {"real/x/f", []hop{{dir, "c"}, {dir, "b"}, {dir, "a"}, {dir + "/real/x", "f"}}},
		"missing":  {"", []hop{{dir, "missing"}}},
		"dangling": {"", []hop{{dir, "dangling"}, {dir, "nowhere"}}},
	} {
		got, hops, err := resolve(filepath.Join(dir, path))
		if (err != nil) != (want.real == "") || err == nil && got != filepath.Join(dir, want.real) {
			t.Errorf("%s: %q, %v", path, got, err)
		}
		if diff := cmp.Diff(want.hops, hops, cmp.AllowUnexported(hop{})); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	if _, hops, err := resolve(filepath.Join(dir, "loop1")); err == nil || len(hops) > maxLinks+1 {
		t.Errorf("a loop gave %d hops and %v", len(hops), err)
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	b := newInbox()
	x, y, z, mode := hop{"/a", "x"}, hop{"/a", "y"}, hop{"/a", "z"}, hop{"/a", "mode"}
	b.put(x, appeared, false)
	b.put(y, appeared, false)
	b.put(y, touched, true) // a change of its mode
	b.put(z, touched, false)
	b.put(mode, touched, true)
	if b.has(y) || b.has(mode) || !b.has(z) {
		t.Error("a change of mode counts as a write, or the other way round")
	}
	b.put(x, touched, false)
	b.directoryMoved()
	got := b.take()
	if got.lost || !got.moved || got.names[x] != touched || got.names[y] != appeared || len(got.names) != 4 {
		t.Errorf("got %+v", got)
	}
	if b.has(z) {
		t.Error("what was taken is still there")
	}
	for i := range maxBatch + 1 {
		b.put(hop{"/a", strings.Repeat("x", i%10) + string(rune(i))}, appeared, false)
	}
	b.put(x, touched, false)
	if !b.has(y) {
		t.Error("events were lost, and it is sure that none was of y")
	}
	if got := b.take(); !got.lost || len(got.names) > maxBatch {
		t.Errorf("a flood gave %d names, lost %v", len(got.names), got.lost)
	}
	if got := b.take(); got.lost {
		t.Error("the flood is reported twice")
	}
}

func TestParseRoot(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Root{
		"dir": {Path: "dir"}, "/a/b=ns": {Path: "/a/b", Namespaces: []string{"ns"}}, "a=x, y": {Path: "a", Namespaces: []string{"x", "y"}},
		"": {}, "=x": {}, "a=": {}, "a=x,,y": {},
		"a=Shop": {}, "a=x y": {}, "a=-x": {}, "a=x.y": {},
	} {
		got, err := ParseRoot(in)
		if diff := cmp.Diff(want, got); diff != "" || (err != nil) != (want.Path == "") {
			t.Errorf("%q: %v %s", in, err, diff)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	good := Config{Decoder: &fakeDecoder{}, Logger: discard()}
	for name, roots := range map[string][]Root{
		"none": nil, "twice": {{Path: "a"}, {Path: "./a/"}}, "below": {{Path: "a/b"}, {Path: "a"}},
	} {
		cfg := good
		cfg.Roots = roots
		if _, err := New(cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := New(Config{Roots: []Root{{Path: "a"}, {Path: "ab"}}}); err == nil || strings.Contains(err.Error(), "overlaps") {
		t.Errorf("error: %v", err)
	}
}
