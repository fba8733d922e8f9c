package webhook

import (
	"strconv"

	"google.golang.org/protobuf/proto"
	networking "istio.io/api/networking/v1alpha3"
)

// unreachable warns of routes and matches that no request ever reaches.
func (c cursor) unreachable(vs *networking.VirtualService) {
	c.deadHTTP(vs.Http)
	tls := deadRoutes{c: c, field: "tls"}
	for _, r := range vs.Tls {
		matches := make([]proto.Message, 0, len(r.GetMatch()))
		for _, m := range r.GetMatch() {
			matches = append(matches, m)
		}
		tls.add(matches)
	}
	tcp := deadRoutes{c: c, field: "tcp"}
	for _, r := range vs.Tcp {
		matches := make([]proto.Message, 0, len(r.GetMatch()))
		for _, m := range r.GetMatch() {
			matches = append(matches, m)
		}
		tcp.add(matches)
	}
}

// deadRoutes takes the routes of one list in order and warns of those that come too late.
type deadRoutes struct {
	c     cursor
	field string
	next  int
	// open is 1 + the index of the route that takes everything, or 0.
	open int
	seen map[string]string
}

func (d *deadRoutes) add(matches []proto.Message) {
	at := d.c.item(d.field, d.next)
	d.next++
	if d.open > 0 {
		at.warn("no request reaches this route: %s[%d] matches everything; move that route to the end", d.field, d.open-1)
		return
	}
	if len(matches) == 0 {
		d.open = d.next
		return
	}
	if d.seen == nil {
		d.seen = map[string]string{}
	}
	dead := 0
	for i, m := range matches {
		key, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			continue
		}
		if first, dup := d.seen[string(key)]; dup {
			at.item("match", i).warn("%s matches the same; remove one of the two", first)
			dead++
			continue
		}
		d.seen[string(key)] = at.item("match", i).path
	}
	if dead == len(matches) {
		at.warn("no request reaches this route: others above match all of it; remove it")
	}
}

func (c cursor) deadHTTP(routes []*networking.HTTPRoute) {
	d := deadRoutes{c: c, field: "http"}
	open := prefixes{}
	for i, r := range routes {
		matches := make([]proto.Message, 0, len(r.GetMatch()))
		for j, m := range r.GetMatch() {
			if m == nil {
				continue
			}
			at := c.item("http", i).item("match", j)
			if p := open.first(m); p != nil {
				at.warn("no request gets here: %s already takes every path that begins with %s; move this match above it",
					p.path, strconv.Quote(p.prefix))
			}
			if bare := (&networking.HTTPMatchRequest{Uri: m.Uri, Name: m.Name}); m.Uri.GetPrefix() != "" && proto.Equal(m, bare) {
				open.add(prefixMatch{path: at.path, prefix: m.Uri.GetPrefix()})
			}
			if m.Name != "" {
				clone, ok := proto.Clone(m).(*networking.HTTPMatchRequest)
				if ok {
					clone.Name = ""
					m = clone
				}
			}
			matches = append(matches, m)
		}
		d.add(matches)
	}
}

// prefixMatch is a match of nothing but the beginning of the path.
type prefixMatch struct {
	path, prefix string
	at           int // how many are before it
}

// prefixes are such matches by the length of the prefix, and the prefix: of equal ones the first.
type prefixes map[int]map[string]*prefixMatch

func (s prefixes) add(p prefixMatch) {
	same := s[len(p.prefix)]
	if same == nil {
		same = map[string]*prefixMatch{}
		s[len(p.prefix)] = same
	}
	if same[p.prefix] == nil {
		for _, others := range s {
			p.at += len(others)
		}
		same[p.prefix] = &p
	}
}

// first is the first of them that all requests of m match too. An equal prefix is left to
// the search for duplicates when it stands alone.
func (s prefixes) first(m *networking.HTTPMatchRequest) *prefixMatch {
	if m.IgnoreUriCase {
		return nil
	}
	var text string
	equal := false
	switch u := m.GetUri().GetMatchType().(type) {
	case *networking.StringMatch_Prefix:
		text = u.Prefix
	case *networking.StringMatch_Exact:
		text, equal = u.Exact, true
	default:
		return nil
	}
	var first *prefixMatch
	for n, same := range s {
		if n > len(text) || n == len(text) && !equal {
			continue
		}
		if p := same[text[:n]]; p != nil && (first == nil || p.at < first.at) {
			first = p
		}
	}
	return first
}
