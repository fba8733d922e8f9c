package dns

import (
	"fmt"
)

// Status is what a Server does now.
type Status struct {
	// Listening are its addresses, for UDP and TCP.
	Listening []string `json:"listening"`
	// Table says how much the agent knows, and Names how many names.
	Table State `json:"table"`
	Names int   `json:"names"`
	// Upstreams are the nameservers for all other names.
	Upstreams []UpstreamStatus `json:"upstreams"`
	// Problem says why resolv.conf cannot be used, or is empty.
	Problem string `json:"problem,omitempty"`
	// Queries are all of them. Mesh were answered from the table, Forwarded with the answer of an
	// upstream, Refused for their class or type, and Failed got SERVFAIL.
	Queries   uint64 `json:"queries"`
	Mesh      uint64 `json:"mesh"`
	Forwarded uint64 `json:"forwarded"`
	Refused   uint64 `json:"refused"`
	Failed    uint64 `json:"failed"`
	// Full counts those of Failed that made room, because too many others were on their way.
	Full uint64 `json:"full"`
}

// UpstreamStatus is one nameserver.
type UpstreamStatus struct {
	Address string `json:"address"`
	// Loops means that it sends queries back to this agent, and is left out.
	Loops bool `json:"loops,omitempty"`
	// Silent means that it did not answer the last queries.
	Silent   bool   `json:"silent,omitempty"`
	Failures uint64 `json:"failures"`
	// LastError is why the last failure was one; it may be long ago.
	LastError string `json:"last_error,omitempty"`
}

// Status is what the server does now.
func (s *Server) Status() Status {
	out := Status{
		Table: s.c.Table.State(), Names: s.c.Table.Len(), Queries: s.queries.Load(), Mesh: s.mesh.Load(),
		Forwarded: s.forwarded.Load(), Refused: s.refused.Load(), Failed: s.failed.Load(), Full: s.forward.full.Load(),
	}
	if at := s.listening.Load(); at != nil {
		out.Listening = *at
	}
	if p := s.forward.problem.Load(); p != nil {
		out.Problem = *p
	}
	for _, u := range s.forward.current() {
		x := UpstreamStatus{Address: u.address.Addr().String(), Loops: u.loops.Load(), Silent: u.silent.Load() >= downAfter, Failures: u.failures.Load()}
		if u.address.Port() != portOfDNS {
			x.Address = u.address.String()
		}
		if text := u.lastErr.Load(); text != nil {
			x.LastError = *text
		}
		out.Upstreams = append(out.Upstreams, x)
	}
	return out
}

// Remarks are problems that need action.
func (s Status) Remarks() (out []string) {
	usable := 0
	for _, u := range s.Upstreams {
		switch {
		case u.Loops:
			out = append(out, fmt.Sprintf("DNS loop: the nameserver %s sends the queries of this host back to the agent, and is left out; have it send only names of the mesh here", u.Address))
		case u.Silent:
			out = append(out, fmt.Sprintf("the nameserver %s does not answer the agent's DNS: %s", u.Address, u.LastError))
		default:
			usable++
		}
	}
	switch {
	case s.Problem != "" && len(s.Upstreams) == 0:
		out = append(out, "DNS answers names of the mesh only: "+s.Problem)
	case usable == 0 && len(out) > 0:
		out = append(out, "DNS answers names of the mesh only: no nameserver can be used")
	}
	if s.Table == StateAbsent {
		out = append(out, "DNS answers no names of the mesh: the control plane is of an earlier release")
	}
	return out
}
