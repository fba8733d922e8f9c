package mesh

// answers are what owners have said while one snapshot was decided, or put on
// record: many objects ask the same, and each answer costs a look at all that
// overlaps. Used by one goroutine; nil remembers nothing.
type answers struct {
	addresses map[nameQuestion]*rival
	barred    map[nameQuestion]*rival
	wildcards map[nameQuestion]*rival
	holds     map[nameQuestion]bool
	private   map[nameQuestion][]*Service
	yields    map[portQuestion]bool
	hosts     map[Hostname]hostAnswer
	samples   map[sampleOf][]*Service
	claims    map[claimQuestion][]addressClaim
	services  map[*Service]*rival
	routes    map[routeQuestion]*rival
	standing  map[*Service]bool
	clipped   map[*Service]bool
}

type nameQuestion struct {
	asker
	name Hostname
}

type claimQuestion struct {
	source int
	name   Hostname
}

type routeQuestion struct {
	vs   *VirtualService
	host Hostname
}

type portQuestion struct {
	source    int
	namespace string
	port      uint32
	http      bool
}

type hostAnswer struct {
	owner Owner
	known bool
}

// sampleOf is a name of an index of a source.
type sampleOf struct {
	index *nameIndex[*Service]
	name  Hostname
}

func newAnswers() *answers {
	return &answers{
		addresses: map[nameQuestion]*rival{}, barred: map[nameQuestion]*rival{}, wildcards: map[nameQuestion]*rival{}, holds: map[nameQuestion]bool{}, private: map[nameQuestion][]*Service{},
		yields: map[portQuestion]bool{}, hosts: map[Hostname]hostAnswer{}, samples: map[sampleOf][]*Service{},
		claims: map[claimQuestion][]addressClaim{}, services: map[*Service]*rival{}, routes: map[routeQuestion]*rival{}, standing: map[*Service]bool{}, clipped: map[*Service]bool{},
	}
}

// remembered is the answer to a question, which is worked out once.
func remembered[Q comparable, A any](a *answers, in func(*answers) map[Q]A, question Q, answer func() A) A {
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

// fewOf is how many services under one name are looked at one by one.
const fewOf = 8

// sample are services that have a name in an index: one of each namespace for each way
// to have it, which is all that makes a difference to whose the name is.
func (o *owners) sample(index *nameIndex[*Service], name Hostname) []*Service {
	list := index.get(name)
	if o.answers == nil || len(list) <= fewOf {
		return list
	}
	return remembered(o.answers, func(a *answers) map[sampleOf][]*Service { return a.samples }, sampleOf{index, name}, func() []*Service {
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
