package agents

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// claim is the host of a workload.
type claim struct {
	// host is empty where nobody has claimed the workload, and binding tells one
	// machine of that name from the next.
	host, binding string
	proof         mesh.Proof
	// machine is what proves the address itself, apart from an annotation, which is
	// about one workload. It is not saved: after a restart it is shown again.
	machine mesh.Proof
	// source is where the host connected from, if that is its proof.
	source netip.Addr
	since  time.Time
}

// proven is what the proof of a claim is worth now: a source address that several
// hosts have proves nothing for any of them.
func (s *Source) proven(c claim) mesh.Proof { return s.worth(c.proof, c.source) }

func (s *Source) worth(p mesh.Proof, source netip.Addr) mesh.Proof {
	if p == mesh.BySource && s.sources.shared(source, time.Now()) {
		return mesh.Unproven
	}
	return p
}

// claimOf is what a host claims, with the best proof that it has.
func (s *Source) claimOf(c mesh.Claim, now time.Time) claim {
	out := claim{host: c.Host, binding: c.Binding, machine: c.Proof, since: now}
	if c.Proof < mesh.BySource && c.SourceProves && c.Source.IsValid() {
		out.machine, out.source = mesh.BySource, c.Source
	}
	out.proof = out.machine
	if c.Owner != "" && c.Owner == c.Host {
		out.proof = mesh.ByAnnotation
	}
	return out
}

// RefusedError says why a host may not have the workload that it claims.
type RefusedError struct {
	Claim mesh.Claim
	// Holder and Binding are the host that has it, and its proof; empty if there is none.
	Holder, Binding string
	Proof           mesh.Proof
	why             string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.why }

func refusal(c mesh.Claim, holder claim, proof mesh.Proof, format string, args ...any) *RefusedError {
	return &RefusedError{Claim: c, Holder: holder.host, Binding: holder.binding, Proof: proof, why: fmt.Sprintf(format, args...)}
}

// checkClaim reports why a host may not have what it claims, given the lease of another host,
// which may be nil.
func (s *Source) checkClaim(c mesh.Claim, mine claim, holder *lease, now time.Time) *RefusedError {
	what := fmt.Sprintf("workload %s at %s", mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: c.ServiceAccount.Namespace, Name: c.Workload}, where(c.Network, c.Address))
	if c.Owner != "" && c.Owner != c.Host {
		return refusal(c, claim{host: c.Owner}, mesh.ByAnnotation, "%s belongs to host %q: the annotation %s says so", what, c.Owner, mesh.AnnotationHost)
	}
	rank := s.proven(mine)
	if rank == mesh.Unproven && s.requireProof {
		hint := ""
		if mine.proof == mesh.BySource {
			hint = fmt.Sprintf(" (it connects from %s, and so do other hosts)", mine.source)
		}
		return refusal(c, claim{}, mesh.Unproven,
			"nothing proves that %s is of host %q%s, and --require-proven-addresses is set: annotate the WorkloadEntry with %s: %s, or make its token with --address %s",
			what, c.Host, hint, mesh.AnnotationHost, c.Host, flagOf(c.Network, c.Address))
	}
	if holder == nil || holder.host == "" || holder.host == c.Host {
		return nil
	}
	theirs := s.proven(holder.claim)
	silent := len(holder.streams) == 0
	switch {
	case rank > theirs, rank == theirs && rank > mesh.Unproven && silent, silent && !s.bound(holder, now):
		return nil
	}
	until := "while that host is connected"
	if silent {
		until = "until " + holder.lost.Add(s.claimLease).UTC().Format(time.RFC3339)
	}
	return refusal(c, holder.claim, theirs,
		"%s is of host %q (%s) %s: if it is of host %q, annotate the WorkloadEntry with %s: %s, make its token with --address %s, or remove host %q",
		what, holder.host, describe(theirs), until, c.Host, mesh.AnnotationHost, c.Host, flagOf(c.Network, c.Address), holder.host)
}

func where(network, address string) string {
	if network == "" {
		return address
	}
	return address + " in network " + network
}

