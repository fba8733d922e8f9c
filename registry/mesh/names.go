package mesh

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// minRangeBits is how long the prefix of an address range has to be that counts for other namespaces without a
// pattern, by a Gateway for instance.
const minRangeBits = 8

// prefixOf parses a name as an IP address or an address range, in canonical form: IPv4 in
// IPv6 is IPv4, without a zone.
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

// IsPartialWildcard reports whether a wildcard in the name stands for a part of a label, as in *-a.example.com.
func (h Hostname) IsPartialWildcard() bool {
	return h != "*" && strings.Contains(strings.TrimPrefix(string(h), "*."), "*")
}

// isWide reports whether a name stands for several: it is a wildcard, or a range.
func isWide(h Hostname) bool { return h.IsWildcard() || strings.IndexByte(string(h), '/') >= 0 }

// SameAddress reports whether two texts are one address, or one range.
func SameAddress(a, b Hostname) bool {
	p, ok := prefixOf(a)
	q, _ := prefixOf(b)
	return ok && p == q
}

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

// compareWidth orders overlapping names: the narrower comes first.
func compareWidth(a, b Hostname) int {
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

// tooWide reports whether a name covers too much to be owned: a wildcard with fewer than
// two labels, or a range with a short prefix.
func tooWide(h Hostname) bool {
	if p, is := prefixOf(h); is {
		return p.Bits() < minRangeBits
	}
	return h.IsWildcard() && strings.Count(strings.Trim(string(h[1:]), "."), ".") < 1
}

// wideNames counts the wildcards and ranges among some names by form, so that forms that do
// not occur are not searched. It is immutable.
type wideNames struct {
	// ranges are by family and length of the prefix, dotted are wildcards as
	// "*.example" or "*", and odd are those as "*x.example".
	ranges      map[rangeForm]int
	dotted, odd int
}

type rangeForm struct {
	v6   bool
	bits int
}

// with returns the counts after adding and removing names.
func (w wideNames) with(added, dropped map[Hostname]bool) wideNames {
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

// above yields the wildcards or ranges that could cover a name, except itself, the
// narrowest first.
func (w wideNames) above(h Hostname, yield func(Hostname) bool) {
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

// sortedName is a name with a sort key, by which all names that a wildcard or range covers
// are adjacent.
type sortedName struct {
	key  string
	name Hostname
}

func compareSortedNames(a, b sortedName) int {
	return cmp.Or(strings.Compare(a.key, b.key), strings.Compare(string(a.name), string(b.name)))
}

func sortedNameOf(h Hostname) sortedName {
	if p, is := prefixOf(h); is {
		return sortedName{addressKey(p.Addr()), h}
	}
	return sortedName{reversed(strings.TrimPrefix(string(h), "*")), h}
}

// addressKey orders addresses, behind all names of hosts.
func addressKey(a netip.Addr) string {
	family := "\xff4"
	if a.Is6() {
		family = "\xff6"
	}
	return family + string(a.AsSlice())
}

func reversed(s string) string {
	b := []byte(s)
	slices.Reverse(b)
	return string(b)
}

// sortedNames are names sorted by that key. They are immutable.
type sortedNames []sortedName

// with returns the names after adding and removing some.
func (s sortedNames) with(added, dropped map[Hostname]bool) sortedNames {
	more := make(sortedNames, 0, len(added))
	for h := range added {
		more = append(more, sortedNameOf(h))
	}
	slices.SortFunc(more, compareSortedNames)
	out := make(sortedNames, 0, len(s)+len(more))
	for _, x := range s {
		for len(more) > 0 && compareSortedNames(more[0], x) < 0 {
			out, more = append(out, more[0]), more[1:]
		}
		if !dropped[x.name] {
			out = append(out, x)
		}
	}
	return append(out, more...)
}

// below yields the names that a wildcard or range covers, except itself. It does not look
// at others.
func (s sortedNames) below(h Hostname, yield func(Hostname) bool) bool {
	var within func(key string) bool
	p, is := prefixOf(h)
	from := sortedNameOf(h).key
	if is {
		within = func(key string) bool {
			a, ok := netip.AddrFromSlice([]byte(key[2:]))
			return ok && p.Contains(a)
		}
	} else {
		within = func(key string) bool { return strings.HasPrefix(key, from) }
	}
	i, _ := slices.BinarySearchFunc(s, sortedName{key: from}, compareSortedNames)
	for ; i < len(s) && within(s[i].key); i++ {
		if x := s[i].name; x != h && covering(h, x) && !yield(x) {
			return false
		}
	}
	return true
}

// nameIndex indexes objects by names, and finds them by all overlapping names. It is
// immutable; the zero value is empty.
type nameIndex[T comparable] struct {
	named  persistentMap[Hostname, []T]
	order  sortedNames
	widths wideNames
}

// updated is the index after some changes.
func (x *nameIndex[T]) updated(deltas []Delta[T], order func(a, b T) int, under func(T) []Hostname) nameIndex[T] {
	next := nameIndex[T]{named: indexed(&x.named, deltas, order, under), order: x.order, widths: x.widths}
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
		next.order, next.widths = x.order.with(added, dropped), x.widths.with(added, dropped)
	}
	return next
}

// get returns the objects with exactly that name.
func (x *nameIndex[T]) get(h Hostname) []T { return x.named.get(h) }

// find yields the objects with a name or, with all, with any overlapping name. It reports
// whether yield wanted all.
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

// names yields a name and, with all, the overlapping names that may have objects. It
// reports whether yield wanted all.
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
