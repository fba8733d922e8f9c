package stream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// generator makes generations as a mesh would: most differ little from the one before,
// some in everything.
type generator struct {
	r            *rand.Rand
	shared       sharing
	number       uint64
	versions     map[string]string   // versions by "type/name", of gen
	history      []map[string]string // earlier values of versions
	acceptAll    bool                // no version is rejected by the model
	rejectRoutes bool                // route configurations may be rejected, too
	extensions   bool                // listeners name extensions
	layers       int                 // how names are distributed over layers
	lastStep     string              // for failure messages
}

func newGenerator(r *rand.Rand, routeConfigs, extensions bool) *generator {
	a := &generator{r: r, rejectRoutes: routeConfigs, extensions: extensions, shared: sharing{}, layers: r.IntN(3)}
	a.reset()
	return a
}

// next makes the next generation.
func (a *generator) next() *Generation {
	a.history = append(a.history, maps.Clone(a.versions))
	i := a.r.IntN(5)
	kinds := 12
	if a.extensions {
		kinds++
	}
	switch a.r.IntN(kinds) {
	case 0:
		a.lastStep = "all anew"
		a.reset()
	case 1:
		a.lastStep = "as it was"
		a.versions = maps.Clone(a.history[a.r.IntN(len(a.history))])
	case 2:
		a.lastStep = "nothing"
	case 3, 4:
		a.lastStep = "endpoints"
		for _, name := range slices.Sorted(maps.Keys(a.versions)) {
			if strings.HasPrefix(name, "e/") && a.r.IntN(2) == 0 {
				a.versions[name] = strconv.Itoa(a.r.IntN(4))
			}
		}
	case 5:
		a.lastStep = "a route configuration goes or comes"
		if !a.dropRouteConfig(i) {
			a.writeRouteConfig(i)
		}
	case 6:
		a.lastStep = "a route configuration takes another form"
		_, vhds := a.versions[fmt.Sprint("R/", i)]
		a.dropRouteConfig(i)
		if vhds {
			a.versions[fmt.Sprint("r/", i)] = a.version()
		} else {
			a.writeVHDS(i)
		}
	case 7, 8:
		a.lastStep = "hosts of a route configuration"
		if _, vhds := a.versions[fmt.Sprint("R/", i)]; vhds {
			a.writeHosts(i)
		}
	case 9:
		a.lastStep = "a listener goes or comes"
		a.toggle(fmt.Sprint("l/", i), a.version())
		a.writeExtension(i)
	case 12:
		a.lastStep = "an extension changes"
		a.writeExtension(i)
	case 10:
		a.lastStep = "a cluster goes or comes"
		v := a.version()
		a.toggle(fmt.Sprint("c/", i), v)
		a.toggle(fmt.Sprint("e/", i), strconv.Itoa(a.r.IntN(4)))
	default:
		a.lastStep = "a few versions"
		names := slices.Sorted(maps.Keys(a.versions))
		for range 1 + a.r.IntN(3) {
			name := names[a.r.IntN(len(names))]
			a.versions[name] = a.version()
		}
	}
	a.removeRejected()
	return a.generation()
}

// generation is the current generation.
func (a *generator) generation() *Generation {
	a.number++
	var words []string
	for _, name := range slices.Sorted(maps.Keys(a.versions)) {
		word := name + "=" + a.versions[name]
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

// removeRejected replaces versions that the model would reject, if acceptAll is set, and
// in types of which the model rejects nothing.
func (a *generator) removeRejected() {
	for name, v := range a.versions {
		refused := isBad(v) || isWorse(v)
		refusable := name[0] == 'c' || name[0] == 'l' || name[0] == 'v' || name[0] == 'x' || a.rejectRoutes && (name[0] == 'r' || name[0] == 'R')
		if refused && (a.acceptAll || !refusable) {
			a.versions[name] = "1" + v[len(v)-1:]
		}
	}
}

// equalCopy is the last generation with new pointers and another number.
func (a *generator) equalCopy(number uint64) *Generation {
	a.shared = sharing{}
	g := a.generation()
	g.Number = number
	return g
}

func (a *generator) version() string {
	v := strconv.Itoa(a.r.IntN(4))
	switch a.r.IntN(14) {
	case 0:
		return "bad" + v
	case 1:
		return "worse" + v
	}
	return v
}

func (a *generator) reset() {
	a.versions = map[string]string{"c/keep": "1", "e/keep": "1"} // never empty
	for i := range 5 {
		if a.r.IntN(5) > 0 {
			a.versions[fmt.Sprint("c/", i)], a.versions[fmt.Sprint("e/", i)] = a.version(), strconv.Itoa(a.r.IntN(3))
		}
		if a.r.IntN(4) == 0 {
			a.versions[fmt.Sprint("s/", i)] = a.version()
		}
		if a.r.IntN(6) == 0 {
			continue
		}
		a.versions[fmt.Sprint("l/", i)] = a.version()
		a.writeExtension(i)
		a.writeRouteConfig(i)
	}
	a.removeRejected()
}

// writeExtension changes the extension that a listener names. It exists as long as the
// listener does.
func (a *generator) writeExtension(i int) {
	if _, has := a.versions[fmt.Sprint("l/", i)]; !has {
		delete(a.versions, fmt.Sprint("x/", i))
	} else if a.extensions {
		a.versions[fmt.Sprint("x/", i)] = a.version()
	}
}

func (a *generator) writeRouteConfig(i int) {
	if a.r.IntN(3) == 0 {
		a.versions[fmt.Sprint("r/", i)] = a.version()
		return
	}
	a.writeVHDS(i)
}

func (a *generator) writeVHDS(i int) {
	a.versions[fmt.Sprint("R/", i)] = a.version()
	a.writeHosts(i)
}

// writeHosts changes some of the virtual hosts of a route configuration.
func (a *generator) writeHosts(i int) {
	for h := range 5 {
		switch name := fmt.Sprintf("v/%d/%d", i, h); a.r.IntN(3) {
		case 0:
			a.versions[name] = a.version()
		case 1:
			delete(a.versions, name)
		}
	}
}

func (a *generator) dropRouteConfig(i int) (had bool) {
	before := len(a.versions)
	maps.DeleteFunc(a.versions, func(name, _ string) bool {
		return name == fmt.Sprint("r/", i) || name == fmt.Sprint("R/", i) || strings.HasPrefix(name, fmt.Sprintf("v/%d/", i))
	})
	return len(a.versions) < before
}

func (a *generator) toggle(name, version string) {
	if _, has := a.versions[name]; has {
		delete(a.versions, name)
	} else {
		a.versions[name] = version
	}
}
