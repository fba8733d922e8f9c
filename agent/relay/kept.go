package relay

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

// The control plane sends some listeners in a form that depends on the release of Envoy. So an
// Envoy that is rolled back may reject the listeners that its successor accepted, and while the
// control plane is away nobody has others. Therefore the last state of each release, counted
// without its patch, is kept beside the store. A stored listener that Envoy rejects is replaced by
// the one that its own release accepted last. All else stays what was accepted last: rules of
// requests too, which travel by themselves.

// maxKept is how many states of other releases are kept: the newest.
const maxKept = 3

// keptFile is where the state of a release is kept.
func keptFile(store, release string) string {
	ext := filepath.Ext(store)
	return strings.TrimSuffix(store, ext) + "-" + release + ext
}

// releaseOf is a version without its patch, as in "1.40".
func releaseOf(v bootstrap.Version) string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// release is the release that accepted a state; empty if it is not known.
func (s *state) release() string {
	var major, minor, patch uint32
	if _, err := fmt.Sscanf(s.EnvoyVersion, "%d.%d.%d", &major, &minor, &patch); err != nil || major == 0 {
		return ""
	}
	return releaseOf(bootstrap.Version{Major: major, Minor: minor})
}

// keepStore gives the file of the store a second name, before the state of another release
// replaces it. Of the others only the newest stay.
func keepStore(store, release string) error {
	to, tmp := keptFile(store, release), keptFile(store, release)+".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("keeping the configuration of Envoy %s: %w", release, err)
	}
	err := os.Link(store, tmp)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		now := time.Now()
		err = errors.Join(os.Chtimes(tmp, now, now), os.Rename(tmp, to))
	}
	if err != nil {
		return fmt.Errorf("keeping the configuration of Envoy %s: %w", release, err)
	}
	entries, err := os.ReadDir(filepath.Dir(store))
	if err != nil {
		return fmt.Errorf("keeping the configuration of Envoy %s: %w", release, err)
	}
	prefix := filepath.Base(keptFile(store, ""))
	prefix = strings.TrimSuffix(prefix, filepath.Ext(store))
	var names []string
	for _, e := range entries {
		if name := e.Name(); strings.HasPrefix(name, prefix) && strings.HasSuffix(name, filepath.Ext(store)) {
			names = append(names, filepath.Join(filepath.Dir(store), name))
		}
	}
	age := map[string]time.Time{}
	for _, name := range names {
		if fi, err := os.Lstat(name); err == nil {
			age[name] = fi.ModTime()
		}
	}
	slices.SortFunc(names, func(a, b string) int { return age[b].Compare(age[a]) })
	for _, name := range names[min(maxKept, len(names)):] {
		if err := os.Remove(name); err != nil {
			return fmt.Errorf("keeping the configuration of Envoy %s: %w", release, err)
		}
	}
	return nil
}

// kept is the state that Envoys of a release accepted last, before others came; nil if there is
// none that can be used.
func (r *Relay) kept(v bootstrap.Version, node *corev3.Node) *state {
	if v == (bootstrap.Version{}) {
		return nil
	}
	path := keptFile(r.c.StoreFile, releaseOf(v))
	s, err := readStore(path)
	switch {
	case errors.Is(err, errNoStore):
		return nil
	case err != nil:
		r.log.Warn("the kept configuration of this release of Envoy is unusable", "path", path, "err", err)
		return nil
	case s.Who != who(node):
		return nil
	}
	return s
}

// Fallback is a listener that an Envoy got because it rejects the stored one.
type Fallback struct {
	Name string `json:"name"`
	// AcceptedAt is when Envoy's release accepted it last.
	AcceptedAt time.Time `json:"accepted_at"`
	// Reason is why the newer one was rejected, and By the release that had accepted that.
	Reason string `json:"reason"`
	By     string `json:"by"`
}

// unproven reports whether the stored listeners are those of another release than the one that
// connects, which has not answered yet. Until then the store stays as it is.
func (c *core) unproven() bool {
	return len(c.fromStore) > 0 && c.storedBy != "" && c.storedBy != releaseOf(nodeVersion(c.node))
}

