package envoy_test

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const edgeID = "spiffe://cluster.local/ns/edge/sa/edge"

// edgeProxy is a gateway host.
func edgeProxy() proxyFile {
	return proxyFile{Namespace: "edge", ServiceAccount: "edge", IP: serverIP, Type: "router", Labels: map[string]string{"istio": "ingressgateway"}}
}

// leaf is a certificate for a SPIFFE ID and a DNS name, with a key of its own.
func (a *authority) leaf(tb testing.TB, serial int64, id string, key crypto.Signer, left time.Duration) tls.Certificate {
	tb.Helper()
	u, err := url.Parse(id)
	fatalIf(tb, err, "reading %q", id)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), URIs: []*url.URL{u}, DNSNames: []string{"client.example.com", "*.example.com"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(left), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, key.Public(), a.key)
	fatalIf(tb, err, "signing %q", id)
	cert, err := x509.ParseCertificate(der)
	fatalIf(tb, err, "parsing")
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}
}

func ecKey(tb testing.TB) crypto.Signer {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	fatalIf(tb, err, "making a key")
	return key
}

// keyPair and roots are secrets with a certificate, and with authorities.
func keyPair(tb testing.TB, name string, c tls.Certificate) map[string]any {
	tb.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	fatalIf(tb, err, "writing a key")
	text := func(kind string, der []byte) map[string]any {
		return map[string]any{"inline_string": string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))}
	}
	return map[string]any{"name": "kubernetes://" + name, "tls_certificate": map[string]any{
		"certificate_chain": text("CERTIFICATE", c.Certificate[0]), "private_key": text("PRIVATE KEY", key),
	}}
}

func roots(name, pem, crl string) map[string]any {
	validation := map[string]any{"trusted_ca": map[string]any{"inline_string": pem}}
	if crl != "" {
		validation["crl"] = map[string]any{"inline_string": crl}
	}
	return map[string]any{"name": "kubernetes://" + name + "-cacert", "validation_context": validation}
}

// gatewayTLSServers are the servers of one port, each with one host; its routes answer with its name. The words in
// capitals are of the test.
func gatewayTLSServers() map[string]struct{ host, tls string } {
	return map[string]struct{ host, tls string }{
		"simple":      {"simple.example.com", "mode: SIMPLE, credentialName: ecdsa"},
		"both":        {"both.example.com", "mode: SIMPLE, credentialNames: [rsa, ecdsa], maxProtocolVersion: TLSV1_2"},
		"names":       {"names.example.com", "mode: SIMPLE, credentialName: ecdsa, subjectAltNames: [client.example.com]"},
		"mutual":      {"mutual.example.com", "mode: MUTUAL, credentialName: ecdsa"},
		"other-roots": {"other-roots.example.com", "mode: MUTUAL, credentialName: ecdsa, caCertCredentialName: untrusted"},
		"revoking":    {"revoking.example.com", "mode: MUTUAL, credentialName: revoking"},
		"dns":         {"dns.example.com", "mode: MUTUAL, credentialName: ecdsa, subjectAltNames: [client.example.com]"},
		"uri":         {"uri.example.com", "mode: MUTUAL, credentialName: ecdsa, subjectAltNames: [OTHERID]"},
		"spki":        {"spki.example.com", "mode: MUTUAL, credentialName: ecdsa, verifyCertificateSpki: [SPKI]"},
		"hash":        {"hash.example.com", "mode: MUTUAL, credentialName: ecdsa, verifyCertificateHash: [HASH]"},
		"optional":    {"optional.example.com", "mode: OPTIONAL_MUTUAL, credentialName: ecdsa"},
		"istio":       {"istio.example.com", "mode: ISTIO_MUTUAL"},
		"istio-other": {"istio-other.example.com", "mode: ISTIO_MUTUAL, subjectAltNames: [OTHERID]"},
		"tls12":       {"tls12.example.com", "mode: SIMPLE, credentialName: ecdsa, minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-ECDSA-CHACHA20-POLY1305]"},
		"tls13":       {"tls13.example.com", "mode: SIMPLE, credentialName: ecdsa, minProtocolVersion: TLSV1_3"},
		"old":         {"old.example.com", "mode: SIMPLE, credentialName: ecdsa, minProtocolVersion: TLSV1_0, cipherSuites: [ECDHE-ECDSA-AES128-SHA]"},
		"upper":       {"Upper.Example.com", "mode: SIMPLE, credentialName: ecdsa"},
		"wild":        {"*.example.com", "mode: SIMPLE, credentialName: ecdsa"},
		"deep":        {"*.deep.example.com", "mode: SIMPLE, credentialName: ecdsa"},
		"all":         {"*", "mode: SIMPLE, credentialName: ecdsa"},
	}
}

