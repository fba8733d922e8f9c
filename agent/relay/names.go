package relay

import (
	"slices"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// What an agent answers to DNS queries comes on the stream of Envoy's resources, one resource for
// each host name, and is stored with them. It is for the agent, like its ProxyConfig: no Envoy
// gets it, and no Envoy is waited for.

// NameTable takes what is answered to DNS queries. The core calls it; it must not wait.
type NameTable interface {
	// Update changes resources, and removes those of the given names. If whole is true, all that
	// are not among them are removed, too. It returns those that it cannot use: what it had under
	// their names stays.
	Update(changed []*stream.Resource, removed []string, whole bool) []stream.RejectedResource
	// Absent says that the control plane has no names for this host, as earlier releases. What
	// Update gave stays.
	Absent()
}

// restoreNames takes the names of the store; false means that nobody wants them.
func (c *core) restoreNames(of *stream.Set) bool {
	if c.r.c.Names == nil {
		return false
	}
	refused := c.r.c.Names.Update(slices.Collect(of.All()), nil, true)
	c.accepted[bootstrap.NameType] = of.With(nil, namesOf(refused))
	return true
}

// receiveNames gives an update to the agent, and answers the server at once.
func (c *core) receiveNames(u *stream.Update) {
	had := c.accepted[bootstrap.NameType]
	isTable := func(r *stream.Resource) bool { return r.Name == bootstrap.NameTable }
	comes := slices.ContainsFunc(u.Changed, isTable)
	// An earlier control plane says that it has nothing of the type. That takes nothing away.
	if slices.Contains(u.Removed, bootstrap.NameTable) || !comes && (had.Get(bootstrap.NameTable) == nil || c.namesAbsent) {
		c.namesAbsent = true
		c.r.c.Names.Absent()
		u.Done(nil)
		return
	}
	// The server was not asked for what differs from names that an earlier one took away.
	whole := comes && (c.namesAbsent || had.Get(bootstrap.NameTable) == nil)
	c.namesAbsent = false
	refused := c.r.c.Names.Update(u.Changed, u.Removed, whole)
	if whole {
		var kept []*stream.Resource
		for _, r := range refused {
			if old := had.Get(r.Name); old != nil {
				kept = append(kept, old)
			}
		}
		had = stream.NewSet(kept)
	}
	bad := namesOf(refused)
	taken := slices.DeleteFunc(slices.Clone(u.Changed), func(r *stream.Resource) bool { return slices.Contains(bad, r.Name) })
	c.accepted[bootstrap.NameType] = had.With(taken, u.Removed)
	c.dirty = true
	if len(refused) == 0 {
		u.Done(nil)
		return
	}
	c.log.Warn("the agent rejects names for DNS; their last good versions stay in force", "count", len(refused), "first", refused[0].Name, "err", refused[0].Reason)
	u.Done(&stream.RejectError{Rejected: refused})
}

func namesOf(refused []stream.RejectedResource) []string {
	out := make([]string, len(refused))
	for i, r := range refused {
		out[i] = r.Name
	}
	return out
}
