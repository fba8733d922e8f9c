package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// folderCA issues certificates into folders.
type folderCA struct {
	*authority
	dir    string
	serial int64
}

func newFolderCA(tb testing.TB, dir string) *folderCA {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "folders"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	return &folderCA{authority: &authority{key: key, cert: sign(tb, tmpl, tmpl, key.Public(), key)}, dir: dir, serial: 1}
}

// issue makes a certificate for a name, in PEM with its key.
func (a *folderCA) issue(tb testing.TB, name string, until time.Time) (serial *big.Int, chain, key string) {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	a.serial++
	cert := sign(tb, &x509.Certificate{
		SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
	}, a.cert, k.Public(), a.key)
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		tb.Fatal(err)
	}
	return cert.SerialNumber, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// put writes a certificate for a name into the folder of that name.
func (a *folderCA) put(tb testing.TB, folder string, until time.Time) *big.Int {
	tb.Helper()
	serial, chain, key := a.issue(tb, folder+".test", until)
	a.write(tb, folder, "tls.crt", chain)
	a.write(tb, folder, "tls.key", key)
	return serial
}

func (a *folderCA) write(tb testing.TB, folder, file, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Join(a.dir, folder), 0o750); err != nil {
		tb.Fatal(err)
	}
	path := filepath.Join(a.dir, folder, file)
	write(tb, path+".new", text)
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatal(err)
	}
}

func (a *folderCA) rootPEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// revoke is a list that revokes serial numbers.
func (a *folderCA) revoke(tb testing.TB, serials ...*big.Int) string {
	tb.Helper()
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now().Add(-time.Hour), NextUpdate: time.Now().Add(time.Hour)}
	for _, s := range serials {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: s, RevocationTime: list.ThisUpdate})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, a.cert, a.key)
	if err != nil {
		tb.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

// credentialServer serves credentials of a new directory.
func credentialServer(tb testing.TB) (*Server, *folderCA) {
	tb.Helper()
	ca := newFolderCA(tb, tb.TempDir())
	return startWith(tb, uint32(os.Geteuid()), func(c *Config) { c.CredentialsDir = ca.dir }), ca
}

// stands is how a credential stands, and the version that Envoy gets.
func (s *Server) stands(name string) (Credential, string) {
	s.refreshCredential(credential.Prefix + name)
	version := ""
	s.mu.Lock()
	if f := s.files[credential.Prefix+name]; f.now != nil {
		version = f.now.version
	}
	s.mu.Unlock()
	for _, c := range s.Credentials() {
		if c.Name == name {
			return c, version
		}
	}
	return Credential{}, ""
}

// TestCredentialsRotate: a new certificate is served once it is whole and valid. Whatever is wrong
// with it, the last good one stays in use and the status says why.
func TestCredentialsRotate(t *testing.T) {
	t.Parallel()
	s, ca := credentialServer(t)
	later := time.Now().Add(time.Hour)
	if err := s.useFile(credential.Prefix + "a"); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want credential.State, served bool) (version string) {
		t.Helper()
		is, version := s.stands("a")
		if is.State != want || is.Served != served || (is.Reason == "") != (want == credential.Ready) || served != (version != "") {
			t.Errorf("%s: %+v, version %q; want %s", what, is, version, want)
		}
		if served && want != credential.Ready && !strings.Contains(is.Reason, "stays in use") {
			t.Errorf("%s: the reason does not say what is served: %s", what, is.Reason)
		}
		return version
	}
	same := func(what, version, want string) {
		t.Helper()
		if version != want {
			t.Errorf("%s: version %q, want %q", what, version, want)
		}
	}
	check("nothing", credential.Missing, false)
	ca.put(t, "a", later)
	one := check("whole", credential.Ready, true)
	_, chain, key := ca.issue(t, "a.test", later)
	ca.write(t, "a", "tls.crt", chain)
	same("half written", check("half written", credential.Mismatch, true), one)
	ca.write(t, "a", "tls.key", key[:100])
	same("a key that is not complete", check("a key that is not complete", credential.Broken, true), one)
	ca.write(t, "a", "tls.key", key)
	two := check("rotated", credential.Ready, true)
	if two == one {
		t.Error("the new certificate is not served")
	}
	ca.put(t, "a", time.Now().Add(-time.Minute))
	same("expired", check("expired", credential.Expired, true), two)
	if err := os.RemoveAll(filepath.Join(ca.dir, "a")); err != nil {
		t.Fatal(err)
	}
	same("removed", check("removed", credential.Missing, true), two)
	ca.put(t, "a", later)
	if three := check("again", credential.Ready, true); three == two {
		t.Error("the third certificate is not served")
	}
}

// TestExpiredCredentialIsServed: as in Istio, clients then say what is wrong.
func TestExpiredCredentialIsServed(t *testing.T) {
	t.Parallel()
	s, ca := credentialServer(t)
	ca.put(t, "a", time.Now().Add(-time.Minute))
	if err := s.useFile(credential.Prefix + "a"); err != nil {
		t.Fatal(err)
	}
	if is, version := s.stands("a"); is.State != credential.Expired || version == "" {
		t.Errorf("%+v, version %q", is, version)
	}
}

// TestAbsenceIsSaid: an Envoy is told that there is no such credential, so that it waits for none;
// once the folder is there it gets it, by an event and not only by the next look.
func TestAbsenceIsSaid(t *testing.T) {
	t.Parallel()
	s, ca := credentialServer(t)
	c := client(t, s, testToken)
	for _, name := range []string{"kubernetes://a", "kubernetes://a-cacert", "kubernetes://ns/a", "invalid://"} {
		stream, err := c.DeltaSecrets(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{name}}); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil || len(r.GetResources()) != 0 || len(r.GetRemovedResources()) != 1 || r.GetRemovedResources()[0] != name {
			t.Fatalf("%s: got %v, %v", name, r, err)
		}
		if name != "kubernetes://a" {
			continue
		}
		ca.put(t, "a", time.Now().Add(time.Hour))
		began := time.Now()
		if r, err = stream.Recv(); err != nil || len(r.GetResources()) != 1 {
			t.Fatalf("got %v, %v", r, err)
		}
		if took := time.Since(began); took >= fileInterval {
			t.Errorf("it took %s: no event was noticed", took)
		}
	}
	// The other variant cannot say it; an answer without secrets is an error to Envoy.
	stream, err := c.StreamSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"kubernetes://b"}}); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, deadline, func() error {
		for _, c := range s.Credentials() {
			if c.Name == "b" {
				return nil
			}
		}
		return errors.New("not asked for yet")
	})
	ca.put(t, "b", time.Now().Add(time.Hour))
	if r, err := stream.Recv(); err != nil || len(r.GetResources()) != 1 {
		t.Fatalf("got %v, %v", r, err)
	}
}

// TestCredentialsAreBounded: those of configurations that are too large are refused, and files
// besides are not.
func TestCredentialsAreBounded(t *testing.T) {
	t.Parallel()
	s, _ := credentialServer(t)
	for i := range maxCredentials {
		if err := s.useFile(fmt.Sprintf("kubernetes://c%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.useFile("kubernetes://another"); err == nil {
		t.Error("there is no limit")
	}
	if err := s.useFile("file-root:/absent"); err != nil {
		t.Error(err)
	}
}
