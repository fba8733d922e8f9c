package mesh

import (
	"fmt"
	"time"
)

// WhyFirst says why a Gateway comes before another one in the order of [CompareGateways], after a comma; it is
// empty for one Gateway.
func (g *Gateway) WhyFirst(o *Gateway) string {
	switch {
	case g.Key == o.Key:
		return ""
	case g.Tenant != o.Tenant:
		return ", whose source is not bound to namespaces"
	case g.Created.IsZero() != o.Created.IsZero():
		return ", which has a creationTimestamp"
	case !g.Created.Equal(o.Created):
		return ", whose creationTimestamp is older"
	case g.createIndex() == 0 && o.createIndex() > 0:
		return ", which is in a file"
	case g.createIndex() != o.createIndex():
		return ", whose key is older"
	case g.Name != o.Name && g.Name < o.Name:
		return ", whose name comes first"
	case g.Name == o.Name:
		return ", whose namespace comes first"
	default:
		return "" // only one of them has TLS
	}
}

// ToComeFirst says what to write so that the Gateway comes before another one, which comes first now. all are those
// of the mesh. Only what has to be changed for this order is changed. It is empty where nothing is known to help: a date
// does not count in a namespace in which several bound sources have Gateways, and that cannot be seen of one without.
func (g *Gateway) ToComeFirst(first *Gateway, all []*Gateway) string {
	if g.Key == first.Key || g.Tenant && !first.Tenant {
		return "" // nothing would
	}
	if g.Tenant && g.Created.IsZero() {
		if g.compareAge(first) == 0 && g.Name > first.Name {
			return fmt.Sprintf("give %s (%s) a name that comes before %q", g.Key, g.Origin, first.Name)
		}
		return ""
	}
	before := first.Created.Add(-time.Second)
	if first.Created.IsZero() {
		before = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
		for _, o := range all { // behind all that have a date, so that it takes nothing else
			if last := o.Created.Truncate(time.Second).Add(time.Second); !o.Tenant && last.After(before) {
				before = last
			}
		}
	}
	return fmt.Sprintf("write `creationTimestamp: %q` into the metadata of %s (%s)", before.UTC().Format(time.RFC3339), g.Key, g.Origin)
}
