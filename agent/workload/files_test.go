package workload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// pemFiles writes a certificate and its key.
func pemFiles(tb testing.TB, serial int64, certPath, keyPath string) {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	cert := sign(tb, tmpl, tmpl, key.Public(), key)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatal(err)
	}
	write(tb, certPath, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	if keyPath != "" {
		write(tb, keyPath, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})))
	}
}

func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// fileServer serves files, without a socket.
func fileServer(tb testing.TB) (*Server, string) {
	tb.Helper()
	s := start(tb, uint32(os.Geteuid()))
	dir := tb.TempDir()
	s.c.Private = []string{filepath.Join(dir, "state")}
	if err := os.Mkdir(s.c.Private[0], 0o700); err != nil {
		tb.Fatal(err)
	}
	return s, dir
}

// version is that of a secret, with why it cannot be renewed.
func (s *Server) versionOf(name string) (string, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	switch {
	case f == nil:
		return "", "not in use"
	case f.now == nil:
		return "", f.held.err.Error()
	case f.held.err != nil:
		return f.now.version, f.held.err.Error()
	default:
		return f.now.version, ""
	}
}

// TestFilesThatAreServed: what a configuration names is read with the rights of Envoy, but
// never what is the agent's own, and nothing that is no certificate.
func TestFilesThatAreServed(t *testing.T) {
	t.Parallel()
	s, dir := fileServer(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	pemFiles(t, 1, in("a.pem"), in("a.key"))
	pemFiles(t, 2, in("b.pem"), in("b.key"))
	pemFiles(t, 3, in("state/own.pem"), in("state/own.key"))
	write(t, in("text"), "root:x:0:0\n")
	write(t, in("large"), strings.Repeat("#\n", maxFile))
	for link, to := range map[string]string{"link.pem": "a.pem", "own.pem": "state/own.pem", "dir": "state"} {
		if err := os.Symlink(to, in(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(in("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.c.SystemRootFiles = []string{in("absent"), in("text"), in("b.pem")}
	for name, problem := range map[string]string{
		"file-root:" + in("a.pem"):                     "",
		"file-root:" + in("link.pem"):                  "",
		"file-cert:" + in("a.pem") + "~" + in("a.key"): "",
		SystemRoots:                                                "",
		"file-root:" + in("absent"):                                "no such file",
		"file-root:" + in("text"):                                  "no certificate",
		"file-root:" + in("a.key"):                                 "no certificate",
		"file-root:" + in("large"):                                 "more than",
		"file-root:" + in("pipe"):                                  "regular",
		"file-root:/dev/zero":                                      "regular",
		"file-root:" + dir:                                         "regular",
		"file-root:a.pem":                                          "absolute",
		"file-root:" + in("own.pem"):                               "own directory",
		"file-root:" + in("dir/own.pem"):                           "own directory",
		"file-root:" + in("state/../state/own.pem"):                "own directory",
		"file-cert:" + in("own.pem") + "~" + in("state/own.key"):   "own directory",
		"file-cert:" + in("a.pem") + "~" + in("b.key"):             "belong together",
		"file-cert:" + in("a.pem"):                                 "CERTIFICATE~KEY",
		"file-cert:" + in("a.pem") + "~" + in("a.key") + "~" + dir: "CERTIFICATE~KEY",
	} {
		if err := s.useFile(name); err != nil {
			t.Fatal(err)
		}
		switch version, got := s.versionOf(name); {
		case problem == "" && (version == "" || got != ""):
			t.Errorf("%s is not served: %s", name, got)
		case problem != "" && (version != "" || !strings.Contains(got, problem)):
			t.Errorf("%s: version %q, problem %q, want %q", name, version, got, problem)
		}
	}
	problems := 0
	for _, c := range s.Credentials() {
		if c.State != credential.Ready {
			problems++
		}
	}
	if problems != 15 {
		t.Errorf("%d problems are in the status", problems)
	}
}

// TestFilesRotate: new content is served once certificate and key fit; what is broken or gone
// leaves the last good content in force.
func TestFilesRotate(t *testing.T) {
	t.Parallel()
	s, dir := fileServer(t)
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "c.key")
	pemFiles(t, 1, cert, key)
	name := "file-cert:" + cert + "~" + key
	if err := s.useFile(name); err != nil {
		t.Fatal(err)
	}
	one, problem := s.versionOf(name)
	if one == "" {
		t.Fatal(problem)
	}
	pemFiles(t, 2, cert, "")
	s.refreshFiles()
	if v, problem := s.versionOf(name); v != one || problem == "" {
		t.Errorf("half of a rotation: version %q (before: %q), problem %q", v, one, problem)
	}
	pemFiles(t, 3, cert, key)
	s.refreshFiles()
	two, problem := s.versionOf(name)
	if two == one || problem != "" {
		t.Errorf("after the rotation: version %q (before: %q), problem %q", two, one, problem)
	}
	if err := os.Remove(cert); err != nil {
		t.Fatal(err)
	}
	s.refreshFiles()
	if v, problem := s.versionOf(name); v != two || problem == "" {
		t.Errorf("without the file: version %q (before: %q), problem %q", v, two, problem)
	}
}

// TestFilesAreForgotten: a secret is read as long as some stream wants it, and their number is
// bounded.
func TestFilesAreForgotten(t *testing.T) {
	t.Parallel()
	s, dir := fileServer(t)
	name := func(i int) string { return fmt.Sprintf("file-root:%s/%d.pem", dir, i) }
	pemFiles(t, 1, filepath.Join(dir, "0.pem"), "")
	c := client(t, s, testToken)
	stream, err := c.DeltaSecrets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesSubscribe: []string{name(0), name(1)}}); err != nil {
		t.Fatal(err)
	}
	if r, err := stream.Recv(); err != nil || len(r.GetResources()) != 1 || r.GetResources()[0].GetName() != name(0) {
		t.Fatalf("got %v, %v", r, err)
	}
	if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{name(0)}}); err != nil {
		t.Fatal(err)
	}
	count := func(want int) {
		t.Helper()
		envoytest.Eventually(t, deadline, func() error {
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.files) != want {
				return fmt.Errorf("%d secrets of files, want %d", len(s.files), want)
			}
			return nil
		})
	}
	count(1)
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	count(0)
	for i := range maxFiles {
		if err := s.useFile(name(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.useFile(name(maxFiles)); err == nil {
		t.Error("there is no limit")
	}
	if err := s.useFile(name(0)); err != nil {
		t.Errorf("a secret that is there already: %v", err)
	}
}
