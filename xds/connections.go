package xds

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
)

// departedProxy has the unacknowledged names of a proxy that has disconnected.
type departedProxy struct {
	key, host      string // of the proxy; host is empty for all unauthenticated peers
	unacknowledged *stream.UnacknowledgedNames
}

// departedStatus is the last status of a proxy that has disconnected.
type departedStatus struct {
	*ProxyStatus

	host string // as in departedProxy
}

// host is the host of the proxy; empty for all unauthenticated peers.
func (c *conn) host() string {
	if c.peer.Anonymous {
		return ""
	}
	return c.peer.Host
}

// eachHost is how many of all departed proxies one host may be; unauthenticated peers have no limit
// of their own, as for streams.
func (c *Config) eachHost(all int) func(host string) int {
	return func(host string) int {
		if host == "" {
			return all
		}
		return c.MaxPerHost
	}
}

// Limits of what is kept of proxies that are not connected: of all, in both lists. Of one host it is
// as many as it may have streams, and at the limit the host with the most loses its oldest.
const (
	maxDeparted       = 1024
	maxUnacknowledged = 4096
	// maxUnacknowledgedBytes bounds the names that are kept for one host.
	maxUnacknowledgedBytes = 16 << 20
	// maxDepartedRejections bounds the rejections of a type in the status of a departed
	// proxy, and maxDepartedText, in bytes, each error message.
	maxDepartedRejections = 16
	maxDepartedText       = 256
)

// enter registers a connection, and gives it its first configuration.
func (s *Server) enter(ctx context.Context, c *conn) error {
	c.core = stream.NewServer(stream.ServerConfig{Interner: s.interner, GateTimeout: s.cfg.GateTimeout, Retry: c.retry})
	c.id = s.next.Add(1)
	if err := s.claimWorkload(c); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.releaseWorkload(c)
		return errStopping
	}
	unacknowledged := s.takeUnacknowledged(c.proxyKey)
	others := slices.Clone(s.byKey[c.proxyKey])
	s.conns[c] = struct{}{}
	s.byKey[c.proxyKey] = append(s.byKey[c.proxyKey], c)
	s.departed.DeleteFunc(func(d departedStatus) bool { return d.ID == c.nodeID && d.Host == c.peer.Host })
	s.mu.Unlock()

	// The server may not have noticed yet that the proxy's last stream has ended.
	for _, o := range others {
		if o.runInOwner(ctx.Done(), func() { addNames(unacknowledged, o.core.UnacknowledgedNames()) }, c) {
			continue
		}
		select {
		case <-o.done: // it has just ended: take over its unacknowledged names
			addNames(unacknowledged, o.unacknowledged.Names())
		default:
		}
	}
	if len(unacknowledged) > 0 {
		c.core = stream.NewServer(stream.ServerConfig{Interner: s.interner, GateTimeout: s.cfg.GateTimeout, Retry: c.retry, Unacknowledged: unacknowledged})
	}
	c.update(s.cache.At(s.cfg.Snapshots.Snapshot()), c.since, nil)
	s.forgetRefusals(c.peer.Host, c.nodeID)
	s.metrics.streams.WithLabelValues(versionLabel(c.node.reported.EnvoyVersion)).Inc()
	c.log(slog.LevelInfo, "proxy connected", 0, "proxy", c.nodeID, "host", c.peer.Host, "spiffe_id", c.peer.ID.String(), "envoy", c.version)
	return nil
}

// claimWorkload binds the workload of a connection to its host, or rejects the connection.
func (s *Server) claimWorkload(c *conn) error {
	if !c.reports() {
		return nil
	}
	snap := s.cfg.Snapshots.Snapshot()
	w, err := c.node.workload(snap)
	if err != nil { // it was just removed
		return s.reject(c.peer, c.nodeID, err)
	}
	c.claim = c.node.claimOf(c.peer, snap, w)
	if err := s.cfg.Health.StreamOpened(c.id, c.claim, c.loseWorkload); err != nil {
		return s.reject(c.peer, c.nodeID, err)
	}
	return nil
}

func (s *Server) releaseWorkload(c *conn) {
	if c.reports() {
		s.cfg.Health.StreamClosed(c.id)
	}
}

func addNames(to, from map[stream.TypeURL][]string) {
	for t, list := range from {
		to[t] = append(to[t], list...)
	}
}

// takeUnacknowledged returns and forgets the unacknowledged names of a proxy's ended
// streams. Called with mu held.
func (s *Server) takeUnacknowledged(key string) map[stream.TypeURL][]string {
	found := map[stream.TypeURL][]string{}
	s.unacknowledged.DeleteFunc(func(d departedProxy) bool {
		if d.key == key {
			addNames(found, d.unacknowledged.Names())
		}
		return d.key == key
	})
	return found
}

func (s *Server) leave(c *conn) {
	s.releaseWorkload(c)
	s.metrics.streams.WithLabelValues(versionLabel(c.node.reported.EnvoyVersion)).Dec()
	for t := range c.rejecting {
		if g := s.metrics.rejecting[t]; g != nil {
			g.Dec()
		}
	}
	st := c.status()
	st.Connected, st.Left = false, time.Now()
	st.shorten()
	c.releaseMemory()
	c.unacknowledged = s.interner.Retain(c.core.Unacknowledged())
	close(c.done)
	s.mu.Lock()
	delete(s.conns, c)
	s.byKey[c.proxyKey] = slices.DeleteFunc(s.byKey[c.proxyKey], func(o *conn) bool { return o == c })
	if len(s.byKey[c.proxyKey]) == 0 { // else it has reconnected, and the newer stream knows better
		delete(s.byKey, c.proxyKey)
		s.departed.Add(departedStatus{&st, c.host()})
		s.keepUnacknowledged(departedProxy{c.proxyKey, c.host(), c.unacknowledged})
	}
	s.mu.Unlock()
	c.dropRollouts()
	c.log(slog.LevelInfo, "proxy disconnected", c.logLimits.omitted(),
		"proxy", c.nodeID, "host", c.peer.Host, "after", time.Since(c.since).Round(time.Millisecond))
}

// keepUnacknowledged keeps the unacknowledged names of a proxy that has disconnected.
// Their number is limited by host, to that of its streams, and in all; their size by host. Called
// with mu held.
func (s *Server) keepUnacknowledged(d departedProxy) {
	if d.unacknowledged == nil {
		return
	}
	s.unacknowledged.Add(d)
	over := -maxUnacknowledgedBytes
	for _, o := range s.unacknowledged.All() {
		if o.host == d.host {
			over += o.unacknowledged.Size()
		}
	}
	if over <= 0 {
		return
	}
	s.unacknowledged.DeleteFunc(func(o departedProxy) bool { // the oldest first
		if o.host != d.host || over <= 0 {
			return false
		}
		over -= o.unacknowledged.Size()
		return true
	})
}

// shorten reduces the status of a proxy that has disconnected to what is worth keeping.
func (st *ProxyStatus) shorten() {
	st.Origins = nil
	for i := range st.Types {
		t := &st.Types[i]
		t.LastError = strings.Clone(sanitize(t.LastError, maxDepartedText))
		t.RejectedMore = max(0, len(t.Rejected)-maxDepartedRejections)
		t.Rejected = slices.Clone(t.Rejected[:len(t.Rejected)-t.RejectedMore])
		for j := range t.Rejected {
			t.Rejected[j].Reason = strings.Clone(sanitize(t.Rejected[j].Reason, maxDepartedText))
		}
	}
}