// gatewayTLSCases says which server a client reaches; "" is that its connection fails.
var gatewayTLSCases = []struct{ sni, client, settings, want string }{
	{"simple.example.com", "", "", "simple"},
	{"simple.example.com", "untrusted", "", "simple"},
	{"simple.example.com", "", "1.1", ""},
	{"both.example.com", "", "rsa", "both rsa"},
	{"both.example.com", "", "ecdsa", "both ecdsa"},
	{"simple.example.com", "", "rsa", ""},
	{"names.example.com", "", "", "names"},
	{"mutual.example.com", "good", "", "mutual"},
	{"mutual.example.com", "good", "1.2", "mutual"},
	{"mutual.example.com", "other", "", "mutual"},
	{"mutual.example.com", "", "", ""},
	{"mutual.example.com", "", "1.2", ""},
	{"mutual.example.com", "untrusted", "", ""},
	{"mutual.example.com", "expired", "", ""},
	{"other-roots.example.com", "untrusted", "", "other-roots"},
	{"other-roots.example.com", "good", "", ""},
	{"revoking.example.com", "good", "", "revoking"},
	{"revoking.example.com", "revoked", "", ""},
	{"mutual.example.com", "revoked", "", "mutual"},
	{"dns.example.com", "good", "", "dns"},
	{"uri.example.com", "other", "", "uri"},
	{"uri.example.com", "good", "", ""},
	{"spki.example.com", "good", "", "spki"},
	{"spki.example.com", "other", "", ""},
	{"hash.example.com", "good", "", "hash"},
	{"hash.example.com", "other", "", ""},
	{"optional.example.com", "", "", "optional"},
	{"optional.example.com", "good", "", "optional"},
	{"optional.example.com", "untrusted", "", ""},
	{"optional.example.com", "expired", "", ""},
	{"istio.example.com", "good", "", "istio"},
	{"istio.example.com", "", "", ""},
	{"istio.example.com", "untrusted", "", ""},
	{"istio.example.com", "good", "1.2", "istio"},
	{"istio-other.example.com", "other", "", "istio-other"},
	{"istio-other.example.com", "good", "", ""},
	{"tls12.example.com", "", "", "tls12"},
	{"tls12.example.com", "", "1.3", ""},
	{"tls13.example.com", "", "", "tls13"},
	{"tls13.example.com", "", "1.2", ""},
	{"old.example.com", "", "1.1", "old"},
	{"upper.example.com", "", "", "upper"},
	{"UPPER.EXAMPLE.COM", "", "", "upper"},
	{"SIMPLE.example.com", "", "", "simple"},
	{"any.example.com", "", "", "wild"},
	{"a.any.example.com", "", "", "wild"},
	{"one.deep.example.com", "", "", "deep"},
	{"deep.example.com", "", "", "wild"},
	{"example.com", "", "", "all"},
	{"other.test", "", "", "all"},
	{"", "", "", "all"},
}

