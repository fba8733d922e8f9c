package traffic

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// taker is a Gateway without a date that wants the port and the host of the one that serves, and whose name comes
// first.
const taker = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: aardvark, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - port: {number: 8080, name: taken, protocol: TCP}
    bind: 127.0.0.13
    hosts: ["*"]
  - port: {number: 9443, name: taken-tls, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [good.test]
    tls: {mode: SIMPLE, credentialName: other}
`

// TestNewGatewayTakesNothing: no request fails when a Gateway comes that wants a port and a host of one that serves.
// The status names both servers that are left out, and the line that would turn the order.
func TestNewGatewayTakesNothing(t *testing.T) {
	t.Parallel()
	e := newBusyEdge(t)
	e.Write("gateway.yaml", strings.Replace(busyGateway, "{name: public, namespace: edge}", "{name: public, namespace: edge, creationTimestamp: 2026-01-31T12:00:00Z}", 1))
	loads := []*meshtest.Load{
		meshtest.NewClient(t, "good.test").Fresh().StartLoad(t, "http://"+e.at(13, 8080)+"/", 50),
		e.keys.HTTPS("good.test").Fresh().StartLoad(t, "https://"+e.at(13, 9443)+"/", 50),
	}
	e.Write("aardvark.yaml", taker)
	const findingHolds = 30 * time.Second // then it is a condition
	envoytest.Eventually(t, findingHolds+envoytest.Patience, func() error {
		out, err := e.CLI("proxy-status", "--run-dir", e.RunDir("server"))
		if err == nil {
			return fmt.Errorf("the mesh is well: %s", out)
		}
		for _, word := range []string{
			"gateway-server: Gateway edge/aardvark", `"taken" on port 8080`, `"taken-tls" on port 9443`, "Gateway edge/public, ", "which has a creationTimestamp",
			"write `creationTimestamp: \"2026-01-31T11:59:59Z\"` into the metadata of Gateway edge/aardvark",
		} {
			if !strings.Contains(out, word) {
				return fmt.Errorf("no %q in\n%s", word, out)
			}
		}
		return nil
	})
	for _, l := range loads {
		if r := l.Stop(); r.Failed > 0 || r.Good == 0 {
			t.Errorf("%d of %d failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
		} else {
			t.Logf("0 of %d failed", r.Good)
		}
	}
}
