package istiod

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Accepted is a group of differences that have one reason.
type Accepted struct {
	// Why is the reason, in words.
	Why string `yaml:"why"`
	// Differences are the group.
	Differences []Rule `yaml:"differences"`
}

// Rule accepts differences by place and values. "*" stands for any text within an element of a
// path and within a value, "**" for any number of elements of a path.
type Rule struct {
	// In are the proxies, as MESH/PROXY; empty means all.
	In []string `yaml:"in"`
	// At are the places. A place is accepted if one of them matches.
	At []string `yaml:"at"`
	// Ours and Istiod are the values; empty means [Absent].
	Ours   string `yaml:"ours"`
	Istiod string `yaml:"istiod"`

	at [][]string
}

// Acceptances are all accepted differences, and what of them was needed.
type Acceptances struct {
	groups []Accepted
	used   map[string]bool
}

// ReadAccepted reads the list of accepted differences.
func ReadAccepted(in io.Reader) (*Acceptances, error) {
	dec := yaml.NewDecoder(in)
	dec.KnownFields(true)
	a := &Acceptances{used: map[string]bool{}}
	if err := dec.Decode(&a.groups); err != nil {
		return nil, fmt.Errorf("reading accepted differences: %w", err)
	}
	var errs []error
	seen := map[string]bool{}
	for i := range a.groups {
		g := &a.groups[i]
		if strings.TrimSpace(g.Why) == "" {
			errs = append(errs, fmt.Errorf("group %d has no reason: write why", i+1))
		}
		for j := range g.Differences {
			r := &g.Differences[j]
			if r.Ours == "" {
				r.Ours = Absent
			}
			if r.Istiod == "" {
				r.Istiod = Absent
			}
			if r.Ours == r.Istiod {
				errs = append(errs, fmt.Errorf("%q: both values are %s: write ours and istiod", r.At, r.Ours))
			}
			for _, at := range r.At {
				if k := r.key(at); seen[k] {
					errs = append(errs, fmt.Errorf("%s is listed twice", k))
				} else {
					seen[k] = true
				}
				r.at = append(r.at, splitPattern(at))
			}
		}
	}
	return a, errors.Join(errs...)
}

func (r *Rule) key(at string) string {
	in := ""
	if len(r.In) > 0 {
		in = strings.Join(r.In, ", ") + ": "
	}
	return in + at + ": ours " + r.Ours + ", istiod " + r.Istiod
}

func splitPattern(at string) []string {
	parts := strings.Split(at, "/")
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(p, "~1", "/")
	}
	return parts
}

// Accepts reports whether a difference in a proxy (MESH/PROXY) is accepted, and remembers what accepted it.
func (a *Acceptances) Accepts(proxy string, d Difference) bool {
	found := false
	a.matching(proxy, d, func(key string) { a.used[key], found = true, true })
	return found
}

// Matches reports whether a difference is accepted, and remembers nothing.
func (a *Acceptances) Matches(proxy string, d Difference) bool {
	found := false
	a.matching(proxy, d, func(string) { found = true })
	return found
}

func (a *Acceptances) matching(proxy string, d Difference, found func(key string)) {
	for i := range a.groups {
		for j := range a.groups[i].Differences {
			r := &a.groups[i].Differences[j]
			if len(r.In) > 0 && !slices.ContainsFunc(r.In, func(in string) bool { return glob(in, proxy) }) {
				continue
			}
			if !value(r.Ours, d.Ours) || !value(r.Istiod, d.Istiod) {
				continue
			}
			for k, at := range r.at {
				if globPath(at, d.Path) {
					found(r.key(r.At[k]))
				}
			}
		}
	}
}

// Unused are the places that accepted nothing.
func (a *Acceptances) Unused() []string {
	var out []string
	for _, g := range a.groups {
		for _, r := range g.Differences {
			for _, at := range r.At {
				if k := r.key(at); !a.used[k] {
					out = append(out, k)
				}
			}
		}
	}
	return out
}

func globPath(pattern, path []string) bool {
	if len(pattern) == 0 {
		return len(path) == 0
	}
	if pattern[0] == "**" {
		return anySuffix(pattern[1:], path)
	}
	return len(path) > 0 && glob(pattern[0], path[0]) && globPath(pattern[1:], path[1:])
}

func anySuffix(pattern, path []string) bool {
	for i := range len(path) + 1 {
		if globPath(pattern, path[i:]) {
			return true
		}
	}
	return false
}

// value matches a value. No pattern but Absent itself stands for what is absent.
func value(pattern, text string) bool {
	if pattern == Absent || text == Absent {
		return pattern == text
	}
	return glob(pattern, text)
}

// glob matches a text with a pattern in which "*" is any text.
func glob(pattern, text string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == text
	}
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok {
		return false
	}
	for _, p := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, p)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[len(parts)-1])
}
