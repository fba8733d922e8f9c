package kv

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// keyCache has the keys as they were accepted. The loop owns it.
type keyCache struct {
	cfg  Config
	log  *slog.Logger
	root string
	set  *lastgood.Set

	// saved are the texts that the state directory had, if it is damaged; else nil.
	saved map[string]bool
	// unreadable are keys whose value cannot be read, by the path of the text.
	unreadable map[string]error
	ignored    int // keys that are no manifests
	counts     lastgood.Counters
	changed    bool // since the last fragment
}

func newKeyCache(cfg Config, log *slog.Logger) *keyCache {
	set := lastgood.NewSet(cfg.Name, lastgood.Words{Text: "key", Name: "key"})
	set.LimitExpansion(cfg.MaxExpansion)
	return &keyCache{cfg: cfg, log: log, root: cfg.root(), unreadable: map[string]error{}, set: set}
}

// restore takes what the state directory had of this prefix, and reports whether
// there was anything.
func (p *keyCache) restore(list []lastgood.Entry, now time.Time) bool {
	known := false
	for _, e := range list {
		if e.Root != p.root {
			continue
		}
		known = true
		path := PathOf(p.cfg.Prefix + "/" + e.Rel)
		v := e.Revive(func(b *lastgood.Blob) lastgood.Decoded { return p.decode(path, b, e.CreateIndex) }, now)
		if !v.Empty() {
			p.set.Restore(&lastgood.Text{Path: path, Root: p.root, Rel: e.Rel, CreateIndex: e.CreateIndex, V: v})
		}
	}
	p.set.Yield()
	return known
}

func (p *keyCache) decode(path string, b *lastgood.Blob, createIndex uint64) lastgood.Decoded {
	opts := p.cfg.options()
	opts.CreateIndex = createIndex
	return p.cfg.Decode(opts, path, b.Content)
}

// apply takes a listing, all of it at once. Values are compared, and not the index of their
// last change: Consul counts anew when its data is lost. When a key was created counts for Gateways, as
// every server reads it.
func (p *keyCache) apply(pairs api.KVPairs, now time.Time) error {
	p.counts.Scans++
	there := make(map[string]*api.KVPair, len(pairs))
	ignored := 0
	for _, kv := range pairs {
		rel, below := strings.CutPrefix(kv.Key, p.cfg.Prefix+"/")
		if !below || rel == "" || !isManifest(rel) {
			ignored++
			continue
		}
		there[rel] = kv
	}
	if len(there) > p.cfg.MaxKeys {
		return fmt.Errorf("listing %q: there are %d manifests; at most %d are read", p.cfg.Prefix+"/", len(there), p.cfg.MaxKeys)
	}
	p.ignored = ignored
	var deleted lastgood.Deletions
	for _, t := range slices.Clone(p.set.Texts()) {
		if there[t.Rel] == nil {
			p.set.Drop(t)
			p.changed = true
			deleted.Add(t.Path, t.V.Live()+t.V.Kept(), now)
		}
	}
	deleted.Log(p.log, "key deleted", "keys deleted", false, now)
	maps.DeleteFunc(p.unreadable, func(path string, _ error) bool {
		return there[strings.TrimPrefix(path, PathOf(p.cfg.Prefix+"/"))] == nil
	})
	for _, rel := range slices.Sorted(maps.Keys(there)) {
		p.accept(rel, there[rel], now)
	}
	p.set.Yield()
	return nil
}

var errTooBig = errors.New("the value is too large")

// accept takes a key, if it is another.
func (p *keyCache) accept(rel string, pair *api.KVPair, now time.Time) {
	value, created := pair.Value, pair.CreateIndex
	path := PathOf(p.cfg.Prefix + "/" + rel)
	if len(value) > MaxValueSize {
		if p.unreadable[path] == nil {
			p.log.Error("unreadable value, its last objects stay in force", "path", path, "err", errTooBig)
		}
		p.unreadable[path] = fmt.Errorf("%w: %d bytes, at most %d are read", errTooBig, len(value), MaxValueSize)
		return
	}
	delete(p.unreadable, path)
	var old *lastgood.Version
	if t := p.set.Text(path); t != nil {
		if bytes.Equal(t.V.Blob().Content, value) && t.CreateIndex == created {
			return
		}
		old = t.V
	}
	p.counts.Reads++
	b := lastgood.NewBlob(value)
	text := p.decode(path, b, created)
	p.counts.Decodes++
	p.counts.Objects += uint64(len(text.Objects))
	v := lastgood.NextVersion(old, b, text, now)
	p.set.Put(&lastgood.Text{Path: path, Root: p.root, Rel: rel, CreateIndex: created, V: v})
	p.changed = true
	lastgood.LogFaults(p.log, path, v)
	p.log.Debug("key was read", "path", path, "objects", v.Live())
}

// faults are those that no text is to blame for.
func (p *keyCache) faults() []manifest.Fault {
	list := make([]manifest.Fault, 0, len(p.unreadable))
	for path, err := range p.unreadable {
		list = append(list, p.fault(path, lastgood.CodeUnread, manifest.Error, "unreadable, its last objects stay in force: "+err.Error()))
	}
	return list
}

func (p *keyCache) fault(path string, code manifest.Code, severity manifest.Severity, message string) manifest.Fault {
	return manifest.Fault{
		Origin: &mesh.Origin{Source: p.cfg.Name, Path: path}, Code: code, Severity: severity, Message: message,
	}
}
