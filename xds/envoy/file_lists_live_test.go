package envoy_test

import (
	"crypto/tls"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/view"
)

// TestMissingListClosesOneServer: servers of one port with certificates in files. A list of revoked certificates
// that is missing, or is no list, closes its own server, and no other. Without a list that can be read nobody is
// let in, and who is on the list is not. Paths may be relative, and may have the character between two paths.
func TestMissingListClosesOneServer(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			ca, dir := newAuthority(t), filepath.Join(t.TempDir(), "a~b")
			fatalIf(t, os.Mkdir(dir, 0o700), "making a directory")
			put := func(name, text string) {
				t.Helper()
				fatalIf(t, os.WriteFile(filepath.Join(dir, name+".new"), []byte(text), 0o600), "writing %q", name)
				fatalIf(t, os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)), "writing %q", name)
			}
			cert, key := ca.identity(t, edgeID)
			put("tls.crt", cert)
			put("tls.key", key)
			put("ca.crt", ca.rootPEM())
			put("good.crl", ca.revocationList(t, big.NewInt(12)))
			put("text.crl", "no list\n")
			good, revoked := ca.leaf(t, 10, webID, ecKey(t), time.Hour), ca.leaf(t, 12, webID, ecKey(t), time.Hour)
			port := envoytest.FreePorts(t, 1)[0]
			var m strings.Builder
			for name, more := range map[string]string{
				"plain": "mode: SIMPLE", "good": "mode: MUTUAL, caCertificates: DIR/ca.crt, caCrl: DIR/good.crl", "absent": "mode: MUTUAL, caCertificates: DIR/ca.crt, caCrl: DIR/absent.crl",
				"text": "mode: MUTUAL, caCertificates: DIR/ca.crt, caCrl: DIR/text.crl", "relative": "mode: MUTUAL, caCertificates: RELATIVE/ca.crt, caCrl: RELATIVE/good.crl",
			} {
				_, _ = fmt.Fprintf(&m, `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers: [{bind: %[2]s, port: {number: PORT, name: https, protocol: HTTPS}, hosts: [%[1]s.example.com], tls: {%[3]s, serverCertificate: DIR/tls.crt, privateKey: DIR/tls.key}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: edge}
spec: {hosts: [%[1]s.example.com], gateways: [%[1]s], http: [{directResponse: {status: 200, body: {string: %[1]s}}}]}
`, name, serverIP, more)
			}
			s := snapshotOf(t, strings.NewReplacer("PORT", strconv.Itoa(port), "DIR", dir, "RELATIVE", strings.TrimPrefix(dir, "/")).Replace(m.String()), "")
			proxy := edgeProxy().proxy()
			proxy.FileSecrets, proxy.FileLists = true, true
			e := startWithSecrets(t, view.Build(s, proxy), version, secretServer(t))
			call := func(host string, client *tls.Certificate) (string, error) {
				cfg := &tls.Config{InsecureSkipVerify: true, ServerName: host + ".example.com", NextProtos: []string{"http/1.1"}}
				if client != nil {
					cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, nil }
				}
				return callTLS(t.Context(), at(serverIP, port), cfg)
			}
			reaches := func(host string, client *tls.Certificate) {
				t.Helper()
				envoytest.Eventually(t, envoytest.Patience, func() error {
					got, err := call(host, client)
					if err == nil && got != host {
						err = fmt.Errorf("%q answers", got)
					}
					return err
				})
			}
			reaches("plain", nil)
			reaches("good", &good)
			reaches("relative", &good)
			for host, client := range map[string]*tls.Certificate{"good": &revoked, "relative": &revoked, "absent": &good, "text": &good} {
				if got, err := call(host, client); err == nil {
					t.Errorf("%s lets a client in, who reaches %q", host, got)
				}
			}
			put("absent.crl", ca.revocationList(t, big.NewInt(12)))
			reaches("absent", &good)
			e.NoRejections(t)
		})
	}
}
