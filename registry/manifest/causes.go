package manifest

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/manifest/schema"
)

// causes are the problems of one object, found by their paths: an object can have as many broken rules
// as problems.
type causes struct {
	// at are the paths of all, with whether one of them has everything below it for its consequence.
	at      map[string]bool
	lengths []int // of the paths, without those twice
	hard    []string
}

// hard reports whether the problem takes the whole value out.
func hard(p schema.Problem) bool { return p.Unusable || p.Code == schema.Missing }

func newCauses(problems []schema.Problem) *causes {
	c := &causes{at: make(map[string]bool, len(problems))}
	for _, p := range problems {
		c.at[p.Path] = c.at[p.Path] || hard(p)
		c.lengths = append(c.lengths, len(p.Path))
		if hard(p) {
			c.hard = append(c.hard, p.Path)
		}
	}
	slices.Sort(c.lengths)
	c.lengths = slices.Compact(c.lengths)
	slices.Sort(c.hard)
	return c
}

// of reports whether a rule that is broken at a path may be so only
// because of a problem that is reported already: it says the same of the same
// object, or speaks of a value that had to be left out, of something in it, or
// of the object it is missing from.
func (c *causes) of(path string) bool {
	if _, same := c.at[path]; same || c.hardBelow(path) {
		return true
	}
	for _, n := range c.lengths {
		if n >= len(path) {
			break
		}
		above, rest := path[:n], path[n:]
		if n > 0 && rest[0] != '.' && rest[0] != '[' {
			continue
		}
		all, is := c.at[above]
		if is && (all || !strings.ContainsAny(strings.TrimLeft(rest, "."), ".[")) {
			return true
		}
	}
	return false
}

// hardBelow reports whether a value that had to be left out is in the one at path.
func (c *causes) hardBelow(path string) bool {
	if path == "" {
		return len(c.hard) > 0
	}
	for _, below := range []string{path + ".", path + "["} {
		if i, _ := slices.BinarySearch(c.hard, below); i < len(c.hard) && strings.HasPrefix(c.hard[i], below) {
			return true
		}
	}
	return false
}
