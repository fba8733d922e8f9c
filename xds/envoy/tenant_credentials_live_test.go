package envoy_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// tenantSnapshot is the mesh of an operator and of one source that is bound to namespaces, or to none if b is nil.
func tenantSnapshot(tb testing.TB, operator, tenant string, b *mesh.Binding) *mesh.Snapshot {
	tb.Helper()
	var fragments []*mesh.Fragment
	for i, text := range []string{operator, tenant} {
		var opts manifest.Options
		if i > 0 && b != nil {
			opts.Namespaces = b.Namespaces
		}
		file, faults := manifest.Decode(opts, "mesh.yaml", []byte(text))
		refuse(tb, slices.DeleteFunc(faults, func(f manifest.Fault) bool { return f.Code == manifest.CodeHashTables }))
		f := &mesh.Fragment{Source: "test"}
		for _, o := range file.Objects {
			if piece := o.Fragment(); piece != nil {
				f.Append(piece)
			}
		}
		fragments = append(fragments, f.Sorted())
	}
	return mesh.Merge(mesh.Input{Fallback: manifest.DefaultMeshConfig(), Fragments: fragments, Bindings: []*mesh.Binding{nil, b}})
}

const tenantGateways = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: shared, namespace: edge}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: PORT, name: http, protocol: HTTP}, hosts: ["*"]}]}
`

const tenantMesh = `
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: own, namespace: shop}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: PORT, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: thief, namespace: shop}
spec:
  hosts: [thief.shop.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 443, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: BACKEND}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: thief, namespace: shop}
spec:
  hosts: [thief.shop.mesh]
  gateways: [edge/shared, shop/own]
  http: [{route: [{destination: {host: thief.shop.mesh, port: {number: 443}}}]}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: thief, namespace: shop}
spec: {host: thief.shop.mesh, trafficPolicy: POLICY}
`

// TestTenantsUseNoCredentialOfAnothersGateway: a rule of a tenant has a gateway of another namespace present
// a credential to the tenant's server only if the credential was given to the tenant. Else the
// gateway sends nothing there: no certificate, and no request in plaintext. Gateways of the tenant's own namespace use
// what their hosts have.
func TestTenantsUseNoCredentialOfAnothersGateway(t *testing.T) {
	t.Parallel()
	policies := map[string]string{
		"policy":           "{tls: TLS}",
		"port":             "{portLevelSettings: [{port: {number: 443}, tls: TLS}]}",
		"skips_verifying":  "{tls: {mode: MUTUAL, credentialName: partner, insecureSkipVerify: true}}",
		"other_spelling":   `{tls: {mode: MUTUAL, credentialName: "kubernetes://partner"}}`,
		"only_authorities": "{tls: {mode: SIMPLE, credentialName: partner}}",
	}
	for _, version := range envoytest.Ends() {
		for name, policy := range policies {
			policy = strings.ReplaceAll(policy, "TLS", "{mode: MUTUAL, credentialName: partner}")
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				envoytest.BinaryVersion(t, version) // or skip, before anything runs
				s := newThief(t)
				status, _ := s.ask(t, version, "edge", policy, nil)
				if seen := s.seen(); status != http.StatusServiceUnavailable || len(seen) > 0 {
					t.Errorf("a gateway of another namespace answers %d, and the tenant's server has seen %q", status, seen)
				}
				if name != "policy" && name != "port" && name != "only_authorities" {
					return
				}
				for _, granted := range []struct {
					ns          string
					credentials []string
				}{{"shop", nil}, {"edge", []string{"partner"}}} {
					status, client := s.ask(t, version, granted.ns, policy, granted.credentials)
					if want := name != "only_authorities"; status != http.StatusOK || strings.Contains(client, "spiffe://partner") != want {
						t.Errorf("a gateway of %s with %v given answers %d; the server has seen %q", granted.ns, granted.credentials, status, client)
					}
				}
			})
		}
	}
}

// thief is a tenant's server, which notes what connections to it show, and a host with a credential.
type thief struct {
	server *httptest.Server
	dir    string
	ca     *authority

	mu sync.Mutex
	// shown are what clients have presented and sent, by all connections. mu guards it: the server's
	// goroutines write.
	shown []string
}

func (s *thief) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown
}

func (s *thief) show(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown = append(s.shown, what)
}

func newThief(t *testing.T) *thief {
	t.Helper()
	s := &thief{dir: t.TempDir(), ca: newAuthority(t)}
	certificate, key := s.ca.identity(t, "spiffe://partner/client")
	for file, text := range map[string]string{"tls.crt": certificate, "tls.key": key, "ca.crt": s.ca.rootPEM()} {
		fatalIf(t, os.MkdirAll(filepath.Join(s.dir, "partner"), 0o750), "making a folder")
		fatalIf(t, os.WriteFile(filepath.Join(s.dir, "partner", file), []byte(text), 0o600), "writing a credential")
	}
	s.server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { s.show("request " + r.Host) }))
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are what the test is about
	pool := x509.NewCertPool()
	pool.AddCert(s.ca.cert)
	s.server.TLS = &tls.Config{
		Certificates: []tls.Certificate{s.ca.serverCertificate(t, "thief.shop.mesh")}, MinVersion: tls.VersionTLS12,
		ClientAuth: tls.RequestClientCert, ClientCAs: pool,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error {
			for _, der := range raw {
				c, err := x509.ParseCertificate(der)
				if err != nil {
					return err
				}
				s.show(fmt.Sprint("certificate ", c.URIs))
			}
			return nil
		},
	}
	s.server.StartTLS()
	t.Cleanup(s.server.Close)
	return s
}

// ask sends a request through a gateway in a namespace, and returns its status and what the server saw of it.
func (s *thief) ask(t *testing.T, version, ns, policy string, credentials []string) (status int, client string) {
	t.Helper()
	s.mu.Lock()
	s.shown = nil
	s.mu.Unlock()
	port := envoytest.FreePorts(t, 1)[0]
	words := strings.NewReplacer("PORT", strconv.Itoa(port), "BACKEND", strconv.Itoa(portOf(t, s.server.Listener)), "POLICY", policy)
	snapshot := tenantSnapshot(t, words.Replace(tenantGateways), words.Replace(tenantMesh), &mesh.Binding{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{"*.shop.mesh"}, Credentials: credentials})
	pf := edgeProxy()
	pf.Namespace = ns
	file := &bootstrapv3.Bootstrap{}
	fatalIf(t, protojson.Unmarshal(bootstrap(t, buildAll(view.Build(snapshot, pf.proxy()))), file), "reading own JSON")
	own := secretServerWith(t, workload.Config{CredentialsDir: s.dir}).GetStaticResources()
	file.StaticResources.Secrets = own.GetSecrets()
	file.StaticResources.Clusters = append(own.GetClusters(), file.GetStaticResources().GetClusters()[1:]...)
	body, err := protojson.Marshal(file)
	fatalIf(t, err, "marshaling bootstrap")
	var node map[string]any
	fatalIf(t, json.Unmarshal(body, &node), "reading own JSON")
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	body, err = json.Marshal(node)
	fatalIf(t, err, "marshaling bootstrap")
	e := envoytest.Start(t, envoytest.Config{Bootstrap: body, Version: version})
	envoytest.Eventually(t, envoytest.Patience, func() error {
		status, _, err = get(t.Context(), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), http.Header{"Host": {"thief.shop.mesh"}})
		return err
	})
	e.NoRejections(t)
	return status, strings.Join(s.seen(), "; ")
}
