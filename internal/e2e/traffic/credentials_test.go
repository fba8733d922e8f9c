package traffic

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/internal/meshtest"
)

const credentialGateway = meshtest.GatewayWorkload + `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: public, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers:
  - port: {number: 9443, name: https-good, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [good.test]
    tls: {mode: SIMPLE, credentialName: good}
  - port: {number: 9443, name: https-absent, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [absent.test]
    tls: {mode: SIMPLE, credentialName: absent}
  - port: {number: 9443, name: https-mutual, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [mutual.test]
    tls: {mode: MUTUAL, credentialName: mutual, minProtocolVersion: TLSV1_2}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: public, namespace: edge}
spec:
  hosts: [good.test, absent.test, mutual.test]
  gateways: [public]
  http:
  - directResponse: {status: 200, body: {string: '{"name": "edge"}'}}
`

// edgeHost is a gateway whose keys are folders of its host.
type edgeHost struct {
	*pair
	keys  *meshtest.KeyRing
	host  meshtest.Host
	agent *meshtest.Process
}

func newEdgeHost(t *testing.T) *edgeHost {
	t.Helper()
	e := &edgeHost{pair: newPair(t)}
	e.keys = meshtest.NewKeyRing(t, filepath.Join(e.Dir, "credentials"))
	e.keys.Put("good", "good.test")
	e.keys.Put("mutual", "mutual.test")
	e.keys.Write("mutual", "ca.crt", e.keys.RootPEM())
	e.Write("credentials.yaml", credentialGateway)
	e.StartServer()
	e.host, e.agent = e.StartGateway("--credentials-dir", e.keys.Dir, "--http-address", e.AgentHTTP(meshtest.GatewayAt))
	return e
}

// answers is nil if a server answers on a new connection.
func (e *edgeHost) answers(name string, own ...tls.Certificate) error {
	_, err := e.keys.HTTPS(name+".test", own...).Fresh().Get(e.t.Context(), "https://"+e.at(13, 9443)+"/")
	return err
}

// presents waits until a server presents a certificate.
func (e *edgeHost) presents(name string, serial *big.Int) {
	e.t.Helper()
	settle(e.t, func() error {
		d := tls.Dialer{Config: e.keys.TLS(name + ".test")}
		c, err := d.DialContext(e.t.Context(), "tcp", e.at(13, 9443))
		if err != nil {
			return err
		}
		defer c.Close()
		own, ok := c.(*tls.Conn)
		if !ok {
			return errors.New("not TLS")
		}
		if got := own.ConnectionState().PeerCertificates[0].SerialNumber; got.Cmp(serial) != 0 {
			return fmt.Errorf("serial is %d, want %d", got, serial)
		}
		return nil
	})
}

// coldStart bounds the time from the start of an Envoy until the server with a key answers. A missing
// key may not delay it: Envoy would wait 15 s for the secret, or for ever.
const coldStart = 10 * time.Second

