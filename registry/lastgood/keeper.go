package lastgood

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// retryAfter is when the keeper tries again after the disk refused.
const retryAfter = 5 * time.Second

// Keeper has the texts of a Set on disk. It writes in a goroutine of its own, so
// that a slow disk delays no fragment. A crash before it has written costs the
// last good version of what has changed since, never an older one.
type Keeper struct {
	// Constant after NewKeeper.
	store Store
	await bool
	log   *slog.Logger

	doorbell chan struct{}
	settled  atomic.Pointer[settlement] // what the receiver said last, or nil
	told     chan struct{}              // rings when it said something

	mu      sync.Mutex // guards all following fields
	waiting map[int][]Entry
	mark    time.Time // to write, or zero
	errors  uint64
	err     string // of the last attempt, or empty
	held    bool   // nothing is offered, because removals are held back
}

// settlement is what became of a fragment.
type settlement struct {
	fragment *mesh.Fragment
	held     int
}

// KeeperConfig says what a Keeper does.
type KeeperConfig struct {
	// Dir is the directory; empty means that nothing is kept.
	Dir string
	// AwaitSettled makes it wait for [Keeper.Settled]: for a receiver that may
	// hold removals back.
	AwaitSettled bool
	// Logger is required.
	Logger *slog.Logger
}

// NewKeeper makes a Keeper. It touches no file.
func NewKeeper(c KeeperConfig) *Keeper {
	return &Keeper{
		store: Store{c.Dir}, await: c.AwaitSettled, log: c.Logger,
		doorbell: make(chan struct{}, 1), told: make(chan struct{}, 1), waiting: map[int][]Entry{},
	}
}

// Dir is the directory, or empty.
func (k *Keeper) Dir() string { return k.store.dir }

// Open makes the directory, and clears away what a crash left in it.
func (k *Keeper) Open() error {
	if k.store.dir == "" {
		return nil
	}
	return k.store.open()
}

// Load is all that the directory has, and what [Keeper.Mark] said last, or zero.
// What is damaged of it is told by the error and not in the list.
func (k *Keeper) Load() (list []Entry, read time.Time, err error) {
	if k.store.dir == "" {
		return nil, time.Time{}, nil
	}
	list, err = k.store.Load()
	read, markErr := k.store.loadMark()
	return list, read, errors.Join(err, markErr)
}

// Mark keeps when everything was last read, also where that is nothing.
func (k *Keeper) Mark(read time.Time) {
	if k.store.dir == "" {
		return
	}
	k.mu.Lock()
	k.mark = read
	k.mu.Unlock()
	k.ring()
}

func (k *Keeper) ring() {
	select {
	case k.doorbell <- struct{}{}:
	default:
	}
}

// LostFault tells people what Load did.
func (k *Keeper) LostFault(source string, err error) manifest.Fault {
	k.log.Error("state directory is damaged, last good versions are lost", "err", err)
	return manifest.Fault{
		Origin: &mesh.Origin{Source: source, Path: k.store.dir}, Code: CodeState, Severity: manifest.Error,
		Message: fmt.Sprintf("last good versions are lost: %v", err),
	}
}

// Settled says that the receiver has judged a fragment, and how many of its
// removals it holds back. Until none is held the directory keeps what was there
// before: a restart shows it again.
func (k *Keeper) Settled(reading *mesh.Fragment, held int) {
	k.settled.Store(&settlement{reading, held})
	select {
	case k.told <- struct{}{}:
	default:
	}
}

// Told rings when the receiver has said something.
func (k *Keeper) Told() <-chan struct{} { return k.told }

// Held is how many removals of the fragment the receiver holds back; zero where
// it has not judged it yet.
func (k *Keeper) Held(f *mesh.Fragment) int {
	if st := k.settled.Load(); st != nil && st.fragment == f {
		return st.held
	}
	return 0
}

