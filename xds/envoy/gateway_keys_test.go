package envoy_test

import (
	"bufio"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"testing"
	"time"
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

// keySet is a set of keys (JWKS) with that of the authority, and token signs claims with it.
func (a *authority) keySet(tb testing.TB) string {
	tb.Helper()
	point, err := a.key.PublicKey.Bytes()
	fatalIf(tb, err, "encoding a key")
	b64 := base64.RawURLEncoding.EncodeToString
	return fmt.Sprintf(`{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"k","x":%q,"y":%q}]}`, b64(point[1:33]), b64(point[33:]))
}

func (a *authority) token(tb testing.TB, claims map[string]any) string {
	tb.Helper()
	body, err := json.Marshal(claims)
	fatalIf(tb, err, "encoding claims")
	b64 := base64.RawURLEncoding.EncodeToString
	signed := b64([]byte(`{"alg":"ES256","kid":"k","typ":"JWT"}`)) + "." + b64(body)
	sum := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, a.key, sum[:])
	fatalIf(tb, err, "signing a token")
	return signed + "." + b64(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))
}

// callTLS asks a server, and returns what it answers.
func callTLS(ctx context.Context, address string, cfg *tls.Config) (string, error) {
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
	return string(body), nil
}
