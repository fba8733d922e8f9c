package mesh

import (
	"cmp"
	"crypto/sha256"
	"slices"
)

func compareReports(a, b HealthReport) int {
	return cmp.Or(
		cmp.Compare(a.ServiceAccount.Namespace, b.ServiceAccount.Namespace),
		cmp.Compare(a.ServiceAccount.Name, b.ServiceAccount.Name),
		cmp.Compare(a.Address, b.Address),
	)
}

// mergeReports makes one report a workload of what all sources say, and the set
// of addresses of which something else is said than before.
func mergeReports(prev *tables, inputs [][]HealthReport) (verdicts []HealthReport, changed map[string]bool) {
	if slices.EqualFunc(prev.reports, inputs, slices.Equal[[]HealthReport]) {
		return prev.verdicts, nil
	}
	if only, ok := onlyList(inputs); ok {
		return only, changedAddresses(prev.verdicts, only)
	}
	total := 0
	for _, list := range inputs {
		total += len(list)
	}
	all := make([]HealthReport, 0, total)
	for _, list := range inputs {
		all = append(all, list...)
	}
	if !slices.IsSortedFunc(all, compareReports) {
		slices.SortStableFunc(all, compareReports)
	}
	for i := 0; i < len(all); {
		verdict := all[i]
		for i++; i < len(all) && compareReports(verdict, all[i]) == 0; i++ {
			verdict = stronger(verdict, all[i])
		}
		verdicts = append(verdicts, verdict)
	}
	return verdicts, changedAddresses(prev.verdicts, verdicts)
}

// onlyList returns the list of reports that needs no merging: no other source
// reports anything, and it is sorted and without duplicates. That is the usual
// case, and the list is long.
func onlyList(inputs [][]HealthReport) ([]HealthReport, bool) {
	var only []HealthReport
	for _, list := range inputs {
		switch {
		case len(list) == 0:
		case len(only) == 0:
			only = list
		default:
			return nil, false
		}
	}
	for i := 1; i < len(only); i++ {
		if compareReports(only[i-1], only[i]) >= 0 {
			return nil, false
		}
	}
	return only, true
}

// stronger returns the report that counts; a comes first.
func stronger(a, b HealthReport) HealthReport {
	weight := func(r HealthReport) int {
		w := int(r.Health) // unknown < healthy < unhealthy
		if r.Own && r.Health != HealthUnknown {
			w += 10
		}
		return w
	}
	if weight(b) > weight(a) {
		return b
	}
	return a
}

func changedAddresses(prev, next []HealthReport) map[string]bool {
	changed := map[string]bool{}
	i, j := 0, 0
	for i < len(prev) || j < len(next) {
		var c int
		switch {
		case i == len(prev):
			c = 1
		case j == len(next):
			c = -1
		default:
			c = compareReports(prev[i], next[j])
		}
		if c < 0 || c == 0 && prev[i] != next[j] {
			changed[prev[i].Address] = true
		}
		if c > 0 {
			changed[next[j].Address] = true
		}
		if c <= 0 {
			i++
		}
		if c >= 0 {
			j++
		}
	}
	return changed
}

// judge returns the workload as the reports have it: itself where they say
// nothing else than its source did, prev where that is already right, else a
// copy.
func judge(w, prev *Workload, verdicts []HealthReport) *Workload {
	said := HealthReport{
		ServiceAccount: ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount},
		Address:        w.Address, Health: w.Health, Reason: w.HealthReason,
	}
	if i, ok := slices.BinarySearchFunc(verdicts, said, compareReports); ok {
		said = stronger(said, verdicts[i])
	}
	if said.Health != Unhealthy {
		said.Reason = ""
	}
	if said.Health == w.Health && said.Reason == w.HealthReason {
		return w
	}
	hash := w.Hash
	if said.Health != w.Health {
		hash = hashWith(w.Hash, said.Health)
	}
	if prev != nil && prev.Origin == w.Origin && !hash.IsZero() && prev.Hash == hash &&
		prev.Health == said.Health && prev.HealthReason == said.Reason {
		return prev
	}
	judged := *w
	judged.Hash, judged.Health, judged.HealthReason = hash, said.Health, said.Reason
	return &judged
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

// judgeInline does for the endpoints written in a service what judge does for a
// workload.
func judgeInline(svc, prev *Service, verdicts []HealthReport) *Service {
	if len(verdicts) == 0 {
		return svc
	}
	var inline []*Workload
	health := make([]Health, len(svc.Inline))
	for i, w := range svc.Inline {
		var before *Workload
		if prev != nil && i < len(prev.Inline) {
			before = prev.Inline[i]
		}
		judged := judge(w, before, verdicts)
		if judged != w && inline == nil {
			inline = slices.Clone(svc.Inline)
		}
		if inline != nil {
			inline[i] = judged
		}
		health[i] = judged.Health
	}
	if inline == nil {
		return svc
	}
	hash := hashWith(svc.Hash, health...)
	if prev != nil && prev.Origin == svc.Origin && !hash.IsZero() && prev.Hash == hash && slices.Equal(prev.Inline, inline) {
		return prev
	}
	judged := *svc
	judged.Hash, judged.Inline = hash, inline
	return &judged
}

// judgeAll judges every object of a list sorted by order. Where neither the
// object nor what is reported of it changed, the result is that of before, by
// pointer; where none changed, the list is.
func judgeAll[T object](a judgement[T]) []T {
	if len(a.prevBase) == len(a.base) && slices.Equal(a.prevBase, a.base) && !slices.ContainsFunc(a.base, a.stale) {
		return a.prev
	}
	out := make([]T, 0, len(a.base))
	j := 0
	for _, x := range a.base {
		for j < len(a.prevBase) && a.prevBase[j] != x && a.order(a.prevBase[j], x) < 0 {
			j++
		}
		var before T
		if j < len(a.prevBase) && a.order(a.prevBase[j], x) == 0 {
			before = a.prev[j]
			if a.prevBase[j] == x && !a.stale(x) {
				out = append(out, before)
				continue
			}
		}
		out = append(out, a.judge(x, before))
	}
	if slices.Equal(out, a.prev) {
		return a.prev
	}
	return out
}

type judgement[T object] struct {
	base           []T
	prevBase, prev []T // parallel
	order          func(a, b T) int
	// stale reports whether something new is said of the object.
	stale func(x T) bool
	judge func(x, prev T) T
}
