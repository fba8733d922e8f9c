package mesh

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// minRangeBits is how long the prefix of an address range has to be that a bound
// source declares for other namespaces without a pattern.
const minRangeBits = 8

// prefixOf reads a name as an IP address or a range of addresses, in the one form
// that it has: IPv4 within IPv6 is IPv4, and has no zone.
func prefixOf(h Hostname) (netip.Prefix, bool) {
	s := string(h)
	if s == "" || s[0] == '*' || !isHex(s[len(s)-1]) && s[len(s)-1] != ':' && !strings.Contains(s, "%") {
		return netip.Prefix{}, false
	}
	if strings.IndexByte(s, '/') < 0 {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, false
		}
		a = a.Unmap().WithZone("")
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return netip.Prefix{}, false
	}
	if a := p.Addr(); a.Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p.Masked(), true
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

// nameOf is the name of an address or range, as [prefixOf] reads it.
func nameOf(p netip.Prefix) Hostname {
	if p.IsSingleIP() {
		return Hostname(p.Addr().String())
	}
	return Hostname(p.String())
}

// isAddress reports whether a name is an address or a range.
func isAddress(h Hostname) bool {
	_, is := prefixOf(h)
	return is
}

// isWide reports whether a name stands for several: it is a wildcard, or a range.
func isWide(h Hostname) bool { return h.IsWildcard() || strings.IndexByte(string(h), '/') >= 0 }

// SameAddress reports whether two texts are one address, or one range.
func SameAddress(a, b Hostname) bool {
	p, ok := prefixOf(a)
	q, both := prefixOf(b)
	return ok && both && p == q
}

// IsWide reports whether a name of [Owners] stands for several: it is a wildcard, a
// range of addresses, or a port.
func IsWide(h Hostname) bool { return isWide(h) || strings.HasPrefix(string(h), ":") }

// overlapping reports whether two names, or ranges, have something in common.
func overlapping(a, b Hostname) bool {
	p, ok := prefixOf(a)
	if q, both := prefixOf(b); ok && both {
		return p.Overlaps(q)
	}
	return a.Overlaps(b)
}

// covering reports whether a name, or range, has all of another one.
func covering(a, b Hostname) bool {
	p, ok := prefixOf(a)
	if q, both := prefixOf(b); ok && both {
		return p.Bits() <= q.Bits() && p.Overlaps(q)
	}
	return a.Covers(b)
}

// narrower is the order of names that overlap: what stands for less comes first.
func narrower(a, b Hostname) int {
	p, ok := prefixOf(a)
	if q, both := prefixOf(b); ok && both {
		return cmp.Compare(q.Bits(), p.Bits())
	}
	switch {
	case a.IsWildcard() && b.IsWildcard():
		return cmp.Compare(len(b), len(a))
	case b.IsWildcard():
		return -1
	case a.IsWildcard():
		return 1
	default:
		return 0
	}
}

// tooWide reports whether nobody keeps all that a name stands for: a star with less
// than two labels behind it, or a range with a short prefix.
func tooWide(h Hostname) bool {
	if p, is := prefixOf(h); is {
		return p.Bits() < minRangeBits
	}
	return h.IsWildcard() && strings.Count(strings.Trim(string(h[1:]), "."), ".") < 1
}

// widths count the wildcards and ranges among some names by their form, so that
// nobody looks for what is not there; never written to.
type widths struct {
	// ranges are by family and length of the prefix, dotted are wildcards as
	// "*.example" or "*", and odd are those as "*x.example".
	ranges      map[rangeForm]int
	dotted, odd int
}

type rangeForm struct {
	v6   bool
	bits int
}

// change is the widths with names more, and less.
func (w widths) change(added, dropped map[Hostname]bool) widths {
	ranges := maps.Clone(w.ranges)
	if ranges == nil {
		ranges = map[rangeForm]int{}
	}
	count := func(h Hostname, n int) {
		p, is := prefixOf(h)
		switch {
		case !isWide(h):
		case is:
			form := rangeForm{p.Addr().Is6(), p.Bits()}
			if ranges[form] += n; ranges[form] == 0 {
				delete(ranges, form)
			}
		case h == "*" || h[1] == '.':
			w.dotted += n
		default:
			w.odd += n
		}
	}
	for h := range added {
		count(h, 1)
	}
	for h := range dropped {
		count(h, -1)
	}
	w.ranges = ranges
	return w
}

// above yields the wildcards, or ranges, that could have a name, but for itself; the
// narrowest first.
func (w widths) above(h Hostname, yield func(Hostname) bool) {
	if p, is := prefixOf(h); is && len(w.ranges) > 0 {
		for bits := p.Bits() - 1; bits >= 0; bits-- {
			if w.ranges[rangeForm{p.Addr().Is6(), bits}] > 0 && !yield(Hostname(netip.PrefixFrom(p.Addr(), bits).Masked().String())) {
				return
			}
		}
	}
	s := string(h)
	if h.IsWildcard() {
		if s = s[1:]; s == "" {
			return
		}
		s = s[1:]
	}
	if w.dotted+w.odd == 0 {
		return
	}
	for i := 0; i <= len(s); i++ {
		if (w.odd > 0 || i == len(s) || s[i] == '.') && !yield(Hostname("*"+s[i:])) {
			return
		}
	}
}

