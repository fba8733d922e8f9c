package lastgood

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"
)

// TestSaveWaitsForTheDecision changes texts after a fragment was sent: what the
// receiver has not seen yet must not replace what a restart would show.
func TestSaveWaitsForTheDecision(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 0)
	k := NewPersister(PersisterConfig{Dir: t.TempDir(), AwaitDecision: true, Logger: slog.New(slog.DiscardHandler)})
	if err := k.Open(); err != nil {
		t.Fatal(err)
	}
	expect := func(what string, texts int) {
		t.Helper()
		k.writer.Flush()
		if list, _, err := k.Load(); err != nil || len(list) != texts {
			t.Errorf("%s: %d texts are on disk, want %d: %v", what, len(list), texts, err)
		}
	}
	w.put(0, "a.yaml", "x 1")
	sent := w.set.Assemble().Fragment
	k.Save(w.set, sent)
	expect("there is no decision", 0)
	k.Decided(sent, 0)
	k.Save(w.set, sent)
	expect("it is settled", 1)

	w.put(0, "a.yaml", "")
	k.Save(w.set, sent)
	expect("what changed since was not assembled", 1)
	next := w.set.Assemble().Fragment
	k.Save(w.set, sent)
	expect("what changed since was not sent", 1)
	k.Decided(next, 1)
	k.Save(w.set, next)
	expect("a removal is held", 1)
	if k.Held(next) != 1 || k.Held(sent) != 0 {
		t.Error("the held removals are not those of the fragment")
	}
	k.Decided(next, 0)
	k.Save(w.set, next)
	expect("nothing is held any more", 0)
}

func TestPersisterWritesPendingAtTheEnd(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 0)
	k := NewPersister(PersisterConfig{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err := k.Open(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { k.Run(ctx) })
	w.put(0, "a.yaml", "x 1\ny 1")
	k.Save(w.set, nil)
	w.put(0, "a.yaml", "x 2\ny !")
	k.Save(w.set, nil)
	read := time.Unix(1000, 0)
	k.Mark(read)
	cancel()
	wg.Wait()
	list, at, err := k.Load()
	if err != nil || len(list) != 1 || !at.Equal(read) {
		t.Fatalf("%v, at %v: %v", list, at, err)
	}
	v := list[0].Revive(func(b *Blob) Decoded { return fakeDecode("/r/a.yaml", b) }, time.Time{})
	if v.Live() != 1 || v.Kept() != 1 {
		t.Errorf("it came back with %d objects and %d kept", v.Live(), v.Kept())
	}
}
