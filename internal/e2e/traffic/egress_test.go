package traffic

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/meshtest"
)

// egressMesh is Istio's task "Egress Gateways with TLS Origination": requests of a workload go to the
// gateway by mTLS of the mesh, and the gateway originates mutual TLS with a credential of its host.
const egressMesh = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: edge, namespace: edge}
spec: {address: 127.0.0.13, labels: {istio: egressgateway}, serviceAccount: edge}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: egress, namespace: edge}
spec:
  hosts: [istio-egressgateway.edge.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 8443, name: https, protocol: HTTPS}]
  workloadSelector: {labels: {istio: egressgateway}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: nginx, namespace: shop}
spec:
  hosts: [my-nginx.mesh-external.test]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 9180, name: http, protocol: HTTP}, {number: 9443, name: https, protocol: HTTPS}]
  endpoints: [{address: 127.0.0.14, ports: {http: NGINX, https: NGINX}}]
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: istio-egressgateway, namespace: shop}
spec:
  selector: {istio: egressgateway}
  servers:
  - port: {number: 8443, name: https, protocol: HTTPS}
    bind: 127.0.0.13
    hosts: [my-nginx.mesh-external.test]
    tls: {mode: ISTIO_MUTUAL}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: egressgateway-for-nginx, namespace: shop}
spec:
  host: istio-egressgateway.edge.internal
  subsets:
  - name: nginx
    trafficPolicy:
      loadBalancer: {simple: ROUND_ROBIN}
      portLevelSettings:
      - port: {number: 8443}
        tls: {mode: ISTIO_MUTUAL, sni: my-nginx.mesh-external.test}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: direct-nginx-through-egress-gateway, namespace: shop}
spec:
  hosts: [my-nginx.mesh-external.test]
  gateways: [istio-egressgateway, mesh]
  http:
  - match: [{gateways: [mesh], port: 9180}]
    route:
    - destination: {host: istio-egressgateway.edge.internal, subset: nginx, port: {number: 8443}}
      weight: 100
  - match: [{gateways: [istio-egressgateway], port: 8443}]
    route:
    - destination: {host: my-nginx.mesh-external.test, port: {number: 9443}}
      weight: 100
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: originate-mtls-for-nginx, namespace: shop}
spec:
  host: my-nginx.mesh-external.test
  trafficPolicy:
    loadBalancer: {simple: ROUND_ROBIN}
    portLevelSettings:
    - port: {number: 9443}
      tls: {mode: MUTUAL, credentialName: client-credential, sni: my-nginx.mesh-external.test}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: caller, namespace: shop}
spec: {address: 127.0.0.15, labels: {app: caller}, serviceAccount: caller}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: caller, namespace: shop}
spec:
  workloadSelector: {labels: {app: caller}}
  egress:
  - port: {number: 9180, name: http, protocol: HTTP}
    bind: 127.0.0.15
    hosts: ["./my-nginx.mesh-external.test", "edge/*"]
`

// TestEgressGatewayOriginatesTLS: the gateway presents the certificate of its host, verifies the server
// by ca.crt and ca.crl, and rotates; without the credential it answers 503. A rule without a
// workloadSelector gives sidecars no key.
func TestEgressGatewayOriginatesTLS(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	keys := meshtest.NewKeyRing(t, filepath.Join(p.Dir, "credentials"))
	_, chain, key := keys.Issue("my-nginx.mesh-external.test")
	pair, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(keys.RootPEM()))
	nginx := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, `{"name": "nginx", "caller": %q}`, r.TLS.PeerCertificates[0].SerialNumber.String())
	}))
	var lc net.ListenConfig
	at, err := lc.Listen(t.Context(), "tcp", p.at(14, 0)) // no host of the mesh
	if err != nil {
		t.Fatal(err)
	}
	_ = nginx.Listener.Close()
	nginx.Listener = at
	nginx.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12}
	nginx.Config.SetKeepAlivesEnabled(false) // an open connection keeps its certificate
	nginx.StartTLS()
	t.Cleanup(nginx.Close)
	_, port, err := net.SplitHostPort(nginx.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p.Write("egress.yaml", strings.ReplaceAll(egressMesh, "NGINX", port))
	p.StartServer()
	own := []string{"--drain-time", "1s", "--credentials-dir", keys.Dir}
	edge := meshtest.Host{Name: "edge", Workload: "edge/edge", Address: 13, Agent: own}
	p.StartAgent(edge, p.Token("--host", "edge", "--workload", "edge/edge", "--type", "router"))
	p.StartHost(meshtest.Host{Name: "caller", Workload: "shop/caller", Address: 15, Agent: own})
	p.AwaitLive("edge", "caller")
	caller := meshtest.NewClient(t, "my-nginx.mesh-external.test").Fresh()
	says := func(want string) {
		t.Helper()
		settle(t, func() error {
			a, err := caller.Get(t.Context(), "http://"+p.at(15, 9180)+"/")
			if err == nil && a.Caller != want {
				err = fmt.Errorf("the server was called by %q, want %q", a.Caller, want)
			}
			return err
		})
	}
	refused := func() {
		t.Helper()
		settle(t, func() error {
			switch _, err := caller.Get(t.Context(), "http://"+p.at(15, 9180)+"/"); {
			case err == nil:
				return errors.New("it answers")
			case !strings.Contains(err.Error(), "status 503"):
				return err
			}
			return nil
		})
	}
	refused() // no credential yet
	keys.Write("client-credential", "ca.crt", keys.RootPEM())
	says(keys.Put("client-credential", "client").String())
	says(keys.Put("client-credential", "client").String())
	secrets, err := p.CLI("proxy-config", "secret", "--agent-run-dir", p.RunDir("caller"))
	if err != nil || strings.Contains(secrets, "client-credential") {
		t.Errorf("the sidecar has asked for the key: %s, %v", secrets, err)
	}
	server, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	keys.Write("client-credential", "ca.crl", keys.Revoke(server.SerialNumber))
	refused()
}