// describe is a proof in words.
func describe(p mesh.Proof) string {
	if p == mesh.Unproven {
		return "unproven, it came first"
	}
	return "proven by " + p.String()
}

// bound reports whether the claim of a lease still excludes other hosts.
func (s *Source) bound(l *lease, now time.Time) bool {
	return l.host != "" && (len(l.streams) > 0 || now.Before(l.lost.Add(s.claimLease)))
}

// rivals are the leases that a claim is up against: that of the same workload, and
// those of workloads that are not in the mesh any more, for then it is the same one
// under another name.
func (s *Source) rivals(c mesh.Claim) []*lease {
	var out []*lease
	for _, l := range s.at(placementOf(c)) {
		if l.host != "" && l.host != c.Host && (l.id.workload == c.Workload || !slices.Contains(c.Present, l.id.workload)) {
			out = append(out, l)
		}
	}
	return out
}

// grant gives a host the lease of its claim, or returns who has it. Call the functions that
// notify the streams of the losers without the lock.
func (s *Source) grant(c mesh.Claim, now time.Time) (l *lease, notify []func(), err *RefusedError) {
	mine := s.claimOf(c, now)
	rivals := s.rivals(c)
	for _, r := range append(rivals, nil) {
		if err := s.checkClaim(c, mine, r, now); err != nil {
			return nil, nil, err
		}
	}
	if err := s.checkNeighbours(c, mine, now); err != nil {
		return nil, nil, err
	}
	for _, r := range rivals {
		notify = append(notify, s.displace(r, c, mine, now)...)
	}
	left := false // nobody's, from before a restart, or the host's under another name
	for _, o := range slices.Clone(s.at(placementOf(c))) {
		if o.id.workload != c.Workload && !slices.Contains(c.Present, o.id.workload) {
			left = left || o.left
			s.drop(o)
		}
	}
	if l = s.leaseOf(id{placementOf(c), c.Workload}); l == nil {
		return nil, notify, nil
	}
	l.left, l.leftDown = l.left || left, l.leftDown && !left
	if l.host == c.Host && l.binding == c.Binding {
		mine.since = l.since
		if len(l.streams) > 0 && s.proven(l.claim) > s.proven(mine) {
			mine = l.claim
		}
	}
	s.claimsChanged = s.claimsChanged || l.claim != mine
	l.claim, l.awaited = mine, false
	s.settled(c)
	s.elect(l.id.placement)
	notify = append(notify, s.clearNeighbours(l, now)...)
	return l, notify, nil
}

// displace gives a lease to a host with a better claim.
func (s *Source) displace(l *lease, c mesh.Claim, mine claim, now time.Time) (notify []func()) {
	had, proof := l.claim, s.proven(l.claim)
	connected := len(l.streams) > 0
	reason := fmt.Sprintf("workload %s/%s at %s is of host %q now (%s); it was of host %q (%s)",
		l.id.account.Namespace, c.Workload, where(c.Network, c.Address), c.Host, describe(s.proven(mine)), had.host, describe(proof))
	notify = s.evict(l, reason)
	lost := c
	lost.Host, lost.Binding = had.host, had.binding
	s.logLoss(lost, c.Host, s.proven(mine), now)
	if connected {
		s.conflict(refusal(lost, mine, s.proven(mine), "%s", reason), now)
	}
	s.updateLease(l)
	return notify
}

// logLoss counts a claim that was lost to another host, and logs some of them.
func (s *Source) logLoss(c mesh.Claim, winner string, proof mesh.Proof, now time.Time) {
	s.displaced++
	if now.Sub(s.lossLogged) < time.Second {
		s.lossOmitted++
		return
	}
	s.log.Warn("a host lost its claim to an address", "address", c.Address, "workload", c.Workload, "host", c.Host, "new_host", winner,
		"proof", proof.String(), "left_out", s.lossOmitted)
	s.lossLogged, s.lossOmitted = now, 0
}