// spot is a name in an order in which all that a wildcard, or a range, stands for
// is in one stretch.
type spot struct {
	key  string
	name Hostname
}

func compareSpots(a, b spot) int {
	return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(string(a.name), string(b.name)))
}

func spotOf(h Hostname) spot {
	if p, is := prefixOf(h); is {
		return spot{addressKey(p.Addr()), h}
	}
	return spot{backwards(strings.TrimPrefix(string(h), "*")), h}
}

// addressKey orders addresses, behind all names of hosts.
func addressKey(a netip.Addr) string {
	family := "\xff4"
	if a.Is6() {
		family = "\xff6"
	}
	return family + string(a.AsSlice())
}

func backwards(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// spots are names in that order; never written to.
type spots []spot

// change is the spots with names more, and less.
func (s spots) change(added, dropped map[Hostname]bool) spots {
	more := make(spots, 0, len(added))
	for h := range added {
		more = append(more, spotOf(h))
	}
	slices.SortFunc(more, compareSpots)
	out := make(spots, 0, len(s)+len(more))
	for _, x := range s {
		for len(more) > 0 && compareSpots(more[0], x) < 0 {
			out, more = append(out, more[0]), more[1:]
		}
		if !dropped[x.name] {
			out = append(out, x)
		}
	}
	return append(out, more...)
}

// below yields the names that overlap with a wildcard, or a range, but for itself
// and those above it. It looks at no others.
func (s spots) below(h Hostname, yield func(Hostname) bool) bool {
	var within func(key string) bool
	p, is := prefixOf(h)
	from := spotOf(h).key
	if is {
		within = func(key string) bool {
			a, ok := netip.AddrFromSlice([]byte(key[2:]))
			return ok && p.Contains(a)
		}
	} else {
		within = func(key string) bool { return strings.HasPrefix(key, from) }
	}
	i, _ := slices.BinarySearchFunc(s, spot{key: from}, compareSpots)
	for ; i < len(s) && within(s[i].key); i++ {
		if x := s[i].name; x != h && covering(h, x) && !yield(x) {
			return false
		}
	}
	return true
}

// nameIndex files objects under names, and finds them under all that overlap with
// one. Read-only; its zero value is empty.
type nameIndex[T comparable] struct {
	named  shelves[Hostname, []T]
	order  spots
	widths widths
}

// filed is the index after some changes.
func (x *nameIndex[T]) filed(deltas []Delta[T], order func(a, b T) int, under func(T) []Hostname) nameIndex[T] {
	next := nameIndex[T]{named: filed(&x.named, deltas, order, under), order: x.order, widths: x.widths}
	var zero T
	added, dropped := map[Hostname]bool{}, map[Hostname]bool{}
	for _, d := range deltas {
		for _, o := range []T{d.Old, d.New} {
			if o == zero {
				continue
			}
			for _, h := range under(o) {
				switch was, is := len(x.named.get(h)) > 0, len(next.named.get(h)) > 0; {
				case is && !was:
					added[h] = true
				case was && !is:
					dropped[h] = true
				}
			}
		}
	}
	if len(added)+len(dropped) > 0 {
		next.order, next.widths = x.order.change(added, dropped), x.widths.change(added, dropped)
	}
	return next
}

// hasAbove reports whether anything is filed under a wildcard, or range, above a name.
func (x *nameIndex[T]) hasAbove(h Hostname) bool {
	found := false
	if x.named.size > 0 {
		x.widths.above(h, func(name Hostname) bool {
			found = len(x.named.get(name)) > 0
			return !found
		})
	}
	return found
}

// get is what is filed under a very name.
func (x *nameIndex[T]) get(h Hostname) []T { return x.named.get(h) }

// find yields what is filed under a name or, with all, under any that overlaps with
// it. It reports whether all was wanted.
func (x *nameIndex[T]) find(h Hostname, all bool, yield func(T) bool) bool {
	return x.names(h, all, func(name Hostname) bool {
		for _, o := range x.named.get(name) {
			if !yield(o) {
				return false
			}
		}
		return true
	})
}

// names yields a name and, with all, those under which something may be filed that
// overlap with it. It reports whether all were wanted.
func (x *nameIndex[T]) names(h Hostname, all bool, yield func(Hostname) bool) bool {
	if x.named.size == 0 {
		return true
	}
	if !yield(h) {
		return false
	}
	if !all {
		return true
	}
	more := true
	x.widths.above(h, func(name Hostname) bool {
		more = yield(name)
		return more
	})
	return more && (!isWide(h) || x.order.below(h, yield))
}
