package mesh

// decisionCache caches what owners decided for one snapshot. Many objects need the same
// decisions, and each searches all overlapping names. One goroutine uses it; nil caches
// nothing.
type decisionCache struct {
	addresses  map[nameKey]*rival
	holds      map[nameKey]bool
	private    map[nameKey][]*Service
	yields     map[portKey]bool
	samples    map[sampleKey][]*Service
	services   map[*Service]*rival
	routes     map[routeKey]*rival
	restricted map[*Service]bool
	sidecars   map[*VirtualService]bool
	gateways   map[*VirtualService][]string
}

type nameKey struct {
	claimant
	name Hostname
}

type routeKey struct {
	vs   *VirtualService
	host Hostname
}

type portKey struct {
	source    int
	namespace string
	port      uint32
	http      bool
	patterned bool
}

// sampleKey is a name in an index of a source.
type sampleKey struct {
	index *nameIndex[*Service]
	name  Hostname
}

func newDecisionCache() *decisionCache {
	return &decisionCache{
		addresses: map[nameKey]*rival{}, holds: map[nameKey]bool{}, private: map[nameKey][]*Service{}, yields: map[portKey]bool{},
		samples: map[sampleKey][]*Service{}, services: map[*Service]*rival{}, routes: map[routeKey]*rival{}, restricted: map[*Service]bool{},
		sidecars: map[*VirtualService]bool{},
		gateways: map[*VirtualService][]string{},
	}
}

// cached returns the decision for a key, and makes it if it is not there yet.
func cached[Q comparable, A any](a *decisionCache, in func(*decisionCache) map[Q]A, question Q, answer func() A) A {
	if a == nil {
		return answer()
	}
	known := in(a)
	if have, ok := known[question]; ok {
		return have
	}
	have := answer()
	known[question] = have
	return have
}

// maxSamples is how many services with one name are checked one by one.
const maxSamples = 8

// sample returns services that have a name in an index: one for each namespace and way to
// have it. More do not change who owns the name.
func (o *owners) sample(index *nameIndex[*Service], name Hostname) []*Service {
	list := index.get(name)
	if o.cache == nil || len(list) <= maxSamples {
		return list
	}
	return cached(o.cache, func(a *decisionCache) map[sampleKey][]*Service { return a.samples }, sampleKey{index, name}, func() []*Service {
		type way struct {
			namespace         string
			catalog, declares bool
		}
		seen := map[way]bool{}
		var out []*Service
		for _, svc := range list {
			if w := (way{svc.Namespace, svc.Catalog, declaresAddress(svc, name)}); !seen[w] {
				seen[w] = true
				out = append(out, svc)
			}
		}
		return out
	})
}
