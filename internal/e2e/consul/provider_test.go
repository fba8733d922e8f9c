package consul

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// serveJudge is an authorization server without an agent, which answers everything with a status.
func (f *fleet) serveJudge(i instance, status int) {
	f.t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(f.t.Context(), "tcp", net.JoinHostPort(f.Address(i.host), strconv.Itoa(i.port)))
	if err != nil {
		f.t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }), ReadHeaderTimeout: patience}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	f.t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
}

// statusOf asks an instance of api, on a connection of its own.
func (f *fleet) statusOf(i instance) (int, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(f.Address(i.host), strconv.Itoa(i.port))+"/", http.NoBody)
	if err != nil {
		return 0, err
	}
	req.Host = apiHost
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// TestProviderOfTheCatalog: an authorization server that only Consul knows is asked at the address
// that the catalog has now. While the catalog has none, nothing passes.
func TestProviderOfTheCatalog(t *testing.T) {
	t.Parallel()
	f := prepare(t, false)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	const settings = "extensionProviders: [{name: judge, envoyExtAuthzHttp: {service: shop/judge.service.consul, port: 9100, timeout: 2s}}]\n"
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	one := instance{id: "judge-1", service: "judge", host: 15, port: 9100}
	two := instance{id: "judge-2", service: "judge", host: 16, port: 9100}
	f.serveJudge(one, http.StatusUnauthorized)
	f.serveJudge(two, http.StatusPaymentRequired)
	f.put(one, api.HealthPassing)
	f.StartServer(append(f.serverArgs(), "--mesh-config", config)...)
	f.equal()
	f.startHosts()

	asked, others := apis()[2], apis()[0] // with an agent of ours, without one
	await := func(what string, want int) {
		t.Helper()
		envoytest.Eventually(t, patience, func() error {
			if code, err := f.statusOf(asked); err != nil || code != want {
				return fmt.Errorf("%s: status %d, %w; want %d", what, code, err, want)
			}
			return nil
		})
	}
	await("without a policy", http.StatusOK)
	f.Write("ask.yaml", `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: ask, namespace: shop}
spec:
  selector: {matchLabels: {consul.fairlead.io/service: api}}
  action: CUSTOM
  provider: {name: judge}
  rules: [{}]
`)
	await("asked", http.StatusUnauthorized)
	if code, err := f.statusOf(others); err != nil || code != http.StatusOK {
		t.Errorf("an instance without an Envoy: %d, %v", code, err)
	}

	f.put(two, api.HealthPassing)
	f.takeOut(one)
	await("it has moved", http.StatusPaymentRequired)
	f.put(two, api.HealthCritical)
	await("its check fails", http.StatusForbidden)
	f.put(two, api.HealthPassing)
	await("its check passes again", http.StatusPaymentRequired)
	f.takeOut(two)
	await("it is not in the catalog", http.StatusForbidden)
	f.put(one, api.HealthPassing)
	await("it is back", http.StatusUnauthorized)
}
