package accept

// victimLocked takes one connection out of its pool that is not authenticated: of
// the pools' first, one that is not spared, the one whose address has more in its
// pool, or else the older one. nil if there is none.
func (a *Acceptor) victimLocked() *conn {
	var out *conn
	for _, p := range a.pools {
		if v := p.victim(); v != nil && (out == nil || v.before(out)) {
			out = v
		}
	}
	if out != nil {
		out.pool.remove(out)
	}
	return out
}

// before reports whether c goes before another one that is in another pool.
func (c *conn) before(o *conn) bool {
	if c.in.sparesLocked(c) != c.in.sparesLocked(o) {
		return c.in.sparesLocked(o)
	}
	if n, m := c.pool.groups[c.group].conns.Len(), o.pool.groups[o.group].conns.Len(); n != m {
		return n > m
	}
	return c.began.Before(o.began)
}

// sparesLocked reports whether c is one that does not go while others are there: there
// are hosts at its address, and that has no more than half of all that are not
// authenticated, however far they have come.
func (a *Acceptor) sparesLocked(c *conn) bool {
	n, all := 0, 0
	for _, p := range a.pools {
		all += p.size
		if g := p.groups[c.group]; g != nil {
			n += g.conns.Len()
		}
	}
	return c.pool.groups[c.group].known && 2*n <= all
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
