package envoy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/envoytest"
	agent "github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// secretServer is an agent's server of secrets, with the bootstrap of its Envoy.
func secretServer(t *testing.T, roots ...string) *bootstrapv3.Bootstrap {
	t.Helper()
	return secretServerWith(t, workload.Config{SystemRootFiles: roots})
}

func secretServerWith(t *testing.T, c workload.Config) *bootstrapv3.Bootstrap {
	t.Helper()
	socket := filepath.Join(envoytest.ShortDir(t), "sds.sock")
	const token = "TOKENOFTHISTESTWHICHISLONGENOUGHFORIT"
	log := slog.New(slog.DiscardHandler)
	guard, err := peercred.NewGuard(peercred.GuardConfig{Logger: log, Socket: "sds", Header: agent.TokenHeader, Token: token})
	fatalIf(t, err, "making a guard")
	c.Logger, c.Socket, c.UID, c.Guard = log, socket, uint32(os.Geteuid()), guard
	s, err := workload.New(c)
	fatalIf(t, err, "making a server of secrets")
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	b, err := agent.Build(agent.Config{
		Node:      agent.Node{Type: agent.TypeSidecar, Address: netip.MustParseAddr(clientIP), Name: "web", Namespace: "shop", Domain: "cluster.local"},
		XDSSocket: socket, SDSSocket: socket, ALSSocket: "/als.sock", AdminSocket: "/admin.sock", Token: token,
	})
	fatalIf(t, err, "building a bootstrap")
	return b
}

// startWithSecrets starts an Envoy that gets secrets as another bootstrap says.
func startWithSecrets(t *testing.T, v *view.View, version string, from *bootstrapv3.Bootstrap) *envoytest.Envoy {
	t.Helper()
	file, own := &bootstrapv3.Bootstrap{}, from.GetStaticResources()
	fatalIf(t, protojson.Unmarshal(bootstrap(t, buildAll(v)), file), "reading own JSON")
	file.StaticResources.Secrets = own.GetSecrets()
	file.StaticResources.Clusters = append(own.GetClusters(), file.GetStaticResources().GetClusters()[1:]...)
	body, err := protojson.Marshal(file)
	fatalIf(t, err, "marshaling bootstrap")
	var node map[string]any
	fatalIf(t, json.Unmarshal(body, &node), "reading own JSON")
	node["admin"] = json.RawMessage(envoytest.AdminJSON)
	body, err = json.Marshal(node)
	fatalIf(t, err, "marshaling bootstrap")
	return envoytest.Start(t, envoytest.Config{Bootstrap: body, Version: version})
}

// TestFilesOfADestinationRuleRotate: certificates of MUTUAL in files, and the public roots of
// the host, come from the agent; a new certificate is used without a restart; and a file that
// does not exist keeps neither Envoy from starting nor other services from being called.
func TestFilesOfADestinationRuleRotate(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			dir, ca := t.TempDir(), newAuthority(t)
			root, cert, key := filepath.Join(dir, "root.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
			put := func(path, text string) {
				t.Helper()
				fatalIf(t, os.WriteFile(path+".new", []byte(text), 0o600), "writing %q", path)
				fatalIf(t, os.Rename(path+".new", path), "writing %q", path)
			}
			rotate := func(id string) {
				c, k := ca.identity(t, id)
				put(key, k)
				put(cert, c)
			}
			put(root, ca.rootPEM())
			rotate("spiffe://one/a")
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = fmt.Fprint(w, r.TLS.PeerCertificates[0].URIs[0])
			}))
			pool := x509.NewCertPool()
			pool.AddCert(ca.cert)
			server.TLS = &tls.Config{
				Certificates: []tls.Certificate{ca.serverCertificate(t, "orders.shop.mesh")},
				ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS12,
			}
			server.Config.SetKeepAlivesEnabled(false) // an open connection keeps its certificate
			server.StartTLS()
			t.Cleanup(server.Close)
			port := envoytest.FreePorts(t, 1)[0]
			s := snapshotOf(t, strings.NewReplacer("PORT", strconv.Itoa(port), "BACKEND", strconv.Itoa(portOf(t, server.Listener)), "DIR", dir).Replace(`
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.mesh, broken.shop.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: PORT, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: BACKEND}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: orders, namespace: shop}
spec: {host: orders.shop.mesh, trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: DIR/cert.pem, privateKey: DIR/key.pem}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: broken, namespace: shop}
spec: {host: broken.shop.mesh, trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: DIR/absent.pem, privateKey: DIR/absent.key, caCertificates: DIR/absent.root}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec: {egress: [{bind: 127.0.0.11, hosts: ["./*"]}]}
`), "")
			proxy := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE"}.proxy()
			proxy.FileSecrets = true
			e := startWithSecrets(t, view.Build(s, proxy), version, secretServer(t, filepath.Join(dir, "absent"), root))
			says := func(want string) {
				t.Helper()
				envoytest.Eventually(t, envoytest.Patience, func() error {
					status, text, err := get(t.Context(), net.JoinHostPort(clientIP, strconv.Itoa(port)), nil)
					if err != nil || status != http.StatusOK || text != want {
						return fmt.Errorf("answered with %d %q, %w, want %s", status, text, err, want)
					}
					return nil
				})
			}
			says("spiffe://one/a")
			rotate("spiffe://two/b")
			says("spiffe://two/b")
			e.NoRejections(t)
		})
	}
}
