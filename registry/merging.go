package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// A merge that takes longer is slow: it is logged while it runs, and [Status.SlowMerge] has it. It
// is never ended for that, because a slow machine must not have another mesh than a fast one.
const slowMerge = time.Second

// namedInputs is how many sources of a slow merge are named.
const namedInputs = 3

// SlowMerge is a merge of sources that took more than a second, or takes it.
type SlowMerge struct {
	// Began is when it began, Took how long it took; 0 means that it is not done.
	Began time.Time
	Took  time.Duration
	// Inputs are the largest sources, the largest first.
	Inputs []MergeInput
}

// Lasted is how long it took until now.
func (m *SlowMerge) Lasted(now time.Time) time.Duration { return cmp.Or(m.Took, now.Sub(m.Began)) }

// MergeInput is how much one source has.
type MergeInput struct {
	Source string
	// Endpoints is what its services make after expansion: ports × endpoints that are written in
	// them; Objects are all its objects. Largest is the service with the most endpoints, if there
	// is one.
	Endpoints, Objects int
	Largest            mesh.Key
}

// String is for logs.
func (i MergeInput) String() string {
	s := fmt.Sprintf("%s: %d objects, %d endpoints", i.Source, i.Objects, i.Endpoints)
	if i.Largest.Name != "" {
		s += ", most in " + i.Largest.String()
	}
	return s
}

// mergeInputs merges in a goroutine of its own, and returns nil if ctx ends first: the process must not
// wait for a merge that nobody needs any more. Such a goroutine ends with its merge; it writes
// nothing that others read. If grants are due it makes them before, from the same input, and returns them.
func (l *loop) mergeInputs(ctx context.Context, in mesh.Input, began time.Time) (*mesh.Snapshot, *mesh.Grants) {
	done := make(chan *mesh.Snapshot, 1)
	var made *mesh.Grants // of the goroutine, until done
	due, recorded := l.grants.due(in.Missing), l.grants.recorded
	go func(in mesh.Input) {
		if due {
			made = mesh.NewGrants(l.r.cfg.inherit(in, recorded))
			in.Grants = made
		}
		done <- l.r.cfg.merge(in)
	}(in)
	slow := time.NewTimer(slowMerge)
	defer slow.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, nil
		case s := <-done:
			var after *SlowMerge
			if now := l.r.slow.Load(); now != nil && now.Began.Equal(began) {
				after = &SlowMerge{Began: began, Took: time.Since(began), Inputs: now.Inputs}
				l.log.WarnContext(ctx, "slow merge of the sources is done", "took", after.Took.Round(time.Millisecond).String(), "first", after.Inputs)
			}
			l.r.slow.Store(after)
			return s, made
		case <-slow.C:
			m := &SlowMerge{Began: began, Inputs: largestInputs(in.Fragments)}
			l.log.WarnContext(ctx, "merging the sources is slow: changes wait", "lasted", time.Since(began).Round(time.Millisecond).String(), "first", m.Inputs)
			l.r.slow.Store(m)
		}
	}
}

// largestInputs are the sources that have the most.
func largestInputs(fragments []*mesh.Fragment) []MergeInput {
	var out []MergeInput
	for _, f := range fragments {
		if f == nil {
			continue
		}
		in, most := MergeInput{Source: f.Source}, 0
		for range f.Objects() {
			in.Objects++
		}
		for _, svc := range f.Services {
			n := len(svc.Inline) * max(1, len(svc.Ports))
			in.Endpoints += n
			if n > most {
				in.Largest, most = svc.Key, n
			}
		}
		out = append(out, in)
	}
	slices.SortStableFunc(out, func(a, b MergeInput) int { return cmp.Compare(b.Endpoints+b.Objects, a.Endpoints+a.Objects) })
	return out[:min(len(out), namedInputs)]
}
