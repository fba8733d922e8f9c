package mesh

import "slices"

// routesSidecars reports whether a VirtualService is for sidecars, perhaps besides gateways.
func routesSidecars(vs *VirtualService) bool {
	gateways := vs.Spec.GetGateways()
	return len(gateways) == 0 || slices.Contains(gateways, "mesh")
}

// routesGateways reports whether a VirtualService is for gateways, perhaps besides sidecars.
func routesGateways(vs *VirtualService) bool {
	return slices.ContainsFunc(vs.Spec.GetGateways(), func(g string) bool { return g != "mesh" })
}

// routedNames are the hosts of a VirtualService, and the server names that it matches.
func routedNames(vs *VirtualService) []Hostname {
	hosts := vs.Spec.GetHosts()
	out := make([]Hostname, 0, len(hosts))
	for _, h := range hosts {
		out = append(out, Hostname(h).canonical())
	}
	out = append(out, sniNames(vs)...)
	slices.Sort(out)
	return slices.Compact(out)
}
