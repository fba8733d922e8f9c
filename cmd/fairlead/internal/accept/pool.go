package accept

import "container/list"

// pool has the unauthenticated connections at the same stage, by group, in the order in which
// they came. Its owner holds the lock of the [Acceptor].
type pool struct {
	most         int // in all
	mostPerGroup int // 0 means most
	size         int
	sizeKnown    int // of the groups in known
	groups       map[string]*group
	// others and known have the groups by size; those of known addresses are closed last.
	others, known bySize
}

// bySize has groups by size: bySize[n] has those of n connections, the oldest at that size
// first. Sizes change by one, so the largest group is found at once.
type bySize []*list.List

// group has the connections of one address, or one IPv6 network, in a pool.
type group struct {
	key   string
	known bool       // there are hosts at the address
	conns *list.List // of *conn, the oldest first
	at    *list.Element
}

func newPool(most, mostPerGroup int) *pool {
	return &pool{most: most, mostPerGroup: mostPerGroup, groups: map[string]*group{}}
}

// add adds a connection, and returns the one to close for it, or nil. known means that there
// are hosts at its address.
func (p *pool) add(c *conn, known bool) (victim *conn) {
	g := p.groups[c.group]
	switch {
	case g != nil && p.mostPerGroup > 0 && g.conns.Len() >= p.mostPerGroup:
		victim = g.oldest()
	case p.size >= p.most:
		victim = p.victim()
	}
	if victim != nil {
		p.remove(victim)
	}
	if g = p.groups[c.group]; g == nil {
		g = &group{key: c.group, conns: list.New()}
		p.groups[c.group] = g
	} else {
		p.leave(g)
	}
	g.known = known
	c.pool, c.place = p, g.conns.PushBack(c)
	p.enter(g)
	p.size++
	return victim
}

// victim is the connection to close first: the oldest of the largest group. A group of a known
// address is chosen only if there is no other, or if such groups have more than half of the
// pool and it is the largest: an attacker at some of these addresses must not block all
// others.
func (p *pool) victim() *conn {
	g, other := p.known.largest(), p.others.largest()
	if g == nil || other != nil && (2*p.sizeKnown <= p.size || g.conns.Len() <= other.conns.Len()) {
		g = other
	}
	if g == nil {
		return nil
	}
	return g.oldest()
}

func (g *group) oldest() *conn {
	c, _ := g.conns.Front().Value.(*conn)
	return c
}

// remove takes out a connection that is in.
func (p *pool) remove(c *conn) {
	g := p.groups[c.group]
	p.leave(g)
	g.conns.Remove(c.place)
	c.pool, c.place = nil, nil
	p.size--
	if g.conns.Len() == 0 {
		delete(p.groups, g.key)
		return
	}
	p.enter(g)
}

func (p *pool) list(g *group) *bySize {
	if g.known {
		return &p.known
	}
	return &p.others
}

func (p *pool) enter(g *group) {
	if p.list(g).enter(g); g.known {
		p.sizeKnown += g.conns.Len()
	}
}

func (p *pool) leave(g *group) {
	if p.list(g).leave(g); g.known {
		p.sizeKnown -= g.conns.Len()
	}
}

func (b *bySize) enter(g *group) {
	n := g.conns.Len()
	for len(*b) <= n {
		*b = append(*b, nil)
	}
	if (*b)[n] == nil {
		(*b)[n] = list.New()
	}
	g.at = (*b)[n].PushBack(g)
}

func (b *bySize) leave(g *group) {
	(*b)[g.conns.Len()].Remove(g.at)
	g.at = nil
	for last := len(*b) - 1; last >= 0 && ((*b)[last] == nil || (*b)[last].Len() == 0); last-- {
		*b = (*b)[:last]
	}
}

// largest is the largest group, or nil.
func (b *bySize) largest() *group {
	for n := len(*b) - 1; n > 0; n-- {
		if l := (*b)[n]; l != nil && l.Len() > 0 {
			g, _ := l.Front().Value.(*group)
			return g
		}
	}
	return nil
}
