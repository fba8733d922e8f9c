package xds

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/xds/stream"
)

// doubt is what a proxy that has gone may or may not have.
type doubt struct {
	key, host string // of the proxy; nobody's host is empty
	names     *stream.Memory
}

// Bounds on what is remembered of proxies that are not connected.
const (
	maxLeft     = 256
	maxDistrust = 4096
	// maxDoubts bounds, in bytes, the names that are remembered for one host.
	maxDoubts = 16 << 20
	// maxToldOfLeft bounds the refusals of a type that are told of who has left, and
	// maxWordsOfLeft, in bytes, what it said of each.
	maxToldOfLeft  = 16
	maxWordsOfLeft = 256
)

// enter adds a connection to those that are served, and has it see the mesh.
func (s *Server) enter(ctx context.Context, c *conn) error {
	c.core = stream.NewServer(stream.ServerConfig{Interner: s.interner, GateTimeout: s.cfg.GateTimeout})
	c.id = s.next.Add(1)
	if err := s.claim(c); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.unclaim(c)
		return errStopping
	}
	distrust := s.doubtsOf(c.key)
	others := slices.Clone(s.byKey[c.key])
	s.conns[c] = struct{}{}
	s.byKey[c.key] = append(s.byKey[c.key], c)
	s.left = slices.DeleteFunc(s.left, func(p ProxyStatus) bool { return p.ID == c.nodeID && p.Host == c.peer.Host })
	s.mu.Unlock()

	// The end of the proxy's last stream may not have been noticed yet.
	for _, o := range others {
		if o.ask(ctx.Done(), func() { addNames(distrust, o.core.Unknown()) }, c) {
			continue
		}
		select {
		case <-o.done: // it has just ended, and who comes back takes over its doubts
			addNames(distrust, o.doubts.Names())
		default:
		}
	}
	if len(distrust) > 0 {
		c.core = stream.NewServer(stream.ServerConfig{Interner: s.interner, GateTimeout: s.cfg.GateTimeout, Distrust: distrust})
	}
	c.look(s.cache.At(s.cfg.Snapshots.Snapshot()), c.since, nil)
	s.forgetRefusals(c.peer.Host, c.nodeID)
	s.metrics.streams.WithLabelValues(versionLabel(c.claim.node.EnvoyVersion)).Inc()
	c.tell(slog.LevelInfo, "proxy connected", 0, "proxy", c.nodeID, "host", c.peer.Host, "spiffe_id", c.peer.ID.String(), "envoy", c.version)
	return nil
}

// claim binds the workload of a connection to its host, or refuses the connection.
func (s *Server) claim(c *conn) error {
	if !c.reports() {
		return nil
	}
	snap := s.cfg.Snapshots.Snapshot()
	w, err := c.claim.workload(snap)
	if err != nil { // it has just left
		return s.refuse(c.peer, c.nodeID, err)
	}
	c.claimed = c.claim.of(c.peer, snap, w)
	if err := s.cfg.Health.StreamOpened(c.id, c.claimed, c.lose); err != nil {
		return s.refuse(c.peer, c.nodeID, err)
	}
	return nil
}

func (s *Server) unclaim(c *conn) {
	if c.reports() {
		s.cfg.Health.StreamClosed(c.id)
	}
}

func addNames(to, from map[stream.TypeURL][]string) {
	for t, list := range from {
		to[t] = append(to[t], list...)
	}
}

// doubtsOf is what a proxy that comes back may or may not have, of streams that
// have ended. Called with mu held.
func (s *Server) doubtsOf(key string) map[stream.TypeURL][]string {
	found := map[stream.TypeURL][]string{}
	s.distrust = slices.DeleteFunc(s.distrust, func(d doubt) bool {
		if d.key == key {
			addNames(found, d.names.Names())
		}
		return d.key == key
	})
	return found
}

func (s *Server) leave(c *conn) {
	s.unclaim(c)
	s.metrics.streams.WithLabelValues(versionLabel(c.claim.node.EnvoyVersion)).Dec()
	for t := range c.rejecting {
		if g := s.metrics.rejecting[t]; g != nil {
			g.Dec()
		}
	}
	st := c.publish()
	st.Connected, st.Left = false, time.Now()
	st.shorten()
	c.weighNothing()
	c.doubts = s.interner.Remember(c.core.Doubts())
	close(c.done)
	s.mu.Lock()
	delete(s.conns, c)
	s.byKey[c.key] = slices.DeleteFunc(s.byKey[c.key], func(o *conn) bool { return o == c })
	if len(s.byKey[c.key]) == 0 { // else it is back already, and the stream that it has knows better
		delete(s.byKey, c.key)
		s.left = append(s.left, st)
		if n := len(s.left); n > maxLeft {
			s.left = slices.Delete(s.left, 0, n-maxLeft)
		}
		host := c.peer.Host
		if c.peer.Anonymous {
			host = ""
		}
		s.remember(doubt{c.key, host, c.doubts})
	}
	s.mu.Unlock()
	c.owesNothing()
	c.tell(slog.LevelInfo, "proxy disconnected", c.lines.omitted(),
		"proxy", c.nodeID, "host", c.peer.Host, "after", time.Since(c.since).Round(time.Millisecond))
}

// remember keeps what a proxy may or may not have that has gone. Of one host there
// is room for as many as it may have streams, and in all for so many. Called with
// mu held.
func (s *Server) remember(d doubt) {
	if d.names == nil {
		return
	}
	s.distrust = append(s.distrust, d)
	most, n, bytes := s.cfg.MaxPerHost, 0, 0
	for i, o := range slices.Backward(s.distrust) { // the newest count most
		if o.host == d.host && d.host != "" {
			n++
			if bytes += o.names.Size(); n > most || bytes > maxDoubts {
				s.distrust = slices.Delete(s.distrust, i, i+1)
			}
		}
	}
	if n := len(s.distrust); n > maxDistrust {
		s.distrust = slices.Delete(s.distrust, 0, n-maxDistrust)
	}
}

// shorten leaves of a status what is worth being kept of a proxy that has gone.
func (st *ProxyStatus) shorten() {
	st.Origins = nil
	for i := range st.Types {
		t := &st.Types[i]
		t.LastError = strings.Clone(clip(t.LastError, maxWordsOfLeft))
		t.RejectedMore = max(0, len(t.Rejected)-maxToldOfLeft)
		t.Rejected = slices.Clone(t.Rejected[:len(t.Rejected)-t.RejectedMore])
		for j := range t.Rejected {
			t.Rejected[j].Reason = strings.Clone(clip(t.Rejected[j].Reason, maxWordsOfLeft))
		}
	}
}
