package capture

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// TestClosedMode: whatever is killed, an application's connections go through Envoy or are refused;
// not one packet goes directly.
func TestClosedMode(t *testing.T) {
	h := newHost(t)
	service := h.service()
	h.declare(capture.Closed)
	device := fmt.Sprintf("v%da", h.net)
	wire := h.Wire(device, realPort)
	quiet := func(when string) {
		t.Helper()
		if n := wire(); n != 0 {
			t.Errorf("%s: %d packets of the application on the wire", when, n)
		}
	}
	h.want(refused, refused, refused)
	quiet("before Envoy")
	h.startAgent()
	h.want(orders, orders, web)
	h.NFT("", "flush", "ruleset")
	h.want(orders, orders, web)
	if out, code := h.status(); code != 0 || !strings.Contains(out, "put back: the table 1 times") {
		t.Errorf("%d %s", code, out)
	}
	metrics, err := h.Admin("web", "/metrics")
	for _, want := range []string{`fairlead_capture_service_up 1`, `fairlead_capture_table_kept 1`, `fairlead_capture_restored_total{what="table"} 1`, `fairlead_capture_connections_total{what="outbound"} `} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics lack %s: %v\n%s", want, err, metrics)
		}
	}

	h.killAgent()
	h.want(orders, orders, web)
	h.killEnvoy()
	h.want(refused, refused, refused)
	wire = h.Wire(device, realPort)
	for range 20 {
		h.Want(appUser, h.real(), refused)
	}
	quiet("both dead")
	service.Kill()
	for range 20 {
		h.Want(appUser, h.real(), refused)
	}
	quiet("the service dead, too")
	if out, code := h.status(); code != 1 || !strings.Contains(out, "the service does not run") {
		t.Errorf("%d %s", code, out)
	}
	h.service()
	h.startAgent()
	h.want(orders, orders, web)
	h.killEnvoy() // its agent starts it again
	h.want(orders, orders, web)
	if out, code := h.status(); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	if out, code := h.cli(h.flags("remove", "--wait", "1s")...); code != 0 {
		t.Errorf("%d %s", code, out)
	}
	h.want(failed, orders, web)
}

// TestOpenMode: connections go directly where Envoy is not there, ten seconds after it was reported
// last, by the kernel alone.
func TestOpenMode(t *testing.T) {
	h := newHost(t)
	service := h.service()
	h.declare(capture.Open)
	h.want(refused, orders, web) // directly: nobody answers at a virtual address
	if out, code := h.status(); code != 1 || !strings.Contains(out, "workload web: connections go directly") {
		t.Errorf("%d %s", code, out)
	}
	h.startAgent()
	h.want(orders, orders, web)
	h.awaitWell()
	h.killEnvoy() // its agent starts it again
	h.want(orders, orders, web)
	h.awaitWell()

	h.killAgent()
	h.want(orders, orders, web)
	h.want(refused, orders, web)
	h.startAgent() // it takes Envoy over
	h.want(orders, orders, web)
	h.awaitWell()

	h.killAgent()
	h.killEnvoy()
	h.want(refused, refused, refused)
	h.want(refused, orders, web)
	h.startAgent()
	h.want(orders, orders, web)
	h.awaitWell()

	service.Kill()
	h.want(orders, orders, web)
	h.want(refused, orders, web)
	h.service()
	h.want(orders, orders, web)
}

// TestPublishedLater: a port that another program publishes is refused by apply, and named by status
// if it is captured already.
func TestPublishedLater(t *testing.T) {
	h := newHost(t)
	h.service()
	h.declare(capture.Closed)
	h.awaitWell()
	iptables := func(rule string) {
		t.Helper()
		nethost.Run(t, nethost.Program(t, "ip"), append([]string{"netns", "exec", h.Name, nethost.Program(t, "iptables")}, strings.Fields(rule)...)...)
	}
	publish := fmt.Sprintf("PREROUTING -t nat -p tcp --dport %d -j DNAT --to-destination 172.17.0.2:80", webPort)
	iptables("-A " + publish)
	const says = "port 8080: table ip nat, chain PREROUTING redirects it already"
	if out, code := h.status(); code != 1 || !strings.Contains(out, "not as declared: "+says) {
		t.Errorf("%d %s", code, out)
	}
	if out, code := h.cli("plan", "--capture-file", h.dir("capture.yaml"), "--capture-run-dir", h.dir("capture")); code != 1 || !strings.Contains(out, "refused: "+says) {
		t.Errorf("%d %s", code, out)
	}
	if out, code := h.cli(h.flags("apply", "--capture-file", h.dir("capture.yaml"), "--capture-run-dir", h.dir("capture"))...); code != 1 || !strings.Contains(out, says) || strings.Contains(out, "applied") {
		t.Errorf("%d %s", code, out)
	}
	h.peer.Want(otherUser, h.web(), refused) // still captured, and no Envoy runs
	iptables("-D " + publish)
	h.awaitWell()
}

// awaitWell waits until status says that all is as declared.
func (h *host) awaitWell() {
	h.t.Helper()
	envoytest.Eventually(h.t, envoytest.Patience, func() error {
		if out, code := h.status(); code != 0 {
			return fmt.Errorf("%d %s", code, out)
		}
		return nil
	})
}