// replaceRefused replaces listeners that another release accepted and the newest Envoy rejects,
// as far as its own release accepted others before. It reports whether there were any.
func (c *core) replaceRefused(p *peer, v ackState) bool {
	if !v.idle || c.storedBy == "" || c.storedBy == releaseOf(p.version) || len(c.fromStore) == 0 {
		return false
	}
	refused := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(c.fromStore)) {
		l := c.accepted[stream.ListenerType].Get(name)
		k := key{stream.ListenerType, name}
		if l == nil || slices.ContainsFunc(c.pending, func(b *batch) bool { return b.touches(k) }) {
			continue
		}
		if reason, is := v.rejection(k.url, name, l.Version); is && !stream.IsHostError(k.url, reason) {
			refused[name] = c.replace(p, l, reason)
		}
	}
	for _, url := range []stream.TypeURL{stream.RouteType, stream.ExtensionType} {
		for name := range maps.Clone(c.missing[url]) { // what an Envoy has asked for already
			c.takeKept(p, url, name)
		}
	}
	maps.DeleteFunc(c.fromStore, func(name string, _ bool) bool { return !refused[name] })
	if len(refused) > 0 && c.upstream != nil {
		c.upstream.cancel(errRefusedStore) // to the server Envoy has them already
	}
	return len(refused) > 0
}

// replace replaces a stored listener that an Envoy rejects; false means that there is none in its
// place.
func (c *core) replace(p *peer, l *stream.Resource, reason string) bool {
	k := key{stream.ListenerType, l.Name}
	var instead []*stream.Resource
	if p.kept != nil {
		if old := p.kept.resources[k.url].Get(l.Name); old != nil && old.Version != l.Version && c.fallbacks[l.Name] == (Fallback{}) {
			instead = []*stream.Resource{old}
		}
	}
	if instead == nil {
		cure := fmt.Sprintf("Envoy %s had accepted it, and no listener is stored that Envoy %s accepted: connect this host to the control plane, or run Envoy %s again",
			c.storedBy, releaseOf(p.version), c.storedBy)
		c.log.Error("Envoy rejects a stored listener", "name", l.Name, "envoy_version", p.version, "err", reason, "command", cure)
		delete(c.fallbacks, l.Name)
		c.refuse(k, l.Version, reason, cure)
		return false
	}
	gone := []string{l.Name}
	c.offered[k.url] = c.offered[k.url].With(nil, gone).With(instead, nil)
	c.accepted[k.url] = c.accepted[k.url].With(nil, gone).With(instead, nil)
	c.noteExtensions(instead, gone)
	c.client.Forget(k.url, l.Name)
	c.stale, c.dirty = true, true
	f := Fallback{Name: l.Name, AcceptedAt: p.kept.SavedAt, Reason: reason, By: c.storedBy}
	c.fallbacks[l.Name] = f
	c.log.Warn("Envoy rejects a stored listener; using the one that its release accepted last, which lacks later changes", "name", l.Name,
		"accepted_at", f.AcceptedAt, "envoy_version", p.version, "accepted_by", f.By, "err", reason)
	return true
}

// errRefusedStore ends a stream on which stored resources were listed as accepted.
var errRefusedStore = errors.New("Envoy rejects a stored listener; the server has to know that it does not have it")

// touches reports whether a batch decides about a name.
func (p *batch) touches(k key) bool {
	for of := range p.keys() {
		if of == k {
			return true
		}
	}
	return false
}

// takeKept answers a subscription of an Envoy that got listeners of an earlier state, and asks for
// what only that state has.
func (c *core) takeKept(p *peer, url stream.TypeURL, name string) {
	if p.kept == nil || len(c.fallbacks) == 0 {
		return
	}
	if _, ok := c.missing[url][name]; !ok {
		return
	}
	r := p.kept.resources[url].Get(name)
	if r == nil || url != stream.RouteType && url != stream.ExtensionType {
		return
	}
	delete(c.missing[url], name)
	c.stale, c.dirty = true, true
	if url == stream.RouteType && vhds.IsBase(r.Body) {
		var hosts []*stream.Resource
		for h := range p.kept.resources[stream.VirtualHostType].All() {
			if of, _ := (key{stream.VirtualHostType, h.Name}).routeConfig(); of == name {
				hosts = append(hosts, h)
			}
		}
		t := &routeConfig{name: name, hostsKnown: true, accepted: contents{base: r, hosts: stream.NewSet(hosts)}}
		t.offered = t.accepted
		c.routeConfigs[name] = t
		c.client.SubscribeAll(stream.VirtualHostType)
		return
	}
	one := []*stream.Resource{r}
	c.offered[url], c.accepted[url] = c.offered[url].With(one, nil), c.accepted[url].With(one, nil)
}
