package accept

// victimLocked removes and returns one unauthenticated connection, or nil: of the first of
// each pool, one that is not from an address of a host, unless such addresses have more than
// half of all; then the one whose address has more in its pool, or else the older one.
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

// before reports whether c is closed before a connection of another pool. spare means that
// connections from addresses of hosts are closed last.
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

// evict closes a connection for another one.
func (a *Acceptor) evict(c *conn) {
	if c != nil {
		a.drop(c, reasonRoom)
	}
}
