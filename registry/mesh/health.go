package mesh

import (
	"cmp"
	"crypto/sha256"
	"maps"
	"slices"
)

func compareReports(a, b *HealthReport) int {
	return cmp.Or(
		cmp.Compare(a.ServiceAccount.Namespace, b.ServiceAccount.Namespace),
		cmp.Compare(a.ServiceAccount.Name, b.ServiceAccount.Name),
		cmp.Compare(a.Address, b.Address),
		cmp.Compare(a.Network, b.Network),
		cmp.Compare(a.Workload, b.Workload),
	)
}

// PatchReports returns a sorted list of reports after changes of it; the list
// stays as it is. What a change takes out must be in it, by pointer.
func PatchReports(list []*HealthReport, changes []Delta[*HealthReport]) []*HealthReport {
	return patched(list, changes, compareReports)
}

// mergedHealth is the merged reports of health of all sources.
type mergedHealth struct {
	inputs [][]*HealthReport
	tidy   bool // as of a table
	// list has one report a workload, sorted.
	list []*HealthReport
}

// merge merges the reports of all sources. It returns the addresses for which the result
// may have changed.
func (v *mergedHealth) merge(inputs [][]*HealthReport) (next mergedHealth, changed map[string]bool) {
	next, deltas, ok := v.patched(inputs)
	if !ok {
		next = mergedHealth{inputs: inputs, tidy: true}
		total := 0
		for _, list := range inputs {
			_, is := diff(nil, list, compareReports)
			next.tidy = next.tidy && is == strict
			total += len(list)
		}
		all := make([]*HealthReport, 0, total)
		for _, list := range inputs {
			all = append(all, list...)
		}
		all = sorted(all, compareReports)
		for i := 0; i < len(all); {
			strongest := all[i]
			for i++; i < len(all) && compareReports(strongest, all[i]) == 0; i++ {
				strongest = stronger(strongest, all[i])
			}
			next.list = append(next.list, strongest)
		}
		deltas, _ = diff(v.list, next.list, compareReports)
	}
	changed = make(map[string]bool, len(deltas))
	for _, d := range deltas {
		switch {
		case d.Old == nil:
			changed[d.New.Address] = true
		case d.New == nil || *d.Old != *d.New:
			changed[d.Old.Address] = true
		}
	}
	return next, changed
}

// patched merges only what changed. It reports false if that is not possible.
func (v *mergedHealth) patched(inputs [][]*HealthReport) (next mergedHealth, deltas []Delta[*HealthReport], ok bool) {
	if !v.tidy || len(v.inputs) != len(inputs) {
		return next, nil, false
	}
	var known []*HealthReport // one of each workload of which something changed
	for i, list := range inputs {
		changes, is := diff(v.inputs[i], list, compareReports)
		if is != strict {
			return next, nil, false
		}
		for _, d := range changes {
			known = append(known, cmp.Or(d.New, d.Old))
		}
	}
	slices.SortFunc(known, compareReports)
	known = slices.CompactFunc(known, func(a, b *HealthReport) bool { return compareReports(a, b) == 0 })
	for _, x := range known {
		var d Delta[*HealthReport]
		if i, found := slices.BinarySearchFunc(v.list, x, compareReports); found {
			d.Old = v.list[i]
		}
		for _, list := range inputs {
			if i, found := slices.BinarySearchFunc(list, x, compareReports); found && d.New == nil {
				d.New = list[i]
			} else if found {
				d.New = stronger(d.New, list[i])
			}
		}
		if d.Old != d.New {
			deltas = append(deltas, d)
		}
	}
	next = mergedHealth{inputs: inputs, tidy: true}
	next.list, ok = patch(v.list, deltas, compareReports)
	return next, deltas, ok
}

// stronger returns the report that wins; a comes first.
func stronger(a, b *HealthReport) *HealthReport {
	weight := func(r *HealthReport) int {
		w := 0
		switch r.Health {
		case HealthUnknown:
		case Healthy:
			w = 1
		case Silent: // no verdict, so the agent's is no stronger than others'
			return 2
		case Unhealthy:
			w = 3
		}
		if r.Own && w > 0 {
			w += 10
		}
		return w
	}
	if weight(b) > weight(a) {
		return b
	}
	return a
}

