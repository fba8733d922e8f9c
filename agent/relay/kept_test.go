package relay

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// listenerOf is a listener that an Envoy rejects if its body says so.
func listenerOf(version, body string) *stream.Resource {
	return stream.NewResource(stream.ListenerType, stream.Resource{Name: "inbound", Version: version, Body: []byte(body)})
}

// storedAs is a state that a release accepted.
func storedAs(release string, l *stream.Resource) *state {
	return &state{
		EnvoyVersion: release + ".0", Generation: "1", SavedAt: time.Unix(1000, 0),
		Wants: map[stream.TypeURL]stream.Want{}, resources: resources{
			stream.ClusterType: stream.NewSet(nil), stream.ListenerType: stream.NewSet([]*stream.Resource{l}),
		},
	}
}

// rolledBack is a core with the state of Envoy 1.40, to which an Envoy 1.36 connects.
func rolledBack(tb testing.TB, stored *stream.Resource, kept *state) *rig {
	tb.Helper()
	g := &rig{tb: tb, server: stream.NewServer(stream.ServerConfig{})}
	g.start(storedAs("1.40", stored))
	g.core.node = withVersion(g, 36)
	g.join(36)
	g.peer.kept = kept
	return g
}

func withVersion(g *rig, minor uint32) *corev3.Node {
	n := proto.CloneOf(g.core.node)
	n.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: minor},
	}}
	return n
}

// TestRolledBackEnvoyGetsItsOwnListeners: what it rejects of a later release is replaced by what
// its release accepted; what it accepts stays.
func TestRolledBackEnvoyGetsItsOwnListeners(t *testing.T) {
	t.Parallel()
	k := key{stream.ListenerType, "inbound"}
	newer, older := listenerOf("new", "new "+rejectedMark), listenerOf("old", "old")
	t.Run("rejected", func(t *testing.T) {
		t.Parallel()
		g := rolledBack(t, newer, storedAs("1.36", older))
		g.run()
		if got := g.has[k]; got == nil || got.Version != "old" {
			t.Errorf("Envoy has %v", got)
		}
		s := g.core.r.Status()
		if len(s.Fallbacks) != 1 || s.Fallbacks[0].By != "1.40" || !s.Fallbacks[0].AcceptedAt.Equal(time.Unix(1000, 0)) || len(s.Rejected) != 0 {
			t.Errorf("status: %+v, %+v", s.Fallbacks, s.Rejected)
		}
		for _, s := range g.stored { // what is stored as accepted was accepted
			if l := s.resources[k.url].Get("inbound"); s.release() == "1.36" && l != nil && l.Version == "new" {
				t.Error("a state that Envoy rejects was stored as accepted")
			}
		}
		last := g.stored[len(g.stored)-1]
		if last.release() != "1.36" || last.resources[k.url].Get("inbound").Version != "old" {
			t.Errorf("stored: %s, %v", last.EnvoyVersion, last.resources[k.url].Get("inbound"))
		}
		// The control plane has its form.
		g.reconnect()
		g.serve(resources{stream.ClusterType: stream.NewSet(nil), stream.ListenerType: stream.NewSet([]*stream.Resource{listenerOf("newest", "newest")})})
		if got, s := g.has[k], g.core.r.Status(); got.Version != "newest" || len(s.Fallbacks) != 0 {
			t.Errorf("after the control plane came back: %v, %+v", got, s.Fallbacks)
		}
	})
	t.Run("accepted", func(t *testing.T) {
		t.Parallel()
		g := rolledBack(t, listenerOf("new", "fine"), storedAs("1.36", older))
		g.run()
		if got, s := g.has[k], g.core.r.Status(); got == nil || got.Version != "new" || len(s.Fallbacks) != 0 {
			t.Errorf("Envoy has %v, %+v", got, s.Fallbacks)
		}
	})
	for name, kept := range map[string]*state{"nothing_kept": nil, "kept_is_rejected_too": storedAs("1.36", listenerOf("old", "old "+rejectedMark))} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := rolledBack(t, newer, kept)
			g.run()
			s := g.core.r.Status()
			if g.has[k] != nil || len(s.Fallbacks) != 0 || len(s.Rejected) != 1 || s.Envoy != bootstrap.EnvoyRejecting ||
				!strings.Contains(s.Rejected[0].Reason, "run Envoy 1.40 again") {
				t.Errorf("Envoy has %v; %s, %+v, %+v", g.has[k], s.Envoy, s.Fallbacks, s.Rejected)
			}
			// The same again is reported to the control plane; another is tried.
			g.reconnect()
			g.serve(resources{stream.ClusterType: stream.NewSet(nil), stream.ListenerType: stream.NewSet([]*stream.Resource{newer})})
			if got := g.rejected(); !slices.Contains(got, "inbound") {
				t.Errorf("rejected upstream: %q", got)
			}
			g.serve(resources{stream.ClusterType: stream.NewSet(nil), stream.ListenerType: stream.NewSet([]*stream.Resource{listenerOf("good", "good")})})
			if got := g.has[k]; got == nil || got.Version != "good" {
				t.Errorf("Envoy has %v", got)
			}
		})
	}
	t.Run("same_release", func(t *testing.T) {
		t.Parallel()
		g := &rig{tb: t, server: stream.NewServer(stream.ServerConfig{})}
		g.start(storedAs("1.40", newer))
		g.core.node = withVersion(g, 40)
		g.join(40)
		g.peer.kept = storedAs("1.40", older)
		g.run()
		// Its reason is on the host, and may go.
		if got := g.core.accepted[k.url].Get("inbound"); got == nil || got.Version != "new" {
			t.Errorf("accepted: %v", got)
		}
	})
}

