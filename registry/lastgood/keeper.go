package lastgood

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/registry/keep"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Keeper has the texts of a Set on disk. A crash before it has written costs the
// last good version of what has changed since, never an older one.
type Keeper struct {
	// Constant after NewKeeper.
	store   Store
	await   bool
	log     *slog.Logger
	writer  *keep.Writer[[]Entry, time.Time]
	verdict *keep.Verdict
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
	store := Store{c.Dir}
	return &Keeper{
		store: store, await: c.AwaitSettled, log: c.Logger, verdict: keep.NewVerdict(),
		writer: keep.New(keep.Config[[]Entry, time.Time]{
			What: "last good versions", Save: store.save, SaveMark: store.saveMark, Logger: c.Logger,
		}),
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
	if k.store.dir != "" {
		k.writer.Offer(nil, &read)
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
func (k *Keeper) Settled(reading *mesh.Fragment, held int) { k.verdict.Settled(reading, held) }

// Told rings when the receiver has said something.
func (k *Keeper) Told() <-chan struct{} { return k.verdict.Told() }

// Held is how many removals of the fragment the receiver holds back; zero where
// it has not judged it yet.
func (k *Keeper) Held(f *mesh.Fragment) int {
	if judged, held := k.verdict.Last(); judged == f {
		return held
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
		judged, held := k.verdict.Last()
		k.withhold(held > 0)
		if unjudged || judged == nil || judged != last || held > 0 {
			return
		}
	}
	if k.store.dir != "" {
		k.writer.Offer(s.entries(s.unsaved), nil)
	}
	clear(s.unsaved)
}

// withhold notes whether what changed since is not kept because removals are held.
func (k *Keeper) withhold(held bool) {
	reason := ""
	if held {
		reason = "removals are on hold: what changed since is not on disk until they are released"
	}
	k.writer.Withhold(reason)
}

// Run writes until ctx is done, and then what is waiting still: it is to end
// after who calls Save.
func (k *Keeper) Run(ctx context.Context) {
	if k.store.dir == "" {
		<-ctx.Done()
		return
	}
	k.writer.Run(ctx)
}

// Trouble is the number of failed attempts, and why the directory does not have
// what is in force.
func (k *Keeper) Trouble() (failed uint64, reason string) { return k.writer.Trouble() }

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
