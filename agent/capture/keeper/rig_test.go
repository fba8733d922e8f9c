package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/nethost"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Users of the tests. No such users have to exist.
const (
	proxyUser, appUser, otherUser = 21337, 22001, 23001
)

// rig is a host with a peer, a directory of settings, and perhaps a keeper.
type rig struct {
	*nethost.Host

	t      *testing.T
	peer   *nethost.Host
	net    int
	dir    string
	kernel capture.Kernel
	log    *envoytest.Log
}

var nets atomic.Int64

func newRig(t *testing.T) *rig {
	t.Helper()
	h, peer := nethost.New(t), nethost.New(t)
	r := &rig{Host: h, t: t, peer: peer, net: int(nets.Add(1)), dir: filepath.Join(t.TempDir(), "capture"), kernel: capture.Kernel{NetNS: h.FD}, log: &envoytest.Log{}}
	nethost.Link(h, peer, r.net)
	return r
}

// servers has an application, a peer and something that stands for Envoy listen.
func (r *rig) servers() {
	r.Serve("out", 15001, true)
	r.Serve("in", 15006, true)
	r.Serve("app", 8080, false)
	r.peer.Serve("peer", 80, false)
}

// at is an address of the peer (2) or the host (1).
func (r *rig) at(n, port int) string { return fmt.Sprintf("10.%d.0.%d:%d", r.net, n, port) }

// settings are those of the tests: all connections of the application's user, and its port.
func settings(change func(*capture.Settings)) *capture.Saved {
	s := capture.Settings{
		Mode: capture.Closed, Outbound: capture.OutboundUID, Inbound: capture.InboundDeclared, Ranges: capture.DefaultRanges(),
		Proxies: []uint32{proxyUser}, ControlPlanePorts: []uint16{15012},
		Workloads: []capture.Workload{{Name: "web", Users: []uint32{appUser}, Ports: []uint16{8080}, OutboundPort: 15001, InboundPort: 15006}},
	}
	if change != nil {
		change(&s)
	}
	return &capture.Saved{Settings: s}
}

// confirm saves settings as if they had been applied and confirmed.
func (r *rig) confirm(s *capture.Saved) {
	r.t.Helper()
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	unlock := r.lock()
	defer unlock()
	if err := errors.Join(capture.SavePending(r.dir, s), capture.SaveConfirmed(r.dir)); err != nil {
		r.t.Fatal(err)
	}
}

// running is a keeper that runs.
type running struct {
	*Keeper

	t    *testing.T
	end  context.CancelFunc
	done chan error
}

// keep runs a keeper until the test ends, and waits until it is ready.
func (r *rig) keep() *running {
	r.t.Helper()
	return r.keepAt("")
}

// keepAt is keep with a socket.
func (r *rig) keepAt(socket string) *running {
	r.t.Helper()
	out := r.start(socket)
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		select {
		case err := <-out.done:
			r.t.Fatalf("it ended: %v", err)
		default:
		}
		if why := out.NotReady(); len(why) > 0 {
			return errors.New(why[0])
		}
		return nil
	})
	return out
}

func (r *rig) start(socket string) *running {
	r.t.Helper()
	k, err := New(Config{Logger: slog.New(slog.NewTextHandler(r.log, nil)), Dir: r.dir, Socket: socket, Kernel: r.kernel})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(r.t.Context()))
	out := &running{Keeper: k, t: r.t, end: end, done: make(chan error, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		out.done <- k.Run(ctx)
	}()
	r.t.Cleanup(func() { end(); <-ended })
	return out
}

// stop ends the keeper.
func (k *running) stop() {
	k.t.Helper()
	k.end()
	if err := <-k.done; err != nil {
		k.t.Error(err)
	}
}

// await waits for a status.
func (k *running) await(what string, is func(Status) bool) Status {
	k.t.Helper()
	var st Status
	envoytest.Eventually(k.t, envoytest.Patience, func() error {
		if st = k.Status(); !is(st) {
			return fmt.Errorf("not %s: %+v", what, st)
		}
		return nil
	})
	return st
}

// eventually waits for an answer to the application.
func (r *rig) eventually(to, want string) {
	r.t.Helper()
	r.eventuallyAs(appUser, to, want)
}

func (r *rig) eventuallyAs(uid int, to, want string) {
	r.t.Helper()
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		if got := r.Get(uid, to); got != want {
			return fmt.Errorf("%s: %q, want %q", to, got, want)
		}
		return nil
	})
}

// apply does what `fairlead capture apply` does.
func (r *rig) apply(s *capture.Saved, within time.Duration) {
	r.t.Helper()
	table, err := capture.Build(&s.Settings, &s.Facts)
	if err != nil {
		r.t.Fatal(err)
	}
	unlock := r.lock()
	defer unlock()
	err = capture.SavePending(r.dir, s)
	if err == nil {
		_, err = r.kernel.Prepare(table)
	}
	if err == nil {
		err = r.kernel.Apply(table.With(within))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}
