package kv

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
)

const notRead = "not everything has been read yet"

// CodeNoKeys means that there is no manifest below the prefix.
const CodeNoKeys manifest.Code = codes.KVNoKeys

// Status is the present state of the source, in the words of all sources of
// texts. It may be called from any goroutine.
func (s *Source) Status() *lastgood.Status { return s.status.Load() }

// Unsaved says why the state directory does not have what is in force, or is empty.
func (s *Source) Unsaved() string { return s.Status().Unsaved }

// publish makes the status anew.
func (s *Source) publish(now time.Time) {
	p, was := s.cache, s.Status()
	st := &lastgood.Status{
		Source: s.cfg.Name, State: lastgood.OK, Since: was.Since, Read: s.read, FromDisk: s.last != nil && !s.live,
		Delivered: s.last != nil, Files: p.set.Len(), Objects: s.assembly.Objects, Ignored: p.ignored, Kept: s.assembly.Kept,
		Counters: p.counts,
	}
	path := PathOf(s.cfg.Prefix)
	root := lastgood.RootStatus{Path: path, Available: s.live && s.err == nil, Since: was.Roots[0].Since, Files: p.set.Len()}
	switch {
	case s.err != nil:
		st.State, root.Reason = lastgood.Unavailable, s.err.Error()
		st.Reason = path + ": " + root.Reason
	case len(p.unreadable) > 0:
		first := slices.Min(slices.Collect(maps.Keys(p.unreadable)))
		st.State, st.Reason = lastgood.Partial, first+": "+p.unreadable[first].Error()
	case !s.live || !st.Delivered:
		root.Reason = cmp.Or(p.uncertain(), notRead)
		st.State, st.Reason = lastgood.Starting, root.Reason
	}
	s.releasable.Store(p.canRelease())
	if st.State != was.State || st.Since.IsZero() {
		st.Since = now
	}
	if root.Available != was.Roots[0].Available || root.Since.IsZero() {
		root.Since = now
	}
	st.Roots = []lastgood.RootStatus{root}
	st.Faults = s.faults(st)
	st.Counters.StateErrors, st.Unsaved = s.persister.Trouble()
	s.status.Store(st)
}

// faults are all that is wrong, by position.
func (s *Source) faults(st *lastgood.Status) []manifest.Fault {
	more := slices.Concat(s.cache.faults(), s.storeFaults)
	path := PathOf(s.cfg.Prefix)
	switch {
	case s.err != nil:
		more = append(more, s.cache.fault(path, lastgood.CodeUnread, manifest.Error, "unreadable, its last state stays in force: "+s.err.Error()))
	case s.live && st.Files == 0:
		more = append(more, s.cache.fault(path, CodeNoKeys, manifest.Warning, fmt.Sprintf("there is no manifest below %q: "+
			"put some there with `fairlead config push`, or see whether the prefix is the right one", s.cfg.Prefix+"/")))
	}
	if len(more) == 0 {
		return s.assembly.Faults
	}
	more = slices.Concat(s.assembly.Faults, more)
	slices.SortStableFunc(more, lastgood.CompareFaults)
	return more
}