// withHealth returns the workload with the reported health: itself if the reports do not
// change it, prev if that is already right, else a copy.
func withHealth(w, prev *Workload, reports []*HealthReport) *Workload {
	if w.Withdrawn {
		return w
	}
	known := &HealthReport{
		ServiceAccount: ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount},
		Address:        w.Address, Network: w.Network, Workload: w.Name, Health: w.Health, Reason: w.HealthReason,
	}
	if r := reportOf(known, reports); r != nil {
		known = stronger(known, r)
	}
	reason := known.Reason
	if known.Health != Unhealthy && known.Health != Silent {
		reason = ""
	}
	if known.Health == w.Health && reason == w.HealthReason {
		return w
	}
	hash := w.Hash
	if known.Health != w.Health {
		hash = hashWith(w.Hash, known.Health)
	}
	if prev != nil && prev.Origin == w.Origin && !hash.IsZero() && prev.Hash == hash &&
		prev.Health == known.Health && prev.HealthReason == reason {
		return prev
	}
	updated := *w
	updated.Hash, updated.Health, updated.HealthReason = hash, known.Health, reason
	return &updated
}

// reportOf returns the report for a workload: one that names it, else one for all workloads
// at its address; or nil.
func reportOf(w *HealthReport, reports []*HealthReport) *HealthReport {
	if i, ok := slices.BinarySearchFunc(reports, w, compareReports); ok {
		return reports[i]
	}
	if w.Workload == "" {
		return nil
	}
	all := *w
	all.Workload = ""
	if i, ok := slices.BinarySearchFunc(reports, &all, compareReports); ok {
		return reports[i]
	}
	return nil
}

// hashWith is the hash of content with another health; unknown stays unknown.
func hashWith(h Hash, health ...Health) Hash {
	if h.IsZero() {
		return h
	}
	b := make([]byte, 0, len(h)+len(health))
	b = append(b, h[:]...)
	for _, x := range health {
		b = append(b, byte(x))
	}
	return sha256.Sum256(b)
}

// withInlineHealth does for the endpoints written in a service what withHealth does for a
// workload.
func withInlineHealth(svc, prev *Service, reports []*HealthReport) *Service {
	if len(reports) == 0 {
		return svc
	}
	var inline []*Workload
	changed, health := false, make([]Health, len(svc.Inline))
	for i, w := range svc.Inline {
		var before *Workload
		if prev != nil && i < len(prev.Inline) {
			before = prev.Inline[i]
		}
		updated := withHealth(w, before, reports)
		if updated != w && inline == nil {
			inline = slices.Clone(svc.Inline)
		}
		if inline != nil {
			inline[i] = updated
		}
		health[i] = updated.Health
		changed = changed || updated.Health != w.Health
	}
	if inline == nil {
		return svc
	}
	hash := svc.Hash
	if changed { // and not a reason only
		hash = hashWith(hash, health...)
	}
	if prev != nil && prev.Origin == svc.Origin && !hash.IsZero() && prev.Hash == hash && slices.Equal(prev.Inline, inline) {
		return prev
	}
	updated := *svc
	updated.Hash, updated.Inline = hash, inline
	return &updated
}

// overlayPass lays what is known of the objects of one kind over them: reports of health, or
// allocated addresses.
type overlayPass[T object] struct {
	// base is the objects as their sources have them, and deltas what differs
	// in them from those before; prev is what became of those before.
	base   []T
	deltas []Delta[T]
	prev   []T
	// stale are those of prev of which something else may be known now.
	stale map[T]bool
	order func(a, b T) int
	// with makes of an object what it is by what is known: itself, or prev where that is
	// already right. prev may be nil.
	with func(x, prev T) T
}

// apply makes what changed, or is stale, again. If nothing is known of any object, the result
// is base.
func (a overlayPass[T]) apply() ([]T, []Delta[T]) {
	var zero T
	if len(a.deltas) == 0 && len(a.stale) == 0 {
		return a.prev, nil
	}
	deltas := make([]Delta[T], 0, len(a.deltas)+len(a.stale))
	update := func(old, base T) {
		d := Delta[T]{Old: old}
		if base != zero {
			d.New = a.with(base, old)
		}
		if d.Old != d.New {
			deltas = append(deltas, d)
		}
	}
	stale := maps.Clone(a.stale)
	for _, d := range a.deltas {
		var old T
		if d.Old != zero {
			old = a.find(a.prev, d.Old)
			delete(stale, old)
		}
		update(old, d.New)
	}
	for old := range stale {
		update(old, a.find(a.base, old))
	}
	out, ok := patch(a.prev, deltas, a.order)
	if !ok || len(out) != len(a.base) { // not unless a list is out of order
		out = make([]T, 0, len(a.base))
		for _, x := range a.base {
			out = append(out, a.with(x, zero))
		}
	}
	if slices.Equal(out, a.base) {
		out = a.base
	}
	return out, deltas
}

// find returns the object of the list that has the place of x.
func (a overlayPass[T]) find(list []T, x T) T {
	var none T
	if i, ok := slices.BinarySearchFunc(list, x, a.order); ok {
		return list[i]
	}
	return none
}
