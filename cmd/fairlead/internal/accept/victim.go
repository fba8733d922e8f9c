package accept

// victimLocked takes one connection out of its pool that is not authenticated, of
// those that go first in their pools: one from no host's address, unless such
// addresses have more than half of all, however far they have come; then the one
// whose address has more in its pool, or else the older one. nil if there is none.
func (a *Acceptor) victimLocked() *conn {
	size, known := 0, 0
	for _, p := range a.pools {
		size, known = size+p.size, known+p.sizeKnown
	}
	spare := 2*known <= size
	var out *conn
	for _, p := range a.pools {
		if v := p.victim(); v != nil && (out == nil || v.before(out, spare)) {
			out = v
		}
	}
	if out != nil {
		out.pool.remove(out)
	}
	return out
}

// before reports whether c goes before another one that is in another pool. spare says
// that who is from a host's address goes last.
func (c *conn) before(o *conn, spare bool) bool {
	g, h := c.pool.groups[c.group], o.pool.groups[o.group]
	n, m := g.conns.Len(), h.conns.Len()
	switch {
	case g.known != h.known && (spare || n == m):
		return h.known
	case n != m:
		return n > m
	}
	return c.began.Before(o.began)
}

// makeRoom closes one connection that is not authenticated.
func (a *Acceptor) makeRoom() {
	a.mu.Lock()
	v := a.victimLocked()
	a.mu.Unlock()
	a.evict(v)
}

// evict closes a connection that had to go for another one.
func (a *Acceptor) evict(c *conn) {
	if c != nil {
		a.drop(c, reasonRoom)
	}
}