// TestStoresOfOtherReleasesAreKept: the state of a release is kept when another one's replaces
// it, of the three that were there last.
func TestStoresOfOtherReleasesAreKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "accepted.xds")
	w := &writer{path: path}
	write := func(release, version string) {
		t.Helper()
		if _, err := w.write(storedAs(release, listenerOf(version, version))); err != nil {
			t.Fatal(err)
		}
	}
	files := func() (out []string) {
		t.Helper()
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			s, err := readStore(filepath.Join(dir, e.Name()))
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, fmt.Sprintf("%s:%s", strings.TrimSuffix(e.Name(), ".xds"), s.resources[stream.ListenerType].Get("inbound").Version))
		}
		return out
	}
	want := func(list ...string) {
		t.Helper()
		if got := files(); !slices.Equal(got, list) {
			t.Errorf("files %q, want %q", got, list)
		}
	}
	write("1.36", "a")
	write("1.36", "b")
	want("accepted:b")
	write("1.37", "c")
	want("accepted-1.36:b", "accepted:c")
	write("1.38", "d")
	write("1.39", "e")
	want("accepted-1.36:b", "accepted-1.37:c", "accepted-1.38:d", "accepted:e")
	for i, release := range []string{"1.36", "1.37", "1.38"} { // as time passes
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(keptFile(path, release), at, at); err != nil {
			t.Fatal(err)
		}
	}
	write("1.40", "f")
	want("accepted-1.37:c", "accepted-1.38:d", "accepted-1.39:e", "accepted:f")
	write("1.38", "g")
	want("accepted-1.38:d", "accepted-1.39:e", "accepted-1.40:f", "accepted:g")
	write("1.40", "h")
	want("accepted-1.38:g", "accepted-1.39:e", "accepted-1.40:f", "accepted:h")
}

// TestKeptListenerFindsWhatItNames: routes and extensions that only the kept state has come with
// its listener. Rules that are stored stay the newest.
func TestKeptListenerFindsWhatItNames(t *testing.T) {
	t.Parallel()
	for name, newest := range map[string]string{"rules_are_stored": "deny", "rules_are_kept_only": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shop := newShop(t)
			kept := storedAs("1.36", listenerOf("old", "old"))
			kept.resources = resourcesOf(t, shop.ruled(map[string]string{"x": "allow"}))
			want := kept.resources[stream.ExtensionType].Get("x")
			stored := storedAs("1.40", stream.NewResource(stream.ListenerType, stream.Resource{Name: "in", Version: "new", Body: []byte(rejectedMark)}))
			if newest != "" {
				of := resourcesOf(t, shop.ruled(map[string]string{"x": newest}))[stream.ExtensionType]
				stored.resources[stream.ExtensionType], want = of, of.Get("x")
				stored.Wants[stream.ExtensionType] = stream.Want{Names: []string{"x"}}
			}
			g := &rig{tb: t, server: stream.NewServer(stream.ServerConfig{})}
			g.start(stored)
			g.core.node = withVersion(g, 36)
			g.join(36)
			g.peer.kept = kept
			g.lateNames = true // a listener may be accepted long before
			g.run()
			g.lateNames = false
			g.run()
			for _, k := range []key{{stream.ListenerType, "in"}, {stream.RouteType, "routes"}} {
				if g.has[k] == nil {
					t.Errorf("Envoy lacks %s %s", k.url.Short(), k.name)
				}
			}
			if got := g.has[extension("x")]; got == nil || got.Version != want.Version {
				t.Errorf("Envoy has the rules %v, want %v", got, want)
			}
			g.checkStored()
		})
	}
}
