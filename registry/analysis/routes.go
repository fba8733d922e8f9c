package analysis

import (
	"fmt"
	"iter"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
)

// destinationAt is one destination of a VirtualService and its place.
type destinationAt struct {
	place
	*networking.Destination
}

// destinationsOf yields every destination of a VirtualService, mirrors included.
func destinationsOf(o *manifest.Object, vs *networking.VirtualService) iter.Seq[destinationAt] {
	return func(yield func(destinationAt) bool) {
		ok := true
		emit := func(d *networking.Destination, format string, args ...any) {
			if ok && d != nil {
				ok = yield(destinationAt{place{o, fmt.Sprintf(format, args...)}, d})
			}
		}
		for i, r := range vs.Http {
			for j, d := range r.Route {
				emit(d.GetDestination(), "spec.http[%d].route[%d].destination", i, j)
			}
			emit(r.Mirror, "spec.http[%d].mirror", i)
			for j, m := range r.Mirrors {
				emit(m.GetDestination(), "spec.http[%d].mirrors[%d].destination", i, j)
			}
		}
		for i, r := range vs.Tls {
			for j, d := range r.Route {
				emit(d.GetDestination(), "spec.tls[%d].route[%d].destination", i, j)
			}
		}
		for i, r := range vs.Tcp {
			for j, d := range r.Route {
				emit(d.GetDestination(), "spec.tcp[%d].route[%d].destination", i, j)
			}
		}
	}
}

// weights warns of weights that a person would take for percentages but are none.
func weights(w *meshIndex, r *report) {
	for o, vs := range specs[*networking.VirtualService](w) {
		for i, route := range vs.Http {
			list := make([]int32, 0, len(route.Route))
			for _, d := range route.Route {
				list = append(list, d.Weight)
			}
			r.sum(place{o, fmt.Sprintf("spec.http[%d].route", i)}, list)
		}
		for i, route := range vs.Tls {
			r.sum(place{o, fmt.Sprintf("spec.tls[%d].route", i)}, weightsOf(route.Route))
		}
		for i, route := range vs.Tcp {
			r.sum(place{o, fmt.Sprintf("spec.tcp[%d].route", i)}, weightsOf(route.Route))
		}
	}
}

func weightsOf(list []*networking.RouteDestination) []int32 {
	out := make([]int32, 0, len(list))
	for _, d := range list {
		out = append(out, d.Weight)
	}
	return out
}

func (r *report) sum(at place, list []int32) {
	var total int64
	for _, n := range list {
		total += int64(n)
	}
	if len(list) > 1 && total > 0 && total != 100 {
		r.warn(at, "the weights sum to %d, so they are not percentages; write weights that sum to 100", total)
	}
}