// newlyShared downgrades claims that were proven by a source address which another host has,
// too.
func (s *Source) newlyShared(a netip.Addr) (notify []func()) {
	for _, l := range s.sorted {
		if l.proof != mesh.BySource || l.source != a {
			continue
		}
		if s.requireProof && len(l.streams) > 0 {
			notify = append(notify, s.evict(l, fmt.Sprintf("several hosts connect from %s, so it does not prove any more that the address is of host %q, and --require-proven-addresses is set", a, l.host))...)
			s.updateLease(l)
		}
		s.elect(l.id.placement)
	}
	return notify
}

func placementOf(c mesh.Claim) placement { return placement{c.ServiceAccount, c.Network, c.Address} }

// at are the leases of a place.
func (s *Source) at(p placement) []*lease {
	from, _ := slices.BinarySearchFunc(s.sorted, id{placement: p}, func(l *lease, k id) int { return compareIDs(l.id, k) })
	to := from
	for to < len(s.sorted) && s.sorted[to].id.placement == p {
		to++
	}
	return s.sorted[from:to]
}

// elect chooses the lease whose reports count for all workloads at a placement that nobody
// claims: the best proven, the first of equals.
func (s *Source) elect(p placement) {
	list := s.at(p)
	var first *lease
	for _, l := range list {
		switch {
		case first == nil, first.host == "" && l.host != "":
			first = l
		case l.host == "":
		case cmp.Or(cmp.Compare(s.proven(first.claim), s.proven(l.claim)), l.since.Compare(first.since)) < 0:
			first = l
		}
	}
	for _, l := range list {
		if was := l.primary; was != (l == first) {
			l.primary = l == first
			s.updateLease(l)
		}
	}
}

// evict ends the claim of a lease, and returns the functions that notify its streams. Call
// them without the lock.
func (s *Source) evict(l *lease, reason string) (notify []func()) {
	for _, a := range l.streams {
		delete(s.streams, a.stream)
		if a.end != nil {
			notify = append(notify, func() { a.end(reason) })
		}
	}
	l.streams, l.claim = nil, claim{}
	l.lost, l.silent, l.removed, l.left, l.leftDown, l.confirmBy = time.Time{}, false, false, false, false, time.Time{}
	l.awaited, s.claimsChanged = true, true // nothing is known of the workload
	return notify
}

// HeldByOther reports whether a workload is of another host than this one, which
// connects from source.
func (s *Source) HeldByOther(host string, source netip.Addr, w *mesh.Workload) bool {
	if o := w.Owner(); o != "" {
		return o != host
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	account := mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount}
	now := time.Now()
	if l := s.leases[id{placement{account, w.Network, w.Address}, w.Name}]; l != nil && l.host != "" && s.bound(l, now) {
		return l.host != host
	}
	n := neighbour{host, mesh.Unproven, func(a netip.Addr) bool { return a == source }}
	l, _ := s.provenTo(placement{account, w.Network, w.Address}.location(), w.Namespace, n, now)
	return l != nil
}

// Held are the names of the workloads of an account that a host holds: those that it is connected
// for, or else those that are still its own.
func (s *Source) Held(host, binding string, account mesh.ServiceAccount) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	first := id{placement: placement{account: account}}
	from, _ := slices.BinarySearchFunc(s.sorted, first, func(l *lease, k id) int { return compareIDs(l.id, k) })
	var connected, left []string
leases:
	for _, l := range s.sorted[from:] {
		switch {
		case l.id.account != account: // and all that follow
			break leases
		case l.host != host || l.binding != binding:
		case len(l.streams) > 0:
			connected = append(connected, l.id.workload)
		case s.bound(l, now):
			left = append(left, l.id.workload)
		}
	}
	if len(connected) > 0 {
		return connected
	}
	return left
}

// Free frees what a host holds, which was removed or is another machine now, and
// reports whether there was anything: what is known of the health of its workloads
// stands.
func (s *Source) Free(host, binding string) (freed bool) {
	defer s.wakeRun()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.sorted {
		if l.host == host && l.binding == binding && len(l.streams) == 0 {
			l.claim = claim{}
			s.claimsChanged, freed = true, true
		}
	}
	return freed
}
