package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// keysRoot is where the texts of a prefix of Consul's key-value store are in the state directory, whatever
// datacenter, partition and namespace they are of.
func keysRoot(prefix string) string { return "\x00" + prefix }

// savedPlace is a text in a state directory.
type savedPlace struct{ root, rel string }

// savedVersions reads the last good versions in the state directory of a server, which may run. It changes
// nothing there.
func savedVersions(dir string) (map[savedPlace]lastgood.Entry, error) {
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return nil, fmt.Errorf("--state-dir %q: %w", dir, rootCause(err))
	case !info.IsDir():
		return nil, fmt.Errorf("--state-dir %q: it is not a directory", dir)
	}
	out := map[savedPlace]lastgood.Entry{}
	for _, kind := range []string{"files", "consul-kv"} {
		sources, err := os.ReadDir(filepath.Join(dir, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("--state-dir: %w", err)
		}
		for _, s := range sources {
			entries, err := lastgood.NewStore(filepath.Join(dir, kind, s.Name())).Load()
			if err != nil {
				return nil, fmt.Errorf("--state-dir: %w", err)
			}
			for _, e := range entries {
				if i := strings.LastIndexByte(e.Root, 0); i >= 0 {
					e.Root = keysRoot(e.Root[i+1:])
				}
				out[savedPlace{e.Root, e.Rel}] = e
			}
		}
	}
	return out, nil
}

// restore takes the saved versions of objects that are broken now, as the server does at its start, and limits
// sources as it does. The faults are those of the result.
func (t *tree) restore(entries map[savedPlace]lastgood.Entry) {
	now := time.Now()
	sets := map[*mesh.Binding]*lastgood.Set{nil: lastgood.NewSet(source, lastgood.Words{Text: "text", Name: "name"})}
	for _, b := range t.bindings {
		sets[b] = lastgood.NewSet(source, lastgood.Words{Text: "text", Name: "name"})
		sets[b].LimitExpansion(t.maxExpansion)
	}
	for i, x := range t.texts {
		decode := func(b *lastgood.Blob) lastgood.Decoded {
			d := lastgood.Manifests(x.opts, x.path, b.Content)
			d.End = lastgood.EndOf(x.opts.Source, x.path, b.Content)
			return d
		}
		var old *lastgood.Version
		if e, saved := entries[savedPlace{x.root, x.rel}]; saved {
			old = e.Revive(decode, now)
		}
		blob := lastgood.NewBlob(x.content)
		sets[x.binding].Put(&lastgood.Text{Path: x.path, Order: i, Root: x.root, Rel: x.rel, V: lastgood.NextVersion(old, blob, decode(blob), now)})
	}
	t.saved, t.Faults, t.needed = map[*mesh.Binding]*mesh.Fragment{}, nil, 0
	for _, b := range append([]*mesh.Binding{nil}, t.bindings...) {
		sets[b].Yield()
		made := sets[b].Assemble()
		t.saved[b] = made.Fragment
		t.Faults = append(t.Faults, made.Faults...)
		t.needed = max(t.needed, sets[b].NeededLimit())
	}
	t.Faults = append(t.Faults, t.savedFaults(entries)...)
	slices.SortStableFunc(t.Faults, lastgood.CompareFaults)
}

// savedFaults are those of saved versions that are in force on the server, because the text is broken now, and that
// this release refuses.
func (t *tree) savedFaults(entries map[savedPlace]lastgood.Entry) []manifest.Fault {
	var out []manifest.Fault
	for _, x := range t.texts {
		e, saved := entries[savedPlace{x.root, x.rel}]
		if !saved {
			continue
		}
		now := lastgood.Manifests(x.opts, x.path, x.content)
		broken := func(key mesh.Key) bool {
			i := slices.IndexFunc(now.Objects, func(o lastgood.Object) bool { return o.Key == key })
			return i >= 0 && now.Objects[i].Fragment == nil || i < 0 && (now.Unparsable || now.Open)
		}
		for i, content := range e.Contents {
			if bytes.Equal(content, x.content) {
				continue // its faults are known
			}
			for _, f := range lastgood.Manifests(x.opts, x.path, content).Faults {
				inForce := i == 0 || slices.ContainsFunc(e.Kept, func(k lastgood.EntryKept) bool { return k.Content == i && k.Key == f.Key })
				if isLimit(f) && inForce && broken(f.Key) {
					out = append(out, f)
				}
			}
		}
	}
	return out
}

// isLimit reports whether an object is refused by a limit that this release has first.
func isLimit(f manifest.Fault) bool {
	return slices.Contains(codes.Limits(), string(f.Code))
}
