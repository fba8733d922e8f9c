package faults

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// refusedRoute is valid, and no Envoy takes it: what the expression compiles to is
// too large for it.
var refusedRoute = "  http:\n  - match:\n    - uri: {regex: '/" + strings.Repeat(`\pL{900}`, 12) +
	"'}\n    route:\n    - destination: {host: orders.shop.internal, subset: v1}\n  - route:"

const takenRoute = "  http:\n  - route:"

// timeout is a route of a service beside.
func timeout(name string, seconds int) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: shop}
spec:
  hosts: [%s]
  http:
  - route:
    - destination: {host: %s}
    timeout: %ds
`, name, name, name, seconds)
}

// TestRouteTableChangesItsForm has a route table travel in pieces and whole in
// turn, because the operator says so, and stay in pieces though the Envoy refuses
// one: no request fails.
func TestRouteTableChangesItsForm(t *testing.T) {
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			s := newShop(t)
			s.Edit("web.yaml", `["./orders.shop.internal"]`, `["./*"]`)
			names := s.writeMany(0)
			i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == "web" })
			s.hosts[i].Agent = append(s.hosts[i].Agent, "--envoy", envoytest.BinaryVersion(t, version))
			s.start()
			s.awaitWeight(90)
			takesPieces := envoytest.Minor(t, version) >= 38
			s.awaitForms(true, takesPieces)
			s.awaitAnswerOf("orders-v2") // which the endpoints' health may still keep from
			load := s.client.StartLoad(t, s.url, 100)
			load.Wait(t, 50)

			// In one change come a route that Envoy refuses and one that it takes.
			s.Write("beside.yaml", timeout(names[0], 7))
			s.Edit("orders.yaml", takenRoute, refusedRoute)
			s.awaitRejected("web", "9080/orders.shop.internal:9080")
			s.awaitRoute(`"timeout":"7s"`)
			s.awaitForms(true, takesPieces)
			if by, err := s.proxies(); err != nil || refusals(by["web"]) != 1 {
				t.Errorf("not exactly the one route is told of: %+v, %v", by["web"], err)
			}
			s.awaitWeight(90) // of the route that it took last
			load.Wait(t, 50)
			s.Edit("orders.yaml", refusedRoute, takenRoute)
			s.Edit("orders.yaml", weights(90), weights(60))
			s.awaitWeight(60)
			s.awaitLive()
			load.Wait(t, 50)
			unharmed(t, load)

			load = s.client.StartLoad(t, s.url, 100)
			for n, off := range []bool{true, false} {
				s.Server.Kill()
				if off {
					s.StartServer("--virtual-hosts", "off")
				} else {
					s.StartServer()
				}
				s.awaitLive()
				s.awaitForms(!off, false) // from whole to pieces Envoy would answer 404 meanwhile
				s.Edit("orders.yaml", weights(60-n), weights(59-n))
				s.Write("beside.yaml", timeout(names[0], 8+n))
				s.awaitWeight(59 - n)
				s.awaitRoute(fmt.Sprintf(`"timeout":"%ds"`, 8+n))
				load.Wait(t, 50)
			}
			unharmed(t, load)

			// So does an Envoy that starts anew.
			s.killHost("web")
			s.restartAgent("web")
			s.awaitLive()
			s.awaitTraffic()
			s.awaitForms(true, takesPieces)
			s.noRejections()
		})
	}
}

// refusals are how many resources an Envoy refuses.
func refusals(p proxy) (n int) {
	for _, x := range p.Types {
		n += len(x.Rejected)
	}
	return n
}

// awaitForms waits until the route table of web travels in pieces, or whole, from
// the control plane to the host, and from there to the Envoy.
func (s *shop) awaitForms(toHost, toEnvoy bool) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		by, err := s.proxies()
		if err != nil {
			return err
		}
		out, err := unix(s.t.Context(), filepath.Join(s.RunDir("web"), "admin.sock"), "/v1/status")
		if err != nil {
			return err
		}
		var status struct {
			Relay struct {
				Envoys []struct {
					Split []string `json:"split"`
				} `json:"envoys"`
			} `json:"relay"`
		}
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return fmt.Errorf("decoding %q: %w", out, err)
		}
		envoys := status.Relay.Envoys
		if got := len(by["web"].VirtualHosts) > 0; got != toHost || len(envoys) != 1 || (len(envoys[0].Split) > 0) != toEnvoy {
			return fmt.Errorf("in pieces to the host: %t, to the Envoy: %+v", got, envoys)
		}
		return nil
	})
}

// awaitRoute waits until some route of web's Envoy has a text.
func (s *shop) awaitRoute(text string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		for _, table := range s.dump("web")["dynamic_route_configs"] {
			if strings.Contains(table, text) {
				return nil
			}
		}
		return fmt.Errorf("no route has %s", text)
	})
}
