package lastgood

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/persist"
)

// Persister keeps the texts of a Set on disk. A crash before a write loses the last good
// versions of what changed since the last one, and nothing older.
type Persister struct {
	// Constant after NewKeeper.
	store    Store
	await    bool
	log      *slog.Logger
	writer   *persist.Writer[[]Entry, time.Time]
	decision *persist.Decision
}

// PersisterConfig configures a Persister.
type PersisterConfig struct {
	// Dir is the directory; empty means that nothing is saved.
	Dir string
	// AwaitDecision makes it wait for [Persister.Decided]: for a receiver that may hold
	// removals.
	AwaitDecision bool
	// Logger is required.
	Logger *slog.Logger
}

// NewPersister makes a Persister. It touches no file.
func NewPersister(c PersisterConfig) *Persister {
	store := Store{c.Dir}
	return &Persister{
		store: store, await: c.AwaitDecision, log: c.Logger, decision: persist.NewDecision(),
		writer: persist.New(persist.Config[[]Entry, time.Time]{
			What: "last good versions", Save: store.save, SaveMark: store.saveMark, Logger: c.Logger,
		}),
	}
}

// Dir is the directory, or empty.
func (k *Persister) Dir() string { return k.store.dir }

// Open makes the directory, and removes temporary files of a crash.
func (k *Persister) Open() error {
	if k.store.dir == "" {
		return nil
	}
	return k.store.open()
}

// Load returns everything in the directory, and the last time of [Persister.Mark], or zero.
// Damaged parts are in the error and not in the list.
func (k *Persister) Load() (list []Entry, read time.Time, err error) {
	if k.store.dir == "" {
		return nil, time.Time{}, nil
	}
	list, err = k.store.Load()
	read, markErr := k.store.loadMark()
	return list, read, errors.Join(err, markErr)
}

// Mark saves when everything was last read, even if that was nothing.
func (k *Persister) Mark(read time.Time) {
	if k.store.dir != "" {
		k.writer.Offer(nil, &read)
	}
}

// LostFault is the fault to report for an error of Load.
func (k *Persister) LostFault(source string, err error) manifest.Fault {
	k.log.Error("state directory is damaged, last good versions are lost", "err", err)
	return manifest.Fault{
		Origin: &mesh.Origin{Source: source, Path: k.store.dir}, Code: CodeState, Severity: manifest.Error,
		Message: fmt.Sprintf("last good versions are lost: %v", err),
	}
}

// Decided records that the guard has decided about a fragment, and how many of its removals it
// holds. While some are held the directory keeps the earlier state, so that a restart sends it
// again.
func (k *Persister) Decided(reading *mesh.Fragment, held int) { k.decision.Decided(reading, held) }

// DecisionChanged signals that the guard has decided again.
func (k *Persister) DecisionChanged() <-chan struct{} { return k.decision.Changed() }

// Held is how many removals of the fragment the guard holds; zero if it has not decided yet.
func (k *Persister) Held(f *mesh.Fragment) int {
	if decided, held := k.decision.Last(); decided == f {
		return held
	}
	return 0
}

// Save writes the texts of a set that changed since the last call. If it awaits decisions, it
// saves only what was last assembled, after the guard has decided about last, the fragment
// that was sent, and holds nothing.
func (k *Persister) Save(s *Set, last *mesh.Fragment) {
	if len(s.unsaved) == 0 {
		return
	}
	if k.await {
		undecided := len(s.touched) > 0 || s.made.Fragment != last
		decided, held := k.decision.Last()
		k.withhold(held > 0)
		if undecided || decided == nil || decided != last || held > 0 {
			return
		}
	}
	if k.store.dir != "" {
		k.writer.Offer(s.entries(s.unsaved), nil)
	}
	clear(s.unsaved)
}

// withhold records whether changes are not saved because removals are held.
func (k *Persister) withhold(held bool) {
	reason := ""
	if held {
		reason = "removals are on hold: what changed since is not on disk until they are released"
	}
	k.writer.Withhold(reason)
}

// Run writes until ctx is done, and then what is pending. It must end after the last Save.
func (k *Persister) Run(ctx context.Context) {
	if k.store.dir == "" {
		<-ctx.Done()
		return
	}
	k.writer.Run(ctx)
}

// Trouble is the number of failed tries, and why the state on disk is outdated.
func (k *Persister) Trouble() (failed uint64, reason string) { return k.writer.Trouble() }

// entries are the shards given, whole.
func (s *Set) entries(shards map[int]bool) map[int][]Entry {
	list := map[int][]Entry{}
	for shard := range shards {
		list[shard] = []Entry{}
	}
	for _, t := range s.order {
		if _, wanted := list[t.shard]; wanted && !t.V.Empty() {
			list[t.shard] = append(list[t.shard], t.entry())
		}
	}
	return list
}

func (t *Text) entry() Entry {
	e := Entry{Root: t.Root, Rel: t.Rel, Contents: [][]byte{t.V.blob.Content}, CreateIndex: t.CreateIndex}
	at := map[*Blob]int{t.V.blob: 0}
	index := func(b *Blob) int {
		i, ok := at[b]
		if !ok {
			i = len(e.Contents)
			at[b] = i
			e.Contents = append(e.Contents, b.Content)
		}
		return i
	}
	e.Whole = index(t.V.whole)
	keep := func(k keptGood) {
		for _, src := range k.src {
			i := index(src)
			e.Kept = append(e.Kept, EntryKept{Key: k.Key, Content: i, Since: k.since})
		}
	}
	for _, k := range t.V.keptList() {
		keep(k)
	}
	for _, key := range t.V.keys() {
		if g := t.V.live[key]; g != nil && (t.V.heldBack(key) || g.src[0] != t.V.blob) {
			keep(keptGood{good: g, since: g.since})
		}
	}
	for _, key := range keysOf(t.V.denied) {
		if g := t.V.denied[key]; g.src[0] != t.V.blob {
			keep(keptGood{good: g, since: g.since})
		}
	}
	return e
}

// Revive decodes the contents of an entry into the version that the text had. It returns
// nothing if it is Empty.
func (e *Entry) Revive(decode func(b *Blob) Decoded, now time.Time) *Version {
	blobs := make([]*Blob, len(e.Contents))
	goods := make([]*Version, len(e.Contents))
	text := make([]Decoded, len(e.Contents))
	for i, content := range e.Contents {
		blobs[i] = NewBlob(content)
		text[i] = decode(blobs[i])
		goods[i] = NextVersion(nil, blobs[i], text[i], now)
	}
	before := &Version{blob: blobs[0], whole: blobs[e.Whole], kept: map[mesh.Key]keptGood{}, denied: map[mesh.Key]*good{}}
	for _, k := range e.Kept {
		if g := goods[k.Content].live[k.Key]; g != nil {
			before.kept[k.Key] = keptGood{good: g, since: k.Since}
		} else if g := goods[k.Content].denied[k.Key]; g != nil {
			before.denied[k.Key] = g
		}
	}
	return NextVersion(before, blobs[0], text[0], now)
}
