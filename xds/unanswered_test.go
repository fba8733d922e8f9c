package xds

import (
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestUnansweredProxies: a proxy that has answered everything before is waited for, and one that owed
// an answer when the snapshot came, or owes its first one for as long, is not.
func TestUnansweredProxies(t *testing.T) {
	t.Parallel()
	r := newRig(t, smallmesh.Shop(), nil)
	now := time.Now().Add(-10 * time.Millisecond)
	n := &Rollout{Generation: 7, Started: now}
	long := now.Add(-unansweredFor)
	for name, c := range map[string]struct {
		owes     *time.Time
		answered bool
		waits    uint64
		want     string
	}{
		"prompt": {&now, true, 7, "false"},
		"short":  {new(now.Add(-time.Second)), true, 7, "false"},
		"silent": {&long, true, 7, "true"},
		"new":    {&now, false, 7, "false"}, // after a restart of the server, all are
		"never":  {new(now.Add(-unansweredFor + time.Millisecond)), false, 7, "true"},
		"other":  {&long, true, 6, ""},
	} {
		conn := &conn{server: r.server, peer: Peer{Host: name}, node: &verifiedNode{reported: node(name, "127.0.0.11")}, calls: make(chan ownerCall), done: make(chan struct{})}
		close(conn.done)
		conn.owesSince.Store(c.owes)
		conn.everAnswered.Store(c.answered)
		conn.unansweredRollouts = []awaited{{&rollout{generation: c.waits}, -1}}
		r.server.mu.Lock()
		r.server.conns[conn] = struct{}{}
		r.server.mu.Unlock()
		got := ""
		for _, u := range r.server.Unanswered(n) {
			if u.Host == name {
				got = strconv.FormatBool(u.Silent)
			}
		}
		if got != c.want {
			t.Errorf("%s: silent %q, want %q", name, got, c.want)
		}
		r.server.mu.Lock()
		delete(r.server.conns, conn)
		r.server.mu.Unlock()
	}
}

// TestResultsAreKeptByAuthor: neither a host whose health changes all the time, nor a namespace that
// is edited all the time, hides the result of another one's edit.
func TestResultsAreKeptByAuthor(t *testing.T) {
	t.Parallel()
	rs := newRollouts()
	edit := func(namespace string) []mesh.Change {
		return []mesh.Change{{Key: mesh.Key{Kind: mesh.KindVirtualService, Namespace: namespace}, Origin: &mesh.Origin{Path: namespace}, Reach: mesh.ReachConfig}}
	}
	rs.begin(&mesh.Snapshot{Generation: 1, Changes: edit("shop")}, time.Now(), 1)
	for i := range uint64(1000) {
		rs.begin(&mesh.Snapshot{Generation: 2 + 2*i, Changes: []mesh.Change{{Reach: mesh.ReachHealth, Origin: &mesh.Origin{}}}}, time.Now(), 1)
		rs.begin(&mesh.Snapshot{Generation: 3 + 2*i, Changes: edit("loud")}, time.Now(), 1)
	}
	all := rs.all()
	if len(all) > maxRollouts || all[0].generation != 1 || all[len(all)-1].generation != 2001 {
		t.Errorf("%d rollouts are kept, from %d to %d", len(all), all[0].generation, all[len(all)-1].generation)
	}
}
