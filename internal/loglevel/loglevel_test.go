package loglevel

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// logged is what all three loggers write at level debug.
func logged(t *testing.T, buf *bytes.Buffer, logs ...*slog.Logger) []string {
	t.Helper()
	buf.Reset()
	for _, log := range logs {
		log.Debug("line")
		log.Info("line")
	}
	var out []string
	for line := range strings.Lines(buf.String()) {
		_, rest, _ := strings.Cut(line, "level=")
		out = append(out, strings.TrimSpace(rest))
	}
	return out
}

func TestLevelsOfComponents(t *testing.T) {
	t.Parallel()
	var buf bytes.Buffer
	levels := New(slog.LevelInfo)
	root := slog.New(levels.Handler(slog.NewTextHandler(&buf, nil)))
	xds, pki := root.With("component", "xds").With("proxy", "web"), root.With("component", "pki")
	set := func(c Change) {
		t.Helper()
		if err := levels.Set(c); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when string, want ...string) {
		t.Helper()
		if got := logged(t, &buf, root, xds, pki); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
	}
	const rootInfo, xdsInfo, pkiInfo = `INFO msg=line`, `INFO msg=line component=xds proxy=web`, `INFO msg=line component=pki`
	const rootDebug, xdsDebug, pkiDebug = `DEBUG msg=line`, `DEBUG msg=line component=xds proxy=web`, `DEBUG msg=line component=pki`
	want("at the start", rootInfo, xdsInfo, pkiInfo)
	set(Change{Levels: []Component{{"xds", "debug"}}})
	want("one component", rootInfo, xdsDebug, xdsInfo, pkiInfo)
	if got, want := levels.List(), []Component{{Default, "info"}, {"pki", "info"}, {"xds", "debug"}}; !slices.Equal(got, want) {
		t.Errorf("the list is %v, want %v", got, want)
	}
	// A nested component counts instead of the outer one.
	set(Change{Levels: []Component{{"pki", "error"}}})
	if got := logged(t, &buf, pki.With("component", "attest")); len(got) != 1 {
		t.Errorf("a nested component logs %q", got)
	}
	// Attributes in a group name no component.
	if got := logged(t, &buf, pki.WithGroup("peer").With("component", "xds")); len(got) != 0 {
		t.Errorf("a group chose the component: %q", got)
	}
	set(Change{Levels: []Component{{"", "warn"}, {Default, "debug"}}})
	want("all but one", rootDebug, rootInfo)
	if got := logged(t, &buf, root.With("component", "late")); len(got) != 0 {
		t.Errorf("a component that begins later logs %q", got)
	}
	set(Change{Reset: true, Levels: []Component{{"pki", "debug"}}})
	want("after a reset", rootInfo, xdsInfo, pkiDebug, pkiInfo)
	for _, wrong := range []Change{
		{Reset: true, Levels: []Component{{"pki", "error"}, {"kpi", "debug"}}},
		{Reset: true, Levels: []Component{{"pki", "error"}, {"xds", "loud"}}},
	} {
		if err := levels.Set(wrong); err == nil {
			t.Errorf("%v was taken", wrong)
		}
	}
	want("after wrong changes", rootInfo, xdsInfo, pkiDebug, pkiInfo)
}

// BenchmarkDisabled is the cost of a line that is not written.
func BenchmarkDisabled(b *testing.B) {
	log := slog.New(New(slog.LevelInfo).Handler(slog.DiscardHandler)).With("component", "xds")
	for b.Loop() {
		log.Debug("line")
	}
}
