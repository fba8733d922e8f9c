package meshgen

import (
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Networks is the kind of a change of MeshNetworks.
const Networks = "networks"

// changeNetworks gives the mesh other networks, or none: with ranges and sources, and gateways that
// are addresses or services of the mesh.
func (g *Generator) changeNetworks() (Change, bool) {
	was := g.networks
	if g.networks = nil; g.rng.IntN(6) > 0 {
		g.networks = g.newNetworks()
	}
	return Change{Kind: Networks, Op: "networks"}, was != g.networks
}

func (g *Generator) newNetworks() *mesh.Networks {
	var b strings.Builder
	b.WriteString("networks:\n")
	ranges := []string{"10.0.0.0/30", "10.1.1.1", "10.0.1.0/24", "fd00::/64"}
	for i, name := range []string{"net1", "net2", "net3"} {
		var endpoints, gateways []string
		if g.rng.IntN(3) > 0 {
			at := g.rng.IntN(len(ranges))
			endpoints = append(endpoints, fmt.Sprintf("{fromCidr: %q}", ranges[at]))
			ranges = append(ranges[:at:at], ranges[at+1:]...)
		}
		if i == 2 && g.rng.IntN(2) == 0 {
			endpoints = append(endpoints, "{fromRegistry: Kubernetes}")
		}
		for j := range g.rng.IntN(3) {
			address := pick(g.rng, []string{fmt.Sprintf("192.0.2.%d", 10*i+j), fmt.Sprintf("192.0.2.%d", 10*i+j), fmt.Sprintf("2001:db8::%d", 10*i+j)})
			gateways = append(gateways, fmt.Sprintf("{address: %q, port: %d}", address, pick(g.rng, []int{15443, 15444})))
		}
		if g.rng.IntN(3) == 0 {
			gateways = append(gateways, fmt.Sprintf("{registryServiceName: %s, port: 80}", pick(g.rng, hostnames())))
		}
		fmt.Fprintf(&b, "  %s:\n    endpoints: [%s]\n    gateways: [%s]\n", name, strings.Join(endpoints, ", "), strings.Join(gateways, ", "))
	}
	out, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(b.String()))
	if out == nil {
		panic(fmt.Sprintf("meshgen makes invalid networks:\n%s%v", b.String(), faults)) // this is for tests
	}
	return out
}
