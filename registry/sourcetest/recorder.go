package sourcetest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Log is what a source under test has logged. It may be written to and read from
// any goroutine.
type Log struct {
	mu sync.Mutex // guards the following field
	b  strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Recording is a source that a test of its own runs.
type Recording struct {
	Source registry.Source
	Log    *Log
	// Objects are those of a fragment, sorted, as the test writes them.
	Objects func(*mesh.Fragment) []string
	// Patience is how long what works may take.
	Patience time.Duration
	// Took is called with each fragment; nil means by nobody.
	Took func(*mesh.Fragment)
}

// Recorder has what a source has sent.
type Recorder struct {
	tb   testing.TB
	of   Recording
	stop func()

	mu    sync.Mutex // guards all following fields
	sent  []*mesh.Fragment
	again int           // fragments that were the one before
	news  chan struct{} // closed and replaced at each fragment
}

// Record runs a source until the test ends or Stop is called.
func Record(tb testing.TB, of Recording) *Recorder {
	tb.Helper()
	r := &Recorder{tb: tb, of: of, news: make(chan struct{})}
	ctx, cancel := context.WithCancel(tb.Context())
	out := make(chan *mesh.Fragment)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := of.Source.Run(ctx, out); err != nil {
			tb.Errorf("Run: %v", err)
		}
		close(out)
	})
	wg.Go(func() {
		for f := range out {
			r.take(f)
		}
	})
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	tb.Cleanup(func() {
		r.Stop()
		if tb.Failed() {
			tb.Logf("log:\n%s", of.Log)
		}
	})
	return r
}

func (r *Recorder) take(f *mesh.Fragment) {
	r.mu.Lock()
	if n := len(r.sent); n > 0 && r.sent[n-1] == f {
		r.again++
	} else {
		r.sent = append(r.sent, f)
	}
	close(r.news)
	r.news = make(chan struct{})
	r.mu.Unlock()
	if r.of.Took != nil {
		r.of.Took(f)
	}
}

// Stop ends the source, and returns when it has ended.
func (r *Recorder) Stop() { r.stop() }

// History is all fragments so far, but those that were the one before, and what
// will be closed at the next.
func (r *Recorder) History() (sent []*mesh.Fragment, news <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent), r.news
}

// Last is the latest fragment, or nil.
func (r *Recorder) Last() *mesh.Fragment {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sent) == 0 {
		return nil
	}
	return r.sent[len(r.sent)-1]
}

// Again is how many fragments were the one before.
func (r *Recorder) Again() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.again
}

// Await waits until the source says exactly these objects.
func (r *Recorder) Await(want ...string) *mesh.Fragment {
	r.tb.Helper()
	want = append([]string{}, want...)
	slices.Sort(want)
	deadline := time.After(r.of.Patience)
	for {
		list, news := r.History()
		var got []string
		if len(list) > 0 {
			f := list[len(list)-1]
			if got = r.of.Objects(f); slices.Equal(got, want) {
				return f
			}
		}
		select {
		case <-news:
		case <-deadline:
			r.tb.Fatalf("after %v (-want +got):\n%s", r.of.Patience, cmp.Diff(want, got))
		}
	}
}

// Always checks all fragments so far for objects that must always be there.
func (r *Recorder) Always(want ...string) {
	r.tb.Helper()
	list, _ := r.History()
	for i, f := range list {
		for _, o := range want {
			if !slices.Contains(r.of.Objects(f), o) {
				r.tb.Fatalf("fragment %d lacks %q: %v", i, o, r.of.Objects(f))
			}
		}
	}
}

// AwaitStatus waits until the status of a source is as ok wants it.
func AwaitStatus[S any](r *Recorder, status func() S, what string, ok func(S) bool) S {
	r.tb.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(r.of.Patience)
	for {
		if st := status(); ok(st) {
			return st
		}
		select {
		case <-tick.C:
		case <-deadline:
			r.tb.Fatalf("after %v the status is not %s: %+v", r.of.Patience, what, status())
		}
	}
}
