package mesh

import (
	"fmt"
	"slices"
	"testing"
)

// checkPorts holds the ports at which services of bound sources come behind others to the definition: HTTP shares a
// port with HTTP; else sources without a namespace come first, then namespaces with a grant of the port, hosts of
// patterns, HTTP, and the first namespace by name.
func (l *life) checkPorts(t *testing.T, s *Snapshot) {
	t.Helper()
	type offer struct {
		svc    *Service
		source int
		known  bool // it is in force; if not, others may come behind it
		http   bool
	}
	at, there := map[uint32][]offer{}, map[string]*Service{}
	for _, svc := range s.Services {
		there[fmt.Sprint(*svc.Origin, svc.Hostname)] = svc
	}
	l.servicesForOthers(func(i int, svc *Service) bool {
		is, known := there[fmt.Sprint(*svc.Origin, svc.Hostname)]
		hidden := l.bindings[i] != nil && known && !l.forOthers(is)
		for _, p := range svc.Ports {
			if p.Protocol != UDP && !hidden {
				at[p.Number] = append(at[p.Number], offer{svc, i, known, p.Protocol.IsHTTP() && p.Protocol != HTTPProxy && p.Protocol != GRPCWeb})
			}
		}
		return true
	})
	granted := map[Grant]bool{}
	for _, g := range l.grants.All() {
		granted[g] = true
	}
	rank := func(x offer, port uint32) []any {
		name := fmt.Sprintf(":%d", port)
		if x.http {
			name = fmt.Sprintf(":http:%d", port)
		}
		mine := func(is bool) int { return map[bool]int{true: 0, false: 1}[is] }
		return []any{mine(granted[Grant{Name: Hostname(name), Namespace: x.svc.Namespace}]), mine(l.bindings[x.source].covers(x.svc.Hostname.canonical())), mine(x.http)}
	}
	for _, svc := range s.Services {
		i := sourceOf(&svc.Meta)
		if l.bindings[i] == nil || !l.forOthers(svc) {
			continue
		}
		for port, list := range at {
			mine := slices.IndexFunc(list, func(x offer) bool { return *x.svc.Origin == *svc.Origin && x.svc.Hostname == svc.Hostname })
			if mine < 0 {
				continue
			}
			me := list[mine]
			first := func(x offer) bool {
				switch {
				case x.http && me.http:
					return false
				case l.bindings[x.source] == nil:
					return true
				case x.source == i || l.bindings[i].has(x.svc.Namespace):
					return false
				}
				a, b := append(rank(x, port), x.svc.Namespace), append(rank(me, port), svc.Namespace)
				return fmt.Sprint(a...) < fmt.Sprint(b...)
			}
			behind := slices.ContainsFunc(list, func(x offer) bool { return x.known && first(x) })
			if got := slices.Contains(svc.Yields, port); got && !slices.ContainsFunc(list, first) || !got && behind {
				t.Fatalf("%s of source %d comes behind others at %d: %v, want %v; %v", svc.Key, i, port, got, behind, l.grants.All())
			}
			if behind {
				l.behind++
			}
		}
	}
}