// Save hands over what has changed in a set since the last time. Where it is to
// wait for a receiver, that is what was last assembled and nothing newer, once the
// receiver of last, the fragment that was sent, has settled it.
func (k *Keeper) Save(s *Set, last *mesh.Fragment) {
	if len(s.unsaved) == 0 {
		return
	}
	if k.await {
		unjudged := len(s.touched) > 0 || s.made.Fragment != last
		st := k.settled.Load()
		k.withhold(st != nil && st.held > 0)
		if unjudged || st == nil || st.fragment != last || st.held > 0 {
			return
		}
	}
	if k.store.dir != "" {
		k.offer(s.entries(s.unsaved))
	}
	clear(s.unsaved)
}

// withhold notes that what changed since is not kept while removals are held.
func (k *Keeper) withhold(held bool) {
	k.mu.Lock()
	k.held = held
	k.mu.Unlock()
}

// offer hands over whole shards; a later one replaces one not yet written.
func (k *Keeper) offer(list map[int][]Entry) {
	if len(list) == 0 {
		return
	}
	k.mu.Lock()
	maps.Copy(k.waiting, list)
	k.mu.Unlock()
	k.ring()
}

// Run writes until ctx is done, and then what is waiting still: it is to end
// after who calls Save.
func (k *Keeper) Run(ctx context.Context) {
	if k.store.dir == "" {
		<-ctx.Done()
		return
	}
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
func (k *Keeper) flush() {
	k.mu.Lock()
	list, mark := k.waiting, k.mark
	k.waiting, k.mark = map[int][]Entry{}, time.Time{}
	k.mu.Unlock()
	if len(list) == 0 && mark.IsZero() {
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
	if len(errs) == 0 && !mark.IsZero() { // it speaks of all that is written
		if err := k.store.saveMark(mark); err != nil {
			errs = append(errs, err)
		} else {
			mark = time.Time{}
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for shard, entries := range list {
		if _, newer := k.waiting[shard]; !newer {
			k.waiting[shard] = entries
		}
	}
	if k.mark.IsZero() {
		k.mark = mark
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

// Trouble is the number of failed attempts, and why the directory does not have
// what is in force.
func (k *Keeper) Trouble() (failed uint64, reason string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == "" && k.held {
		return k.errors, "removals are held back: what changed since is not on disk until they are released"
	}
	return k.errors, k.err
}

// entries are the shards given, whole.
func (s *Set) entries(shards map[int]bool) map[int][]Entry {
	list := map[int][]Entry{}
	for shard := range shards {
		list[shard] = []Entry{}
	}
	for _, t := range s.order {
		if _, wanted := list[t.shard]; wanted && len(t.V.live)+len(t.V.kept) > 0 {
			list[t.shard] = append(list[t.shard], t.entry())
		}
	}
	return list
}

func (t *Text) entry() Entry {
	e := Entry{Root: t.Root, Rel: t.Rel, Contents: [][]byte{t.V.blob.Content}}
	at := map[*Blob]int{t.V.blob: 0}
	for _, k := range t.V.keptList() {
		i, ok := at[k.src]
		if !ok {
			i = len(e.Contents)
			at[k.src] = i
			e.Contents = append(e.Contents, k.src.Content)
		}
		e.Kept = append(e.Kept, EntryKept{Key: k.Key, Content: i, Since: k.since})
	}
	return e
}

// Revive decodes the contents of an entry and makes of them what the text gave.
// It gives nothing where its Live and Kept are zero.
func (e *Entry) Revive(decode func(b *Blob) Decoded, now time.Time) *Version {
	blobs := make([]*Blob, len(e.Contents))
	goods := make([]*Version, len(e.Contents))
	text := make([]Decoded, len(e.Contents))
	for i, content := range e.Contents {
		blobs[i] = NewBlob(content)
		text[i] = decode(blobs[i])
		goods[i] = Judge(nil, blobs[i], text[i], now)
	}
	before := &Version{kept: map[mesh.Key]keptGood{}}
	for _, k := range e.Kept {
		if g := goods[k.Content].live[k.Key]; g != nil {
			before.kept[k.Key] = keptGood{good: g, since: k.Since}
		}
	}
	return Judge(before, blobs[0], text[0], now)
}
