package kv

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/hashicorp/consul/api"
)

// Op is what a change does with a key.
type Op string

// What changes do.
const (
	Create Op = "create"
	Update Op = "update"
	Delete Op = "delete"
	// Keep says that a file has no key any more and stays.
	Keep Op = "keep"
)

// Change is one key that is to be another.
type Change struct {
	Op Op
	// Rel is the part of the key below the prefix.
	Rel string
	Key string
	// Old is what was read, New what is to be; nil where there is none.
	Old, New []byte
	// index is that of what was read; 0 means that there was none.
	index, flags uint64
}

// Plan is what has to be done so that the keys are as a directory is.
type Plan struct {
	// Changes are in the order in which they are made.
	Changes []Change
	// Same is how many are so already.
	Same int
	// Left are keys that the directory does not have and that stay, sorted.
	Left []string
}

// Goal is how the keys are to be.
type Goal struct {
	// Values are by the part of the key below the prefix.
	Values map[string][]byte
	// Prune deletes what is not in Values.
	Prune bool
	// Rank orders the writing, lower ones first; deletions come after all that,
	// higher ones first. It is asked with what is written, or deleted.
	Rank func(rel string, content []byte) int
}

// Plan compares.
func (s *Store) Plan(st *State, g Goal) *Plan {
	p := &Plan{}
	for rel, content := range g.Values {
		old, there := st.Values[rel]
		c := Change{Op: Create, Rel: rel, Key: s.prefix + "/" + rel, New: content}
		switch {
		case there && bytes.Equal(old.Content, content):
			p.Same++
			continue
		case there:
			c.Op, c.Old, c.index, c.flags = Update, old.Content, old.Index, old.Flags
		}
		p.Changes = append(p.Changes, c)
	}
	for rel, old := range st.Values {
		if _, wanted := g.Values[rel]; wanted {
			continue
		}
		if !g.Prune {
			p.Left = append(p.Left, rel)
			continue
		}
		p.Changes = append(p.Changes, Change{Op: Delete, Rel: rel, Key: s.prefix + "/" + rel, Old: old.Content, index: old.Index})
	}
	slices.Sort(p.Left)
	p.order(g.Rank)
	return p
}

func (p *Plan) order(rank func(rel string, content []byte) int) {
	place := make(map[string]int, len(p.Changes))
	for _, c := range p.Changes {
		switch {
		case rank == nil:
		case c.Op == Delete:
			place[c.Rel] = -rank(c.Rel, c.Old)
		default:
			place[c.Rel] = rank(c.Rel, c.New)
		}
	}
	last := func(c Change) int {
		if c.Op == Delete {
			return 1
		}
		return 0
	}
	slices.SortFunc(p.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(place[a.Rel], place[b.Rel]), cmp.Compare(a.Rel, b.Rel))
	})
}

// Bounds of one transaction. A server of 1.20 takes twice as many operations;
// older ones take these.
const (
	maxOps  = 64
	maxBody = MaxValueSize - 1024
)

// Transactions are the changes as they are made together: all of one or none. A
// value that fits into no transaction is in one of its own, which is a plain
// check-and-set.
func (p *Plan) Transactions() [][]Change {
	var (
		all  [][]Change
		size int
	)
	for i, c := range p.Changes {
		n := c.size()
		if i == 0 || len(all[len(all)-1]) == maxOps || size+n > maxBody {
			all, size = append(all, nil), 2
		}
		all[len(all)-1] = append(all[len(all)-1], c)
		size += n
	}
	return all
}

// size is how many bytes a change takes in a request.
func (c *Change) size() int {
	body, err := json.Marshal(c.op())
	if err != nil {
		return maxBody + 1
	}
	return len(body) + 1
}

// op is the operation of a transaction that makes the change if the key is still
// as it was read.
func (c *Change) op() *api.TxnOp {
	op := &api.KVTxnOp{Verb: api.KVCAS, Key: c.Key, Value: c.New, Index: c.index, Flags: c.flags}
	if c.Op == Delete {
		op.Verb, op.Value, op.Flags = api.KVDeleteCAS, nil, 0
	}
	return &api.TxnOp{KV: op}
}

// Rels are the parts below the prefix of all keys of both, sorted.
func Rels[A, B any](a map[string]A, b map[string]B) []string {
	all := map[string]bool{}
	for rel := range a {
		all[rel] = true
	}
	for rel := range b {
		all[rel] = true
	}
	return slices.Sorted(maps.Keys(all))
}
