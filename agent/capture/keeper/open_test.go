package keeper

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/agent/capture/beat"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// openMode has two workloads in open mode.
func openMode(s *capture.Settings) {
	s.Mode = capture.Open
	s.Workloads = append(s.Workloads, capture.Workload{Name: "db", Users: []uint32{otherUser}, OutboundPort: 15011, InboundPort: 15016})
}

// agent reports to a socket while its Envoy is alive, until it is stopped.
type agent struct {
	alive atomic.Bool
	stop  func()
}

func (r *rig) agent(socket string, port uint16) *agent {
	r.t.Helper()
	a := &agent{}
	a.alive.Store(true)
	c := beat.Client{Logger: slog.New(slog.NewTextHandler(r.log, nil)), Path: socket, Port: port, Every: 100 * time.Millisecond, Alive: func(context.Context) error {
		if !a.alive.Load() {
			return fmt.Errorf("no Envoy at %d", port)
		}
		return nil
	}}
	ctx, end := context.WithCancel(context.WithoutCancel(r.t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = c.Run(ctx) }()
	a.stop = func() { end(); <-done }
	r.t.Cleanup(a.stop)
	return a
}

// TestOpenMode: at boot connections go directly, then through each Envoy that its agent reports; a
// workload whose Envoy is dead goes directly, and the other one does not.
func TestOpenMode(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.Serve("out2", 15011, true)
	r.confirm(settings(openMode))
	socket := filepath.Join(envoytest.ShortDir(t), "s")
	k := r.keepAt(socket)
	peer := r.at(2, 80)
	r.Want(appUser, peer, "peer")
	r.Want(otherUser, peer, "peer")
	r.peer.Want(otherUser, r.at(1, 8080), "app")
	web, db := r.agent(socket, 15001), r.agent(socket, 15011)
	r.eventually(peer, "out "+peer)
	k.await("both alive", func(st Status) bool { return st.Envoys["web"] && st.Envoys["db"] && st.Kept })
	r.eventuallyAs(otherUser, peer, "out2 "+peer)
	r.peer.Want(otherUser, r.at(1, 8080), "in "+r.at(1, 8080))

	// What others delete comes back with what is known of the Envoys.
	r.NFT("", "flush", "ruleset")
	k.await("mended", func(st Status) bool { return st.Mended["table"] == 1 && st.Kept })
	r.Want(appUser, peer, "out "+peer)
	r.Want(otherUser, peer, "out2 "+peer)

	web.alive.Store(false)
	r.eventually(peer, "peer")
	r.Want(otherUser, peer, "out2 "+peer)
	r.peer.Want(otherUser, r.at(1, 8080), "app")
	k.await("one dead", func(st Status) bool { return !st.Envoys["web"] && st.Envoys["db"] })
	web.alive.Store(true)
	r.eventually(peer, "out "+peer)

	// The agent dies, and comes back.
	web.stop()
	r.eventually(peer, "peer")
	r.agent(socket, 15001)
	r.eventually(peer, "out "+peer)

	// A keeper that is started again interrupts nothing; one that does not come back leaves
	// connections to go directly, by the kernel alone.
	k.stop()
	r.Want(appUser, peer, "out "+peer)
	k = r.keepAt(socket)
	r.Want(appUser, peer, "out "+peer)
	r.Want(otherUser, peer, "out2 "+peer)
	k.await("both alive", func(st Status) bool { return st.Envoys["web"] && st.Envoys["db"] })
	k.stop()
	r.eventually(peer, "peer")
	r.eventuallyAs(otherUser, peer, "peer")
	db.stop()
	if st := k.Status(); st.Mended["table"] != 0 {
		t.Errorf("beats count as changes of others: %+v", st)
	}
}

// TestReportsWidenNothing: reports of what is not captured, in closed mode, without a table, or of
// another port change nothing.
func TestReportsWidenNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	socket := filepath.Join(envoytest.ShortDir(t), "s")
	k := r.keepAt(socket)
	report := func() {
		for _, port := range []uint16{1, 22, 8080, 15001, 15006, 15011, 65535} {
			k.alive(0, port)
		}
	}
	reports := func() int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.reports)
	}
	report()
	r.Want(appUser, r.at(2, 80), "peer")
	r.confirm(settings(func(s *capture.Settings) { s.Mode = capture.Open }))
	k.changed(capture.Tables, "")
	k.await("kept", func(st Status) bool { return st.Kept })
	before := r.ruleset()
	for _, port := range []uint16{1, 22, 8080, 15006, 15011, 65535} {
		k.alive(0, port)
	}
	if got := reports(); got != 0 {
		t.Errorf("%d reports of what is not there", got)
	}
	if after := r.ruleset(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if !k.allowed(0) || !k.allowed(proxyUser) || k.allowed(appUser) || k.allowed(otherUser) {
		t.Error("others than root and the proxies may speak")
	}
	k.alive(0, 15001)
	r.eventually(r.at(2, 80), "out "+r.at(2, 80))
	r.confirm(settings(nil))
	k.changed(capture.Tables, "")
	k.await("closed", func(st Status) bool { return st.Mode == capture.Closed && st.Kept })
	report()
	if got := reports(); got != 0 {
		t.Errorf("%d reports in closed mode", got)
	}
}

