package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/fairlead/fairlead/internal/peeraddr"
	"github.com/fairlead/fairlead/pki/issue"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
)

const (
	// refusedFor is how long a refusal counts that does not happen again: whoever is refused
	// tries again within a minute.
	refusedFor = 10 * time.Minute
	// refusedQuiet is the same for a peer that was let in since, and that was also let in while it was
	// refused: two machines may have one name.
	refusedQuiet = time.Minute
	// recentFor is how old the conditions of /readyz and /metrics may be: anybody may ask there,
	// as often as they like.
	recentFor = 3 * time.Second
)

// AllConditions is what needs a person.
type AllConditions struct {
	Well   bool        `json:"well"`
	Unwell []Condition `json:"unwell"`
}

func (s *Server) conditions(context.Context, *http.Request, struct{}) (AllConditions, error) {
	list := s.conditionsNow()
	return AllConditions{Well: len(list) == 0, Unwell: append([]Condition{}, list...)}, nil
}

func (s *Server) conditionsNow() []Condition {
	now := time.Now()
	p, src := s.proxiesNow(now), s.sourcesNow()
	return Conditions(&p, &src, now)
}

// recentConditions keeps what was found last.
type recentConditions struct {
	mu   sync.Mutex // guards all following fields
	at   time.Time
	list []Condition
}

// recentConditions are the conditions of not long ago; none during the start.
func (s *Server) recentConditions() []Condition {
	if s.xds == nil || s.hosts == nil {
		return nil
	}
	s.recent.mu.Lock()
	defer s.recent.mu.Unlock()
	if now := time.Now(); now.Sub(s.recent.at) > recentFor {
		s.recent.list = s.conditionsNow()
		s.recent.at = time.Now()
	}
	return s.recent.list
}

// inMesh gives a proxy the health that its workload, which may be nil, has in the mesh.
func (x *Proxy) inMesh(w *mesh.Workload) {
	if w != nil {
		x.Health, x.HealthReason, x.Withdrawn = w.Health.String(), w.HealthReason, w.Withdrawn
	}
}

// addAbsent adds hosts that are not connected, and marks proxies whose agents left. Workloads
// whose agent is not connected get a row, if they have none, and so do absent hosts of which
// no workload is known.
func (s *Server) addAbsent(out *Proxies, snap *mesh.Snapshot, now time.Time) {
	out.Absent = s.absent(now)
	absent, onRecord := map[string]time.Time{}, map[string]bool{}
	for _, a := range out.Absent {
		absent[a.Name] = a.Since
	}
	for _, h := range s.hostList() {
		onRecord[h.Name] = h.onRecord && !h.Direct // a direct client needs no stream
		if h.Fault != "" {
			out.HostFaults = append(out.HostFaults, HostFault{h.Name, h.Fault})
		}
	}
	type served struct{ host, workload string }
	rows, live := map[served]bool{}, map[string]bool{}
	for i := range out.Proxies {
		x := &out.Proxies[i]
		rows[served{x.Host, x.Workload}] = true
		live[x.Workload] = live[x.Workload] || x.Connected
	}
	// mark says what has become of the agent of a proxy that is not connected.
	mark := func(x *Proxy) {
		since, gone := absent[x.Host]
		if x.Absent = gone; gone {
			x.Since = since
			return
		}
		x.AgentGone = onRecord[x.Host] && !live[x.Workload] && now.Sub(x.Since) >= leftAfter && workloadOf(snap, keyOf(x.Workload)) != nil
	}
	for i := range out.Proxies {
		if x := &out.Proxies[i]; !x.Connected {
			mark(x)
		}
	}
	for _, w := range s.agents.Away() {
		row := awayRow(w)
		if rows[served{row.Host, row.Workload}] || live[row.Workload] {
			continue // it has a row, or is another host's by now
		}
		if mark(&row); row.Absent || row.AgentGone && w.State != agents.Awaited {
			row.inMesh(workloadOf(snap, keyOf(row.Workload)))
			out.Proxies = append(out.Proxies, row)
		}
	}
	listed := map[string]bool{}
	for i := range out.Proxies {
		listed[out.Proxies[i].Host] = true
	}
	for _, a := range out.Absent {
		if !listed[a.Name] {
			out.Proxies = append(out.Proxies, Proxy{Host: a.Name, Since: a.Since, Absent: true, Types: []Type{}})
		}
	}
}

// awayRow is the row of a workload of which no proxy is known since the start.
func awayRow(w agents.WorkloadStatus) Proxy {
	workload := w.ServiceAccount.Namespace + "/" + w.Workload
	return Proxy{
		Name: w.Workload + "." + w.ServiceAccount.Namespace, Host: w.Host, ServiceAccount: w.ServiceAccount.String(), Workload: workload,
		Since: w.Since, Health: w.Health.String(), HealthReason: w.Reason, Types: []Type{},
	}
}

// keyOf is the key of the workload NAMESPACE/NAME.
func keyOf(workload string) mesh.Key {
	namespace, name, _ := strings.Cut(workload, "/")
	return mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: namespace, Name: name}
}

// refused lists who is refused, as far as it is not over: a refusal is over when the peer was
// let in since, when it does not happen again, and when a person says so.
func (s *Server) refused(now time.Time) []Refused {
	out := []Refused{}
	first := []time.Time{}
	for _, r := range s.xds.Refused() {
		out = append(out, Refused{Host: r.Host, Node: r.Node, Peer: r.Peer, What: "stream", Reason: r.Reason, Last: r.Last, Count: r.Count})
		first = append(first, r.First)
	}
	for _, r := range s.issuer.Refusals() {
		out = append(out, Refused{Host: r.Host, Peer: r.Peer, What: "certificate", Reason: r.Reason, Last: r.Last, Count: r.Count})
		first = append(first, r.First)
	}
	left := out[:0]
	for i, r := range out {
		quiet, is := now.Sub(r.Last), s.presence.admitted(r.Host, r.Peer, first[i], r.Last)
		if quiet <= refusedFor && is != admittedSince && (is != admittedBetween || quiet <= refusedQuiet) {
			left = append(left, r)
		}
	}
	return left
}

// Forgotten says how many refusals were forgotten.
type Forgotten struct {
	Forgotten int `json:"forgotten"`
}

// forgetRefusals forgets the refusals of ?peer=, a host's name or an address, or of all peers.
func (s *Server) forgetRefusals(ctx context.Context, r *http.Request, _ struct{}) (Forgotten, error) {
	q := r.URL.Query()
	name, all := q.Get("peer"), q.Get("all") == "true"
	if name == "" && !all {
		return Forgotten{}, errors.New("name the host or the address whose refusals are to be forgotten, or use --all")
	}
	n := 0
	is := func(host, peer string) bool {
		yes := all || host != "" && host == name || host == "" && peeraddr.Group(peer) == peeraddr.Group(name)
		if yes {
			n++
		}
		return yes
	}
	s.xds.ForgetRefused(func(r xds.Refusal) bool { return is(r.Host, r.Peer) })
	s.issuer.ForgetRefusals(func(r issue.Refusal) bool { return is(r.Host, r.Peer) })
	if n == 0 && !all {
		return Forgotten{}, fmt.Errorf("nobody called %q is refused: `fairlead proxy-status` lists who is: %w", name, fs.ErrNotExist)
	}
	s.cfg.Logger.InfoContext(ctx, "refusals forgotten by operator", "host", name, "count", n)
	return Forgotten{n}, nil
}
