package lastgood

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// maxWeight bounds products, which do not overflow so.
const maxWeight = 1 << 40

// withProxies counts what objects cost each proxy: routes once for each port of the services of their hosts, the
// clusters of a DestinationRule once for each port of those that it covers, all of the same source. What delegates say
// is counted where it is included.
func withProxies(list []Sized) []Sized {
	w := weighing{ports: portsOf(list), routes: map[mesh.Key]int{}}
	for _, x := range list {
		if len(x.Fragment.VirtualServices) == 1 {
			w.routes[mesh.Key{Namespace: x.Key.Namespace, Name: x.Key.Name}] = x.Weight
		}
	}
	for i, x := range list {
		list[i].Weight = w.of(x)
	}
	return list
}

type weighing struct {
	ports  map[mesh.Hostname]int
	routes map[mesh.Key]int // of VirtualServices
}

func (w *weighing) of(x Sized) int {
	switch f := x.Fragment; {
	case len(f.VirtualServices) == 1:
		spec := f.VirtualServices[0].Spec
		n, copies := min(x.Weight, maxWeight), 0
		for _, r := range spec.GetHttp() {
			if d := r.GetDelegate(); d != nil {
				ns := d.GetNamespace()
				if ns == "" {
					ns = x.Key.Namespace
				}
				n = min(n+max(1, len(r.GetMatch()))*w.routes[mesh.Key{Namespace: ns, Name: d.GetName()}], maxWeight)
			}
		}
		if slices.Contains(spec.GetGateways(), "mesh") {
			for _, h := range spec.GetHosts() {
				copies += max(1, w.ports[hostOf(h)])
			}
		}
		return min(n*max(1, copies), maxWeight)
	case len(f.DestinationRules) == 1:
		return min(x.Weight*w.ports[hostOf(f.DestinationRules[0].Spec.GetHost())], maxWeight)
	default:
		return x.Weight
	}
}

func hostOf(name string) mesh.Hostname { return mesh.Hostname(strings.ToLower(name)) }

// portsOf are the ports of the services that hosts of VirtualServices and DestinationRules cover.
func portsOf(list []Sized) map[mesh.Hostname]int {
	ports, wild := map[mesh.Hostname]int{}, false
	want := func(host string) {
		ports[hostOf(host)] = 0
		wild = wild || strings.HasPrefix(host, "*")
	}
	for _, x := range list {
		for _, vs := range x.Fragment.VirtualServices {
			for _, h := range vs.Spec.GetHosts() {
				want(h)
			}
		}
		for _, r := range x.Fragment.DestinationRules {
			want(r.Spec.GetHost())
		}
	}
	for _, x := range list {
		for _, svc := range x.Fragment.Services {
			for host, more := hostOf(string(svc.Hostname)), true; more; {
				if _, wanted := ports[host]; wanted {
					ports[host] += len(svc.Ports)
				}
				if !wild {
					break
				}
				host, more = host.Wider()
			}
		}
	}
	return ports
}
