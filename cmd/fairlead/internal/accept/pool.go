package accept

import "container/list"

// pool is the unauthenticated connections of one stage, by group, in the order
// in which they came. Its owner holds the lock of the [Acceptor].
type pool struct {
	most         int // in all
	mostPerGroup int // 0 means most
	size         int
	groups       map[string]*group
	// bySize[n] has the groups of n connections, the one that has had so many for
	// the longest first. Sizes change by one, so that the largest is always found
	// at once.
	bySize []*list.List
}

// group is what one address, or one network of IPv6, has in a pool.
type group struct {
	key   string
	conns *list.List // of *conn, the oldest first
	at    *list.Element
}

func newPool(most, mostPerGroup int) *pool {
	return &pool{most: most, mostPerGroup: mostPerGroup, groups: map[string]*group{}}
}

// add takes a connection in, and gives the one that has to go for it, or nil.
func (p *pool) add(c *conn) (victim *conn) {
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
	c.place = g.conns.PushBack(c)
	p.enter(g)
	p.size++
	return victim
}

// victim is who goes first: the oldest of the group that has the most.
func (p *pool) victim() *conn {
	for n := len(p.bySize) - 1; n > 0; n-- {
		if l := p.bySize[n]; l != nil && l.Len() > 0 {
			if g, ok := l.Front().Value.(*group); ok {
				return g.oldest()
			}
		}
	}
	return nil
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
	c.place = nil
	p.size--
	if g.conns.Len() == 0 {
		delete(p.groups, g.key)
		return
	}
	p.enter(g)
}

func (p *pool) enter(g *group) {
	n := g.conns.Len()
	for len(p.bySize) <= n {
		p.bySize = append(p.bySize, nil)
	}
	if p.bySize[n] == nil {
		p.bySize[n] = list.New()
	}
	g.at = p.bySize[n].PushBack(g)
}

func (p *pool) leave(g *group) {
	n := g.conns.Len()
	p.bySize[n].Remove(g.at)
	g.at = nil
	for last := len(p.bySize) - 1; last >= 0 && (p.bySize[last] == nil || p.bySize[last].Len() == 0); last-- {
		p.bySize = p.bySize[:last]
	}
}
