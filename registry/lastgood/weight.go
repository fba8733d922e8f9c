package lastgood

import (
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// maxWeight bounds weights, so that the sums of a source do not overflow: one that is negative would hide all others.
const maxWeight = 1 << 40

// withProxies counts what objects cost each proxy: routes once for each port of the services of their hosts and for each
// server with such hosts of Gateways that they name, the clusters of a DestinationRule once for each port of those that
// it covers, all of the same source. What delegates say is counted where it is included.
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

// serverHosts are the hosts of the servers of a Gateway.
type serverHosts struct {
	all int // servers
	hostCounts
}

func hostsOf(g *mesh.Gateway) serverHosts {
	s := serverHosts{all: len(g.Spec.GetServers()), hostCounts: newHostCounts()}
	for _, server := range g.Spec.GetServers() {
		for _, name := range server.GetHosts() {
			if _, host, is := strings.Cut(name, "/"); is {
				name = host
			}
			s.add(hostOf(name))
		}
	}
	return s
}

// hostCounts counts hosts.
type hostCounts struct {
	n     int
	of    map[mesh.Hostname]int
	below map[mesh.Hostname]int // of a wildcard, without itself
}

func newHostCounts() hostCounts {
	return hostCounts{of: map[mesh.Hostname]int{}, below: map[mesh.Hostname]int{}}
}

func (c *hostCounts) add(host mesh.Hostname) {
	c.n++
	c.of[host]++
	for wide, more := host.Wider(); more; wide, more = wide.Wider() {
		c.below[wide]++
	}
}

// with is how many hosts are, cover, or are covered by another.
func (c *hostCounts) with(host mesh.Hostname) int {
	n := c.of[host] + c.below[host]
	for wide, more := host.Wider(); more; wide, more = wide.Wider() {
		n += c.of[wide]
	}
	return n
}

// pairs is how many pairs of hosts of the two have a name in common. It takes as long as the shorter list: a
// VirtualService with thousands of hosts may name thousands of Gateways.
func (c *hostCounts) pairs(o *hostCounts) int {
	few, many := c, o
	if len(few.of) > len(many.of) {
		few, many = many, few
	}
	n := 0
	for host, times := range few.of {
		n += times * many.with(host)
	}
	return n
}

func (w *weighing) of(x Sized) int {
	switch f := x.Fragment; {
	case len(f.VirtualServices) == 1:
		spec := f.VirtualServices[0].Spec
		n := min(x.Weight, maxWeight)
		for _, r := range spec.GetHttp() {
			if d := r.GetDelegate(); d != nil {
				ns := d.GetNamespace()
				if ns == "" {
					ns = x.Key.Namespace
				}
				n = min(n+saturated(min(w.routes[mesh.Key{Namespace: ns, Name: d.GetName()}], maxWeight), max(1, len(r.GetMatch()))), maxWeight)
			}
		}
		return saturated(n, max(1, w.copies(spec)))
	case len(f.DestinationRules) == 1:
		return saturated(min(x.Weight, maxWeight), w.ports[hostOf(f.DestinationRules[0].Spec.GetHost())])
	default:
		return min(x.Weight, maxWeight)
	}
}

// copies is how often a proxy has the routes of a VirtualService: for each port of the services of its hosts, and for each
// server with such a host.
func (w *weighing) copies(spec *networking.VirtualService) int {
	sidecars, hosts := 0, newHostCounts()
	for _, h := range spec.GetHosts() {
		hosts.add(hostOf(h))
		sidecars += max(1, w.ports[hostOf(h)])
	}
	n := 0
	for _, name := range spec.GetGateways() {
		if name == "mesh" {
			n += sidecars
		} else if s := w.servers[name]; s.all > 0 {
			n += min(s.pairs(&hosts), hosts.n*s.all)
		}
	}
	return n
}

// saturated is a product that does not overflow: of a weight, and a number of copies.
func saturated(weight, copies int) int {
	if copies > 0 && weight > maxWeight/copies {
		return maxWeight
	}
	return weight * copies
}

func hostOf(name string) mesh.Hostname { return mesh.Hostname(strings.ToLower(name)).WholeLabels() }

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
