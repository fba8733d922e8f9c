package mapping

import (
	"cmp"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Reuse returns next with the objects of prev, the fragment before of the same service, where
// nothing changed in them: a receiver finds what changed by pointer. Where nothing
// changed at all it returns prev. Both are left as they are; prev may be nil.
func Reuse(prev, next *mesh.Fragment) *mesh.Fragment {
	if prev == nil || prev.Source != next.Source {
		return next
	}
	services, sameServices := reused(prev.Services, next.Services,
		func(a, b *mesh.Service) int {
			return cmp.Or(a.Compare(b.Key), cmp.Compare(a.Hostname, b.Hostname))
		},
		func(a, b *mesh.Service) bool { return a.Hash == b.Hash && *a.Origin == *b.Origin })
	workloads, sameWorkloads := reused(prev.Workloads, next.Workloads,
		func(a, b *mesh.Workload) int { return a.Compare(b.Key) },
		func(a, b *mesh.Workload) bool {
			return a.Hash == b.Hash && a.HealthReason == b.HealthReason && *a.Origin == *b.Origin
		})
	if sameServices && sameWorkloads {
		return prev
	}
	out := *next
	out.Services, out.Workloads = services, workloads
	return &out
}

// reused is next with the objects of prev that are equal. same says that the lists
// are.
func reused[T comparable](prev, next []T, order func(a, b T) int, equal func(a, b T) bool) (out []T, same bool) {
	out = slices.Clone(next)
	n := 0
	for i, x := range out {
		if at, found := slices.BinarySearchFunc(prev, x, order); found && equal(prev[at], x) {
			out[i] = prev[at]
			n++
		}
	}
	if n == len(prev) && n == len(next) {
		return prev, true
	}
	return out, false
}