// TestMissingKeyFailsAlone: of the servers at one port of a gateway, the one without a key fails its
// handshakes. The others serve, also when Envoy starts anew while the control plane is away. Everybody
// who asks is told which key is missing.
func TestMissingKeyFailsAlone(t *testing.T) {
	t.Parallel()
	e := newEdgeHost(t)
	settle(t, func() error { return e.answers("good") })
	if err := e.answers("absent"); err == nil {
		t.Error("a server without its key answers")
	}
	if err := e.answers("mutual"); err == nil {
		t.Error("MUTUAL takes a client without a certificate")
	}
	e.reports("absent", credential.Missing)
	e.Server.Kill()
	e.agent.Kill()
	if err := syscall.Kill(e.EnvoyPID("edge"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	settle(t, func() error {
		if e.answers("good") == nil {
			return errors.New("the old Envoy still serves")
		}
		return nil
	})
	e.agent = e.StartAgent(e.host, "")
	var began time.Time
	settle(t, func() error {
		if e.EnvoyPID("edge") == 0 {
			return errors.New("Envoy has not started")
		}
		began = time.Now()
		return nil
	})
	settle(t, func() error { return e.answers("good") })
	if took := time.Since(began); took > coldStart {
		t.Errorf("the server with a key answers %s after the start of Envoy", took)
	} else {
		t.Logf("the server with a key answers %s after the start of Envoy", took.Round(time.Millisecond))
	}
	if err := e.answers("absent"); err == nil {
		t.Error("a server without its key answers")
	}
	e.presents("absent", e.keys.Put("absent", "absent.test"))
}

// reports waits until the agent, its metrics, proxy-config and the control plane say how a credential
// stands.
func (e *edgeHost) reports(name string, state credential.State) {
	e.t.Helper()
	settle(e.t, func() error {
		text, err := e.Admin("edge", "/v1/status")
		if err != nil {
			return err
		}
		var s agent.Status
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			return err
		}
		found := false
		for _, c := range s.Credentials {
			found = found || c.Name == name && c.State == state
		}
		table, _ := e.CLI("proxy-status", "--run-dir", e.RunDir("server"), "edge") // exits with 1: a key is missing
		page, err := e.Metrics(13)
		if err != nil {
			return err
		}
		secrets, err := e.CLI("proxy-config", "secret", "--agent-run-dir", e.RunDir("edge"))
		switch {
		case err != nil:
			return err
		case !found:
			return fmt.Errorf("the status of the agent has %+v", s.Credentials)
		case !strings.Contains(table, name+" ") || !strings.Contains(table, string(state)):
			return fmt.Errorf("proxy-status has %s", table)
		case state != credential.Ready && page.Sum("fairlead_agent_credential_problem", "credential", name, "state", string(state)) != 1:
			return fmt.Errorf("the metrics have %s", page.Matching("fairlead_agent_credential"))
		case !strings.Contains(secrets, "kubernetes://"+name):
			return fmt.Errorf("proxy-config has %s", secrets)
		}
		for _, out := range []string{text, table, secrets} {
			if strings.Contains(out, "PRIVATE") {
				e.t.Fatalf("a key is in %s", out)
			}
		}
		return nil
	})
}

// TestKeysRotateUnderLoad: a gateway loses no request of 500 a second while its certificate rotates in
// halves, the folder of another server breaks, the control plane and the agent are killed, and the
// certificate rotates again. A list revokes clients meanwhile.
func TestKeysRotateUnderLoad(t *testing.T) {
	t.Parallel()
	e := newEdgeHost(t)
	settle(t, func() error { return e.answers("good") })
	own, number := e.keys.Client("client")
	settle(t, func() error { return e.answers("mutual", own) })
	const kept, fresh = 450, 50
	url := "https://" + e.at(13, 9443) + "/"
	loads := []*meshtest.Load{e.keys.HTTPS("good.test").StartLoad(t, url, kept), e.keys.HTTPS("good.test").Fresh().StartLoad(t, url, fresh)}
	serial, chain, key := e.keys.Issue("good.test")
	e.keys.Write("good", "tls.crt", chain)
	e.reports("good", credential.Mismatch)
	e.keys.Write("good", "tls.key", key)
	e.presents("good", serial)
	e.reports("good", credential.Ready)
	e.keys.Write("mutual", "tls.crt", "broken")
	e.reports("mutual", credential.Broken)
	settle(t, func() error { return e.answers("mutual", own) })
	e.keys.Write("mutual", "ca.crl", e.keys.Revoke(number))
	settle(t, func() error {
		if e.answers("mutual", own) == nil {
			return errors.New("a client that is revoked is taken")
		}
		return nil
	})
	e.Server.Kill()
	e.presents("good", e.keys.Put("good", "good.test"))
	e.agent.Kill()
	serial = e.keys.Put("good", "good.test") // nobody looks
	loads[0].Wait(t, kept)
	e.agent = e.StartAgent(e.host, "")
	e.presents("good", serial)
	loads[1].Wait(t, fresh)
	for _, l := range loads {
		r := l.Stop()
		t.Logf("%d requests, %d failed", r.Good+r.Failed, r.Failed)
		if r.Failed > 0 {
			t.Errorf("%d of %d requests failed: %v", r.Failed, r.Good+r.Failed, r.Errors)
		}
	}
}
