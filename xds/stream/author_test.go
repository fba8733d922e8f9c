package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// author writes generations as the life of a mesh does: mostly a little of the
// one before is different, and sometimes all of it.
type author struct {
	r      *rand.Rand
	shared sharing
	number uint64
	words  map[string]string   // versions by "type/name", of gen
	older  []map[string]string // what was written before
	peace  bool                // nothing is written that is refused
	tables bool                // route configurations may be refused, too
	layers int                 // how the names are spread over layers
	did    string              // for people
}

func newAuthor(r *rand.Rand, tables bool) *author {
	a := &author{r: r, tables: tables, shared: sharing{}, layers: r.IntN(3)}
	a.anew()
	return a
}

// next writes the next generation.
func (a *author) next() *Generation {
	a.older = append(a.older, maps.Clone(a.words))
	i := a.r.IntN(5)
	switch a.r.IntN(12) {
	case 0:
		a.did = "all anew"
		a.anew()
	case 1:
		a.did = "as it was"
		a.words = maps.Clone(a.older[a.r.IntN(len(a.older))])
	case 2:
		a.did = "nothing"
	case 3, 4:
		a.did = "endpoints"
		for _, name := range slices.Sorted(maps.Keys(a.words)) {
			if strings.HasPrefix(name, "e/") && a.r.IntN(2) == 0 {
				a.words[name] = strconv.Itoa(a.r.IntN(4))
			}
		}
	case 5:
		a.did = "a table goes or comes"
		if !a.dropTable(i) {
			a.table(i)
		}
	case 6:
		a.did = "a table takes another form"
		_, pieces := a.words[fmt.Sprint("R/", i)]
		a.dropTable(i)
		if pieces {
			a.words[fmt.Sprint("r/", i)] = a.version()
		} else {
			a.pieces(i)
		}
	case 7, 8:
		a.did = "hosts of a table"
		if _, pieces := a.words[fmt.Sprint("R/", i)]; pieces {
			a.hosts(i)
		}
	case 9:
		a.did = "a listener goes or comes"
		a.flip(fmt.Sprint("l/", i), a.version())
	case 10:
		a.did = "a cluster goes or comes"
		v := a.version()
		a.flip(fmt.Sprint("c/", i), v)
		a.flip(fmt.Sprint("e/", i), strconv.Itoa(a.r.IntN(4)))
	default:
		a.did = "a few versions"
		names := slices.Sorted(maps.Keys(a.words))
		for range 1 + a.r.IntN(3) {
			name := names[a.r.IntN(len(names))]
			a.words[name] = a.version()
		}
	}
	a.calm()
	return a.generation()
}

// generation is what is written.
func (a *author) generation() *Generation {
	a.number++
	var words []string
	for _, name := range slices.Sorted(maps.Keys(a.words)) {
		word := name + "=" + a.words[name]
		if (name[0] == 'c' || name[0] == 'e') && a.layers > 0 {
			n := int(name[2] - '0')
			layer := "@" + strconv.Itoa(n%2)
			words = append(words, word+layer)
			if a.layers > 1 && n == 1 { // the other layer has it, too, and does not count
				words = append(words, name+"=0@9")
			}
			continue
		}
		words = append(words, word)
	}
	return a.shared.gen(a.number, words...)
}

// calm takes away what would be refused, if that is asked for, and of types of
// which the model refuses nothing.
func (a *author) calm() {
	for name, v := range a.words {
		refused := isBad(v) || isWorse(v)
		refusable := name[0] == 'c' || name[0] == 'l' || name[0] == 'v' || a.tables && (name[0] == 'r' || name[0] == 'R')
		if refused && (a.peace || !refusable) {
			a.words[name] = "1" + v[len(v)-1:]
		}
	}
}

// again is the last generation with other pointers and another number.
func (a *author) again(number uint64) *Generation {
	a.shared = sharing{}
	g := a.generation()
	g.Number = number
	return g
}

func (a *author) version() string {
	v := strconv.Itoa(a.r.IntN(4))
	switch a.r.IntN(14) {
	case 0:
		return "bad" + v
	case 1:
		return "worse" + v
	}
	return v
}

func (a *author) anew() {
	a.words = map[string]string{"c/keep": "1", "e/keep": "1"} // there is always something
	for i := range 5 {
		if a.r.IntN(5) > 0 {
			a.words[fmt.Sprint("c/", i)], a.words[fmt.Sprint("e/", i)] = a.version(), strconv.Itoa(a.r.IntN(3))
		}
		if a.r.IntN(4) == 0 {
			a.words[fmt.Sprint("s/", i)] = a.version()
		}
		if a.r.IntN(6) == 0 {
			continue
		}
		a.words[fmt.Sprint("l/", i)] = a.version()
		a.table(i)
	}
	a.calm()
}

func (a *author) table(i int) {
	if a.r.IntN(3) == 0 {
		a.words[fmt.Sprint("r/", i)] = a.version()
		return
	}
	a.pieces(i)
}

func (a *author) pieces(i int) {
	a.words[fmt.Sprint("R/", i)] = a.version()
	a.hosts(i)
}

// hosts writes some of the virtual hosts of a table anew.
func (a *author) hosts(i int) {
	for h := range 5 {
		switch name := fmt.Sprintf("v/%d/%d", i, h); a.r.IntN(3) {
		case 0:
			a.words[name] = a.version()
		case 1:
			delete(a.words, name)
		}
	}
}

func (a *author) dropTable(i int) (had bool) {
	before := len(a.words)
	maps.DeleteFunc(a.words, func(name, _ string) bool {
		return name == fmt.Sprint("r/", i) || name == fmt.Sprint("R/", i) || strings.HasPrefix(name, fmt.Sprintf("v/%d/", i))
	})
	return len(a.words) < before
}

func (a *author) flip(name, version string) {
	if _, has := a.words[name]; has {
		delete(a.words, name)
	} else {
		a.words[name] = version
	}
}
