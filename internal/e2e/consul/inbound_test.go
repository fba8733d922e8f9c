package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// TestDeclaredMTLSThatNothingTakes: an instance of the catalog is declared to take mTLS. Its Envoy listens
// at no port, or it has no agent. Clients get 503, and the instance is named, until it takes mTLS.
func TestDeclaredMTLSThatNothingTakes(t *testing.T) {
	t.Parallel()
	f := prepare(t, false)
	bare := instance{id: "bare-1", service: "bare", host: 15, port: apiPort, agent: true}
	alone := instance{id: "alone-1", service: "alone", host: 16, port: apiPort, agent: true}
	for _, i := range []instance{bare, alone} {
		f.put(i, api.HealthPassing)
	}
	f.StartServer(append(f.serverArgs(), "--absent-after", "1s")...)
	f.equal()
	f.startHosts()
	host := meshtest.Host{Name: "bare", Workload: "shop/bare", Address: bare.host, App: []string{}, Agent: []string{"--drain-time", "1s"}}
	_, f.agents["bare"] = f.StartHost(host)
	f.AwaitLive("bare")

	f.eventuallyStatus("bare.service.consul", http.StatusServiceUnavailable)
	f.eventuallyStatus("alone.service.consul", http.StatusServiceUnavailable)
	f.eventuallyNamed(map[string][]string{
		"bare-1":  {"port 9080", "get 503", "bare.service.consul", "on host bare has no inbound listener", "--capture", "ingress listener for port 9080", "tls=istio"},
		"alone-1": {"port 9080", "get 503", "no proxy is connected at that address", "fairlead token create --host NAME --workload shop/alone"},
	})
	out, err := f.CLI("proxy-status", "--unwell", "--run-dir", f.RunDir("server"))
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 1 || strings.Count(out, "no-inbound") < 2 {
		t.Errorf("proxy-status --unwell: %v\n%s", err, out)
	}

	// What the condition says helps.
	f.Write("bare.yaml", fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: bare, namespace: shop}
spec:
  workloadSelector: {labels: {instance: bare-1}}
  ingress:
  - port: {number: 9080, name: http, protocol: HTTP}
    bind: %s
    defaultEndpoint: 127.0.0.1:18082
  egress:
  - hosts: ["~/*"]
`, f.Address(bare.host)))
	f.takeOut(alone)
	f.eventuallyNamed(map[string][]string{})
	a := meshtest.NewClient(t, "bare.service.consul")
	envoytest.Eventually(t, patience, func() error {
		got, err := a.Get(t.Context(), f.url)
		if err == nil && got.Caller != "spiffe://cluster.local/ns/shop/sa/client" {
			err = fmt.Errorf("called by %q", got.Caller)
		}
		return err
	})
}

// eventuallyStatus waits for an answer to a request through the client's Envoy.
func (f *fleet) eventuallyStatus(host string, want int) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error {
		req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.url, http.NoBody)
		if err != nil {
			return err
		}
		req.Host = host
		res, err := (&http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if res.StatusCode != want {
			return fmt.Errorf("%s is answered with %d", host, res.StatusCode)
		}
		return nil
	})
}

// eventuallyNamed waits until the endpoints without an inbound listener that the server names are these
// instances, with words of each.
func (f *fleet) eventuallyNamed(want map[string][]string) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error {
		out, err := f.CLI("proxy-status", "-o", "json", "--run-dir", f.RunDir("server"))
		if exit, exited := errors.AsType[*exec.ExitError](err); err != nil && (!exited || exit.ExitCode() != 1) {
			return err
		}
		var status struct {
			Unwell []struct{ Reason, Subject, Text, Action string } `json:"unwell"`
		}
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return err
		}
		named := map[string]bool{}
		for _, c := range status.Unwell {
			if c.Reason != "no-inbound" {
				continue
			}
			instance := ""
			for id, words := range want {
				if strings.Contains(c.Subject, id) {
					instance = id
				}
				for _, w := range words {
					if instance == id && !strings.Contains(c.Text+" "+c.Action, w) {
						return fmt.Errorf("%s: nothing of %q in %q, %q", id, w, c.Text, c.Action)
					}
				}
			}
			if instance == "" {
				return fmt.Errorf("also named: %+v", c)
			}
			named[instance] = true
		}
		if len(named) != len(want) {
			return fmt.Errorf("named are %v, of %d: %+v", named, len(want), status.Unwell)
		}
		return nil
	})
}
