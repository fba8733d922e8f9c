package lastgood

import (
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// maxWeight bounds products, which do not overflow so.
const maxWeight = 1 << 40

// withProxies counts what objects cost each proxy: routes once for each port of the services of their hosts and for each
// server with such hosts of Gateways that they name, the clusters of a DestinationRule once for each port of those that it covers, all of the same source. What delegates say
// is counted where it is included.
func withProxies(list []Sized) []Sized {
	w := weighing{ports: portsOf(list), routes: map[mesh.Key]int{}, servers: map[string]serverHosts{}}
	for _, x := range list {
		if len(x.Fragment.Gateways) == 1 {
			w.servers[x.Key.Namespace+"/"+x.Key.Name] = hostsOf(x.Fragment.Gateways[0])
		}
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
	// servers are those of Gateways, by NAMESPACE/NAME.
	servers map[string]serverHosts
}

// serverHosts counts the hosts of the servers of a Gateway.
type serverHosts struct {
	all   int
	of    map[mesh.Hostname]int
	below map[mesh.Hostname]int // of a wildcard, without itself
}

func hostsOf(g *mesh.Gateway) serverHosts {
	s := serverHosts{all: len(g.Spec.GetServers()), of: map[mesh.Hostname]int{}, below: map[mesh.Hostname]int{}}
	for _, server := range g.Spec.GetServers() {
		for _, name := range server.GetHosts() {
			if _, host, is := strings.Cut(name, "/"); is {
				name = host
			}
			host := hostOf(name)
			s.of[host]++
			for wide, more := host.Wider(); more; wide, more = wide.Wider() {
				s.below[wide]++
			}
		}
	}
	return s
}

// with is how many servers have a host that is, covers, or is covered by another; at most all.
func (s serverHosts) with(host mesh.Hostname) int {
	if s.all == 0 {
		return 0
	}
	n := s.of[host] + s.below[host]
	for wide, more := host.Wider(); more; wide, more = wide.Wider() {
		n += s.of[wide]
	}
	return min(n, s.all)
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
		for _, name := range spec.GetGateways() {
			for _, h := range spec.GetHosts() {
				if name == "mesh" {
					copies += max(1, w.ports[hostOf(h)])
				} else {
					copies += w.servers[name].with(hostOf(h))
				}
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
