package files

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// retryAfter is when the keeper tries again after the disk refused.
const retryAfter = 5 * time.Second

// keeper writes the state in a goroutine of its own, so that a slow disk delays
// no fragment. A crash before it has written costs the last good version of
// what has changed since, never an older one.
type keeper struct {
	store    store
	log      *slog.Logger
	doorbell chan struct{}

	mu      sync.Mutex // guards all following fields
	waiting map[int][]entry
	errors  uint64
	err     string // of the last attempt, or empty
}

func newKeeper(s store, log *slog.Logger) *keeper {
	return &keeper{store: s, log: log, doorbell: make(chan struct{}, 1), waiting: map[int][]entry{}}
}

// offer hands over whole shards; a later one replaces one not yet written.
func (k *keeper) offer(list map[int][]entry) {
	if len(list) == 0 {
		return
	}
	k.mu.Lock()
	maps.Copy(k.waiting, list)
	k.mu.Unlock()
	select {
	case k.doorbell <- struct{}{}:
	default:
	}
}

// run writes until ctx is done, and then what is waiting still.
func (k *keeper) run(ctx context.Context) {
	retry := time.NewTicker(retryAfter)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			k.flush()
			return
		case <-k.doorbell:
		case <-retry.C:
		}
		k.flush()
	}
}

// flush writes all that waits; what fails waits on.
func (k *keeper) flush() {
	k.mu.Lock()
	list := k.waiting
	k.waiting = map[int][]entry{}
	k.mu.Unlock()
	if len(list) == 0 {
		return
	}
	var errs []error
	for shard, entries := range list {
		if err := k.store.save(shard, entries); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(list, shard)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for shard, entries := range list {
		if _, newer := k.waiting[shard]; !newer {
			k.waiting[shard] = entries
		}
	}
	was := k.err
	k.err = ""
	if err := errors.Join(errs...); err != nil {
		k.errors++
		k.err = err.Error()
	}
	switch {
	case k.err != "" && was == "":
		k.log.Error("last good versions cannot be saved", "err", k.err)
	case k.err == "" && was != "":
		k.log.Info("last good versions are saved again")
	}
}

// trouble is the number of failed attempts and the present one's error.
func (k *keeper) trouble() (failed uint64, reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.errors, k.err
}

// entries are the shards that hold the paths given, whole.
func (t *tree) entries(paths map[string]bool) map[int][]entry {
	list := map[int][]entry{}
	for path := range paths {
		for _, r := range t.roots {
			if rel, err := filepath.Rel(r.Path, path); err == nil && within(r.Path, path) {
				list[shardOf(r.abs, rel)] = []entry{}
			}
		}
	}
	for _, f := range t.order {
		if _, wanted := list[f.shard]; !wanted || len(f.v.live)+len(f.v.kept) == 0 {
			continue
		}
		if rel, err := filepath.Rel(f.root.Path, f.path); err == nil {
			list[f.shard] = append(list[f.shard], f.entry(rel))
		}
	}
	return list
}

func (f *file) entry(rel string) entry {
	e := entry{Root: f.root.abs, Rel: rel, Contents: [][]byte{f.v.blob.content}}
	at := map[*blob]int{f.v.blob: 0}
	for _, k := range f.v.keptList() {
		i, ok := at[k.src]
		if !ok {
			i = len(e.Contents)
			at[k.src] = i
			e.Contents = append(e.Contents, k.src.content)
		}
		e.Kept = append(e.Kept, entryKept{Key: k.Key, Content: i, Since: k.since})
	}
	return e
}

// restore takes what the state directory had of the present roots. Entries of
// other roots go when their shard is written next.
func (t *tree) restore(list []entry, now time.Time) {
	for _, e := range list {
		for _, r := range t.roots {
			if r.abs != e.Root || !filepath.IsLocal(e.Rel) && e.Rel != "." {
				continue
			}
			r.stored = true
			path := filepath.Join(r.Path, e.Rel)
			if v := r.revive(&t.cfg, path, e, now); len(v.live)+len(v.kept) > 0 {
				t.add(&file{path: path, root: r, v: v, suspect: true})
			}
		}
	}
	t.yieldKept()
}

// revive decodes the texts of an entry. A file has no sig until it is seen, so
// the first look reads it and finds that its content is the same, or not.
func (r *root) revive(c *Config, path string, e entry, now time.Time) *version {
	blobs := make([]*blob, len(e.Contents))
	goods := make([]*version, len(e.Contents))
	text := make([]Decoded, len(e.Contents))
	for i, content := range e.Contents {
		blobs[i] = newBlob(content)
		text[i] = r.decode(c, path, blobs[i])
		goods[i] = judge(nil, blobs[i], text[i], now)
	}
	before := &version{kept: map[mesh.Key]keptGood{}}
	for _, k := range e.Kept {
		if g := goods[k.Content].live[k.Key]; g != nil {
			before.kept[k.Key] = keptGood{good: g, since: k.Since}
		}
	}
	return judge(before, blobs[0], text[0], now)
}