// TestUsersSpeakForTheirOwnPorts: with several proxy-users, a report counts from root, from the
// workload's proxy-user and, without one, from who listens at the port; from nobody else. Where one
// user is all of proxy-users, it speaks for all, as agents of earlier versions do.
func TestUsersSpeakForTheirOwnPorts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const web, db, third = proxyUser, proxyUser + 1, proxyUser + 2
	listen := func(uid int, at string) {
		r.As(uid, func() {
			var lc net.ListenConfig
			l, err := lc.Listen(t.Context(), "tcp", at)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = l.Close() })
		})
	}
	listen(web, ":15001")
	listen(web, "127.0.0.1:15053")
	listen(db, ":15011")
	declared := uint32(third)
	several := func(s *capture.Settings) {
		openMode(s)
		s.Proxies = []uint32{web, db, third}
		s.Workloads[0].DNSPort = 15053
		s.Workloads = append(s.Workloads,
			capture.Workload{Name: "dead", Users: []uint32{otherUser + 1}, OutboundPort: 15021 + 10, InboundPort: 15036},
			capture.Workload{Name: "declared", Users: []uint32{otherUser + 2}, OutboundPort: 15041, InboundPort: 15046, DNSPort: 15054, ProxyUser: &declared})
	}
	r.confirm(settings(several))
	k := r.keep()
	reported := func(uid uint32, port uint16) bool {
		k.mu.Lock()
		delete(k.reports, port)
		k.mu.Unlock()
		k.alive(uid, port)
		return k.reported(port) > 0
	}
	who := map[uint16][]uint32{15001: {0, web}, 15053: {0, web}, 15011: {0, db}, 15031: {0}, 15041: {0, third}, 15054: {0, third}}
	for _, port := range slices.Sorted(maps.Keys(who)) { // the log has the first rejections only
		for _, uid := range []uint32{0, web, db, third, appUser} {
			if got := reported(uid, port); got != slices.Contains(who[port], uid) {
				t.Errorf("user %d reports for port %d: %v", uid, port, got)
			}
		}
	}
	if log := r.log.String(); !strings.Contains(log, "report that a workload is alive rejected") || !strings.Contains(log, "listens at the port") {
		t.Error(log)
	}
	r.confirm(settings(openMode))
	k.changed(capture.Tables, "")
	k.await("two workloads", func(st Status) bool { return st.Kept && len(st.Envoys) == 2 })
	for _, port := range []uint16{15001, 15011} {
		if !reported(web, port) {
			t.Errorf("the only one of proxy-users does not report for port %d", port)
		}
	}
}