// TestGatewayTLS has clients with and without certificates call the servers of a Gateway that end TLS.
func TestGatewayTLS(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			ca, untrusted := newAuthority(t), newAuthority(t)
			const otherID = "spiffe://cluster.local/ns/shop/sa/other"
			clients := map[string]tls.Certificate{
				"good": ca.leaf(t, 10, webID, ecKey(t), time.Hour), "other": ca.leaf(t, 11, otherID, ecKey(t), time.Hour),
				"revoked": ca.leaf(t, 12, webID, ecKey(t), time.Hour), "expired": ca.leaf(t, 13, webID, ecKey(t), -time.Minute),
				"untrusted": untrusted.leaf(t, 14, webID, ecKey(t), time.Hour),
			}
			rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
			fatalIf(t, err, "making a key")
			crl := ca.revocationList(t, big.NewInt(12))
			f := &fixture{ca: ca, version: version, secrets: []any{
				keyPair(t, "ecdsa", ca.leaf(t, 20, edgeID, ecKey(t), time.Hour)), keyPair(t, "rsa", ca.leaf(t, 21, edgeID, rsaKey, time.Hour)),
				keyPair(t, "revoking", ca.leaf(t, 22, edgeID, ecKey(t), time.Hour)),
				roots("ecdsa", ca.rootPEM(), ""), roots("revoking", ca.rootPEM(), crl), roots("untrusted", untrusted.rootPEM(), ""),
			}}
			spki, hash := sha256.Sum256(clients["good"].Leaf.RawSubjectPublicKeyInfo), sha256.Sum256(clients["good"].Leaf.Raw)
			port := envoytest.FreePorts(t, 1)[0]
			m := strings.NewReplacer("PORT", strconv.Itoa(port), "OTHERID", otherID,
				"SPKI", base64.StdEncoding.EncodeToString(spki[:]), "HASH", hex.EncodeToString(hash[:])).Replace(gatewayTLSMesh())
			e := f.start(t, snapshotOf(t, m, ""), edgeProxy())
			call := func(sni, client, settings string) (string, error) {
				cfg := &tls.Config{InsecureSkipVerify: true, ServerName: sni, NextProtos: []string{"http/1.1"}}
				if c, ok := clients[client]; ok { // also if the server does not trust who signed it
					cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }
				}
				return callTLS(t.Context(), at(serverIP, port), cfg, settings)
			}
			envoytest.Eventually(t, envoytest.Patience, func() error {
				_, err := call("simple.example.com", "", "")
				return err
			})
			for _, c := range gatewayTLSCases {
				got, err := call(c.sni, c.client, c.settings)
				if got != c.want {
					t.Errorf("%q, certificate %q, %q: reaches %q, %v; want %q", c.sni, c.client, c.settings, got, err, c.want)
				}
			}
			e.NoRejections(t)
		})
	}
}

// gatewayTLSMesh has a Gateway for each server: all share the port.
func gatewayTLSMesh() string {
	var out strings.Builder
	for name, s := range gatewayTLSServers() {
		_, _ = fmt.Fprintf(&out, `---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: %[1]s, namespace: edge}
spec:
  selector: {istio: ingressgateway}
  servers: [{bind: %[4]s, port: {number: PORT, name: https, protocol: HTTPS}, hosts: [%[2]q], tls: {%[3]s}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: edge}
spec: {hosts: [%[2]q], gateways: [%[1]s], http: [{directResponse: {status: 200, body: {string: %[1]s}}}]}
`, name, s.host, s.tls, serverIP)
	}
	return out.String()
}

// callTLS asks a server, and returns what it answers and, if the settings name a kind of key, that of its certificate.
func callTLS(ctx context.Context, address string, cfg *tls.Config, settings string) (string, error) {
	switch settings { // up to 1.2 a client's suites say which keys it knows
	case "1.1":
		cfg.MinVersion, cfg.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	case "1.3":
		cfg.MinVersion = tls.VersionTLS13
	case "1.2":
		cfg.MaxVersion = tls.VersionTLS12
	case "rsa":
		cfg.MaxVersion, cfg.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	case "ecdsa":
		cfg.MaxVersion, cfg.CipherSuites = tls.VersionTLS12, []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256}
	}
	conn, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(patience))
	host := cfg.ServerName
	if host == "" {
		host = "no.name.test"
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %w", resp.StatusCode, err)
	}
	out := string(body)
	if c, ok := conn.(*tls.Conn); ok && slices.Contains([]string{"rsa", "ecdsa"}, settings) {
		out += " " + strings.ToLower(c.ConnectionState().PeerCertificates[0].PublicKeyAlgorithm.String())
	}
	return out, nil
}
