package view

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestWeightsFitEnvoy holds that Envoy accepts the weights of a service, whatever its endpoints and networks
// have: it rejects an update with a hash, in which a locality's endpoints have more than 32 bits together.
func TestWeightsFitEnvoy(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		pick := func(list ...string) string { return list[rng.IntN(len(list))] }
		w := newMeshFixture(t)
		w.mc.EnableAutoMtls = nil
		svc := w.service("shop", "orders.shop", 80)
		svc.Inline = nil
		for i := range 1 + rng.IntN(12) {
			endpoint(svc, fmt.Sprintf("10.0.0.%d %s %s %s %s", i, pick("-", "n1", "n2", "n3"), pick("-", "us", "eu/a", "eu/b"),
				pick("1", "3", "1000", "2147483648", "4294967295"), pick("", "", "sick", "plain")))
		}
		if spec := pick("", `"outlierDetection":{}`, `"outlierDetection":{},"loadBalancer":{"localityLbSetting":{"distribute":[{"from":"us","to":{"eu/*":70,"us":30}}]}}`); spec != "" {
			w.rule("shop", "orders", `{"host":"orders.shop","trafficPolicy":{`+spec+`}}`)
		}
		gateways := func(network, most int) string {
			var list []string
			for i := range rng.IntN(most) {
				list = append(list, fmt.Sprintf(`{"address":"192.0.%d.%d","port":15443}`, network, i))
			}
			return fmt.Sprintf(`"n%d":{"gateways":[%s]}`, network, strings.Join(list, ","))
		}
		w.networks(`{"networks":{` + gateways(1, 4) + "," + gateways(2, 60) + "," + gateways(3, 8) + `}}`)
		s := w.snapshot()
		for _, network := range []string{"n1", "n2", ""} {
			p := proxyIn("shop", nil)
			p.Network, p.Locality = network, mesh.Locality{Region: "us"}
			e := findPart(t, Build(s, p), func(e *Endpoints) bool { return e.Ref.Host == "orders.shop" })
			priorities := map[uint32]uint64{}
			for _, l := range e.Localities {
				priorities[l.Priority] += uint64(l.Weight)
				sum := uint64(0)
				for _, x := range l.Endpoints {
					if sum += uint64(x.Weight); x.Weight == 0 {
						t.Errorf("seed %d, from %q: %s has no weight", seed, network, x.Address)
					}
				}
				if sum > math.MaxUint32 {
					t.Errorf("seed %d, from %q: the endpoints of a locality have %d", seed, network, sum)
				}
			}
			for i, sum := range priorities {
				if sum > math.MaxUint32 {
					t.Errorf("seed %d, from %q: the localities of priority %d have %d", seed, network, i, sum)
				}
			}
		}
	}
}
