package envoy_test

import (
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/view"
)

// revocationList is a list of the authority that revokes certificates.
func (a *authority) revocationList(tb testing.TB, revoked ...*big.Int) string {
	tb.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, n := range revoked {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: n, RevocationTime: list.ThisUpdate})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	fatalIf(tb, err, "making a list")
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

const credentialMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: orders, namespace: shop}
spec:
  hosts: [mutual.shop.mesh, simple.shop.mesh, insecure.shop.mesh, absent.shop.mesh, unknown.shop.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: PORT, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: BACKEND}}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec: {egress: [{bind: 127.0.0.11, hosts: ["./*"]}]}
`

// TestCredentialsOfADestinationRule: a rule with a workloadSelector has its certificate and its
// authorities from a folder of the host, with a list of revoked certificates; both rotate, and a
// credential that is missing fails alone.
func TestCredentialsOfADestinationRule(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			dir, ca, untrusted := t.TempDir(), newAuthority(t), newAuthority(t)
			put := func(folder, file, text string) {
				t.Helper()
				fatalIf(t, os.MkdirAll(filepath.Join(dir, folder), 0o750), "making a folder")
				path := filepath.Join(dir, folder, file)
				fatalIf(t, os.WriteFile(path+".new", []byte(text), 0o600), "writing %q", path)
				fatalIf(t, os.Rename(path+".new", path), "writing %q", path)
			}
			rotate := func(id string) {
				c, k := ca.identity(t, id)
				put("client", "key", k)
				put("client", "cert", c)
			}
			rotate("spiffe://one/a")
			put("client", "cacert", ca.rootPEM())
			put("servers-cacert", "ca.crt", ca.rootPEM())
			put("untrusted", "ca.crt", untrusted.rootPEM())
			certificate := ca.serverCertificate(t, "mutual.shop.mesh", "simple.shop.mesh", "absent.shop.mesh", "unknown.shop.mesh")
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if len(r.TLS.PeerCertificates) == 0 {
					_, _ = fmt.Fprint(w, "nobody")
					return
				}
				_, _ = fmt.Fprint(w, r.TLS.PeerCertificates[0].URIs[0])
			}))
			pool := x509.NewCertPool()
			pool.AddCert(ca.cert)
			server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool, MinVersion: tls.VersionTLS12}
			server.Config.SetKeepAlivesEnabled(false) // an open connection keeps its certificate
			server.StartTLS()
			t.Cleanup(server.Close)
			port := envoytest.FreePorts(t, 1)[0]
			var rules strings.Builder
			rules.WriteString(credentialMesh)
			for host, settings := range map[string]string{
				"mutual": "mode: MUTUAL, credentialName: client", "simple": "mode: SIMPLE, credentialName: servers",
				"insecure": "mode: MUTUAL, credentialName: client, insecureSkipVerify: true",
				"absent":   "mode: MUTUAL, credentialName: absent", "unknown": "mode: SIMPLE, credentialName: untrusted",
			} {
				_, _ = fmt.Fprintf(&rules, "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: %s, namespace: shop}\n"+
					"spec: {host: %s.shop.mesh, workloadSelector: {matchLabels: {app: web}}, trafficPolicy: {tls: {%s}}}\n", host, host, settings)
			}
			s := snapshotOf(t, strings.NewReplacer("PORT", strconv.Itoa(port), "BACKEND", strconv.Itoa(portOf(t, server.Listener))).Replace(rules.String()), "")
			proxy := proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}}.proxy()
			file := &bootstrapv3.Bootstrap{}
			fatalIf(t, protojson.Unmarshal(bootstrap(t, buildAll(view.Build(s, proxy))), file), "reading own JSON")
			own := secretServerWith(t, workload.Config{CredentialsDir: dir}).GetStaticResources()
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
			says := func(host string, code int, want string) {
				t.Helper()
				envoytest.Eventually(t, envoytest.Patience, func() error {
					status, text, err := get(t.Context(), net.JoinHostPort(clientIP, strconv.Itoa(port)), http.Header{"Host": {host + ".shop.mesh"}})
					if err != nil || status != code || !strings.Contains(text, want) {
						return fmt.Errorf("%s answered with %d %q, %w, want %d %s", host, status, text, err, code, want)
					}
					return nil
				})
			}
			says("mutual", http.StatusOK, "spiffe://one/a")
			says("simple", http.StatusOK, "nobody")
			says("insecure", http.StatusOK, "spiffe://one/a")
			says("absent", http.StatusServiceUnavailable, "")
			says("unknown", http.StatusServiceUnavailable, "")
			rotate("spiffe://two/b")
			says("mutual", http.StatusOK, "spiffe://two/b")
			leaf, err := x509.ParseCertificate(certificate.Certificate[0])
			fatalIf(t, err, "parsing")
			put("servers-cacert", "ca.crl", ca.revocationList(t, leaf.SerialNumber))
			says("simple", http.StatusServiceUnavailable, "")
			says("mutual", http.StatusOK, "spiffe://two/b")
			c, k := ca.identity(t, "spiffe://three/c")
			put("absent", "tls.crt", c)
			put("absent", "tls.key", k)
			put("absent", "ca.crt", ca.rootPEM())
			says("absent", http.StatusOK, "spiffe://three/c")
			e.NoRejections(t)
		})
	}
}
