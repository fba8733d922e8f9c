package dns

import (
	"context"
	"crypto/rand"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	mdns "github.com/miekg/dns"
)

// probeInterval is the time from one probe of the upstreams to the next, and settleTime how long
// resolv.conf must rest before it is read.
const (
	probeInterval = 30 * time.Second
	settleTime    = 100 * time.Millisecond
	minProbePause = 2 * time.Second
)

// run keeps the upstreams as resolv.conf says, and probes them, until ctx ends.
func (f *forwarder) run(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		f.s.log.WarnContext(ctx, "resolv.conf is not watched; it is read every 30 s", "err", err)
	} else {
		defer func() { _ = watcher.Close() }()
	}
	var events <-chan fsnotify.Event
	var errs <-chan error
	if watcher != nil {
		events, errs = watcher.Events, watcher.Errors
	}
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	var probed time.Time
	for {
		probe := true
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events:
			if ok {
				settle.Reset(settleTime)
			} else {
				events = nil
			}
			continue
		case _, ok := <-errs:
			if !ok {
				errs = nil
			}
			continue // the ticker reads the file
		case <-settle.C:
			f.watch(watcher)
			probe = f.load(ctx)
		case <-ticker.C:
			f.watch(watcher)
			f.load(ctx)
		case <-f.reprobe:
			probe = time.Since(probed) > minProbePause
		}
		if probe {
			probed = time.Now()
			f.probeAll(ctx)
		}
	}
}

// watch watches the directories of resolv.conf and of what it is a link to. Editors and services
// replace the file, so a watch of the file itself would see the first change only.
func (f *forwarder) watch(w *fsnotify.Watcher) {
	if w == nil {
		return
	}
	want := []string{}
	for _, path := range []string{f.s.c.ResolvConf, f.s.c.Stub} {
		dirs := []string{filepath.Dir(path)}
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
		for _, dir := range dirs {
			if !slices.Contains(want, dir) {
				want = append(want, dir)
			}
		}
	}
	have := w.WatchList()
	for _, dir := range want {
		if !slices.Contains(have, dir) {
			_ = w.Add(dir) // it may not exist; tried again with each reading
		}
	}
	for _, dir := range have {
		if !slices.Contains(want, dir) {
			_ = w.Remove(dir)
		}
	}
}

// load reads resolv.conf. It reports whether there are other upstreams than before. If it cannot be
// read or names nobody, the last ones stay.
func (f *forwarder) load(ctx context.Context) bool {
	list, options, err := readUpstreams(f.s.c.ResolvConf, f.s.c.Stub, f.s.own())
	if err != nil {
		text := err.Error()
		if was := f.problem.Swap(&text); was == nil || *was != text {
			f.s.log.WarnContext(ctx, "no nameservers for names outside of the mesh; using the last ones", "path", f.s.c.ResolvConf, "count", len(f.current()), "err", err)
		}
		return false
	}
	f.problem.Store(nil)
	f.patience.Store(&options)
	was := f.current()
	if slices.EqualFunc(was, list, func(u *upstream, a netip.AddrPort) bool { return u.address == a }) {
		return false
	}
	next := make([]*upstream, len(list))
	for i, a := range list {
		if j := slices.IndexFunc(was, func(u *upstream) bool { return u.address == a }); j >= 0 {
			next[i] = was[j]
		} else {
			next[i] = &upstream{address: a}
		}
	}
	f.upstreams.Store(&next)
	f.s.log.InfoContext(ctx, "nameservers for names outside of the mesh", "path", f.s.c.ResolvConf, "names", list)
	return true
}

// probeSoon has the upstreams probed at once.
func (f *forwarder) probeSoon() {
	select {
	case f.reprobe <- struct{}{}:
	default:
	}
}

// probeAll asks each upstream for a name that nobody can know. If the query comes back, the upstream
// asks this server.
func (f *forwarder) probeAll(ctx context.Context) {
	var wait sync.WaitGroup
	for _, u := range f.current() {
		wait.Go(func() { f.probe(ctx, u) })
	}
	wait.Wait()
}

func (f *forwarder) probe(ctx context.Context, u *upstream) {
	name := strings.ToLower(rand.Text() + "." + rand.Text() + ".")
	f.mu.Lock()
	f.probes[name] = u
	f.mu.Unlock()
	was := u.loops.Load()
	back := f.looped.Load()
	m := new(mdns.Msg)
	m.SetQuestion(name, mdns.TypeHINFO)
	began := time.Now()
	p := f.waits()
	_, err := exchangeWith(ctx, u.address, m, !p.tcp, []time.Duration{p.timeout}, func(error) {})
	f.mu.Lock()
	_, unseen := f.probes[name]
	delete(f.probes, name)
	f.mu.Unlock()
	if unseen && err == nil && time.Since(began) < f.nextAfter {
		u.silent.Store(0) // it is asked in its turn again, also if no query came to it since
	}
	switch {
	case !unseen && !was:
		f.s.log.ErrorContext(ctx, "DNS loop: this nameserver sends the queries of this host back to the agent; it is left out until it does not",
			"address", u.address, "count", f.looped.Load()-back)
	case unseen && was && err == nil:
		u.loops.Store(false)
		f.s.log.InfoContext(ctx, "DNS loop has ended: using the nameserver again", "address", u.address)
	}
}

// isProbe reports whether a query is a probe that came back.
func (f *forwarder) isProbe(q mdns.Question) bool {
	if q.Qtype != mdns.TypeHINFO {
		return false
	}
	name := mdns.CanonicalName(q.Name)
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.probes[name]
	if u == nil {
		return false
	}
	delete(f.probes, name)
	f.looped.Add(1)
	u.loops.Store(true)
	return true
}

// own are the addresses of this server.
func (s *Server) own() (out []netip.AddrPort) {
	if at := s.listening.Load(); at != nil {
		for _, text := range *at {
			if a, err := netip.ParseAddrPort(text); err == nil {
				out = append(out, a)
			}
		}
	}
	return out
}
