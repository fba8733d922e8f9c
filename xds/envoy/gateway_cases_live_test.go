package envoy_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// gatewayCase is a request or a connection to a gateway, and what has to become of it. The README beside
// the cases says what each field means.
type gatewayCase struct {
	Curl, OpenSSL, GRPC, TCP, HTTP3 string
	To, Via                         string
	Send                            string
	Claims                          map[string]any

	Status         int
	From           string
	Saw, Unseen    []string
	Headers, Lacks []string
	Body           string
	Fails          string
	AtLeast        time.Duration `yaml:"atLeast"`
	Share          map[string]int
	Mirrored       string
}

// TestGatewayCases asks real Envoys the cases of testdata/gateways: one Envoy a file.
func TestGatewayCases(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("testdata/gateways/*.txtar")
	fatalIf(t, err, "listing cases")
	if len(paths) == 0 {
		t.Fatal("there are no cases")
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		for _, version := range envoytest.Ends() {
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				envoytest.BinaryVersion(t, version) // or skip, before anything runs
				for _, program := range []string{"curl", "openssl"} {
					if _, err := exec.LookPath(program); err != nil {
						envoytest.Missing(t, "%v: install it", err)
					}
				}
				a, err := txtar.ParseFile(path)
				fatalIf(t, err, "reading %q", path)
				newGatewayRun(t, a, version).askAll(t, file(a, "cases.yaml"))
			})
		}
	}
}

// gatewayRun is a gateway's Envoy, with the services behind it and the clients' files.
type gatewayRun struct {
	envoy    *envoytest.Envoy
	ca       *authority
	dir      string                     // of the clients' keys
	ports    map[string]int             // by the address and port of a listener in the mesh, on serverIP
	services map[string]*gatewayService // by name
	log      string                     // lines that the access log must have
}

func newGatewayRun(t *testing.T, a *txtar.Archive, version string) *gatewayRun {
	t.Helper()
	g := &gatewayRun{ca: newAuthority(t), dir: t.TempDir(), ports: map[string]int{}, services: map[string]*gatewayService{}, log: file(a, "log.txt")}
	at := map[string]int{}
	for line := range strings.Lines(file(a, "services.txt")) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			t.Fatalf("services.txt: %q is not NAME KIND ADDRESS...", line)
		}
		s := newGatewayService(t, g.ca, fields[0], fields[1])
		g.services[s.name] = s
		for _, address := range fields[2:] {
			at[address] = s.port
		}
	}
	secrets, words := g.keys(t)
	f := &fixture{settings: serverSettings(t, a), ca: g.ca, version: version, secrets: secrets, rewire: func(node map[string]any) { g.rewire(t, node, at) }}
	replace := strings.NewReplacer(append(words, "$LOG", filepath.Join(g.dir, "access.log"), "$KEYS", g.ca.keySet(t))...).Replace
	pf := edgeProxy()
	if own := file(a, "proxy.yaml"); own != "" {
		fatalIf(t, yaml.Unmarshal([]byte(own), &pf), "reading proxy.yaml")
	}
	g.envoy = f.start(t, snapshotOf(t, replace(file(a, "mesh.yaml")), replace(file(a, "meshconfig.yaml"))), pf)
	for address, port := range g.ports {
		if strings.HasPrefix(address, udp) {
			continue // clients of QUIC ask again until it listens
		}
		envoytest.Eventually(t, envoytest.Patience, func() error {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort(serverIP, strconv.Itoa(port)))
			if err == nil {
				err = c.Close()
			}
			return err
		})
	}
	return g
}

// rewire has Envoy listen at free ports, and send to the services of the test, so that the mesh has the
// ports and addresses that it would have elsewhere.
func (g *gatewayRun) rewire(t *testing.T, node map[string]any, services map[string]int) {
	t.Helper()
	static := child(node, "staticResources")
	listeners := children(static, "listeners")
	free := envoytest.FreePorts(t, len(listeners))
	for i, l := range listeners {
		a := child(l, "address", "socketAddress")
		g.ports[addressOf(a)] = free[i]
		a["address"], a["portValue"] = serverIP, free[i]
		delete(l, "additionalAddresses")
	}
	for _, c := range children(static, "clusters") {
		for _, group := range children(child(c, "loadAssignment"), "endpoints") {
			for _, e := range children(group, "lbEndpoints") {
				a := child(e, "endpoint", "address", "socketAddress")
				port, ok := services[addressOf(a)]
				if !ok {
					t.Errorf("cluster %v sends to %s, which services.txt does not have", c["name"], addressOf(a))
				}
				a["address"], a["portValue"] = "127.0.0.1", port
			}
		}
	}
}

// udp begins the address of a listener over UDP.
const udp = "udp "

func addressOf(a map[string]any) string {
	address := fmt.Sprintf("%v:%v", a["address"], a["portValue"])
	if a["protocol"] == "UDP" {
		return udp + address
	}
	return address
}

func child(m map[string]any, path ...string) map[string]any {
	for _, name := range path {
		m, _ = m[name].(map[string]any)
	}
	return m
}

func children(m map[string]any, name string) []map[string]any {
	list, _ := m[name].([]any)
	var out []map[string]any
	for _, x := range list {
		if m, ok := x.(map[string]any); ok {
			out = append(out, m)
		}
	}
	return out
}

// keys makes the credentials of the gateway's host and the clients' certificates, and says which words of
// the mesh stand for what of them.
func (g *gatewayRun) keys(t *testing.T) (secrets []any, words []string) {
	t.Helper()
	untrusted := newAuthority(t)
	const otherID = "spiffe://cluster.local/ns/shop/sa/other"
	clients := map[string]tls.Certificate{
		"good": g.ca.leaf(t, 10, webID, ecKey(t), time.Hour), "other": g.ca.leaf(t, 11, otherID, ecKey(t), time.Hour),
		"revoked": g.ca.leaf(t, 12, webID, ecKey(t), time.Hour), "expired": g.ca.leaf(t, 13, webID, ecKey(t), -time.Minute),
		"untrusted": untrusted.leaf(t, 14, webID, ecKey(t), time.Hour),
	}
	for name, c := range clients {
		key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
		fatalIf(t, err, "writing a key")
		text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
		fatalIf(t, os.WriteFile(filepath.Join(g.dir, name+".pem"), text, 0o600), "writing keys")
	}
	fatalIf(t, os.WriteFile(filepath.Join(g.dir, "ca.pem"), []byte(g.ca.rootPEM()), 0o600), "writing roots")
	fatalIf(t, os.WriteFile(filepath.Join(g.dir, "empty.grpc"), make([]byte, 5), 0o600), "writing a message")
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	fatalIf(t, err, "making a key")
	secrets = []any{
		keyPair(t, "ecdsa", g.ca.leaf(t, 20, edgeID, ecKey(t), time.Hour)), keyPair(t, "rsa", g.ca.leaf(t, 21, edgeID, rsaKey, time.Hour)),
		keyPair(t, "revoking", g.ca.leaf(t, 22, edgeID, ecKey(t), time.Hour)), keyPair(t, "client", clients["good"]),
		roots("ecdsa", g.ca.rootPEM(), ""), roots("revoking", g.ca.rootPEM(), g.ca.revocationList(t, big.NewInt(12))), roots("untrusted", untrusted.rootPEM(), ""),
		roots("client", g.ca.rootPEM(), ""),
	}
	spki, hash := sha256.Sum256(clients["good"].Leaf.RawSubjectPublicKeyInfo), sha256.Sum256(clients["good"].Leaf.Raw)
	return secrets, []string{"$SPKI", base64.StdEncoding.EncodeToString(spki[:]), "$HASH", hex.EncodeToString(hash[:]), "$OTHER", otherID}
}

func (g *gatewayRun) askAll(t *testing.T, text string) {
	t.Helper()
	var cases []gatewayCase
	dec := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	dec.KnownFields(true)
	if err := dec.Decode(&cases); err != nil && !errors.Is(err, io.EOF) || len(cases) == 0 {
		t.Fatalf("cases.yaml has %d cases: %v", len(cases), err)
	}
	for i := range cases {
		c := &cases[i]
		start := time.Now()
		answer, err := g.ask(t, c)
		if problem := g.judge(t, c, answer, err); problem != nil {
			t.Errorf("case %d, %s: %v\n%s", i+1, c, problem, answer.text)
		}
		if took := time.Since(start); took < c.AtLeast {
			t.Errorf("case %d, %s: answered after %v, want at least %v", i+1, c, took, c.AtLeast)
		}
	}
	if g.log != "" {
		envoytest.Eventually(t, envoytest.Patience, func() error {
			content, err := os.ReadFile(filepath.Join(g.dir, "access.log"))
			have := strings.Split(string(content), "\n")
			for line := range strings.Lines(g.log) {
				if !slices.Contains(have, strings.TrimSpace(line)) {
					return fmt.Errorf("no line %q in the access log, %w:\n%s", line, err, content)
				}
			}
			return nil
		})
	}
	g.envoy.NoRejections(t)
}

func (c *gatewayCase) String() string {
	for kind, arguments := range map[string]string{"curl": c.Curl, "openssl": c.OpenSSL, "grpc": c.GRPC, "tcp": c.TCP, "http3": c.HTTP3} {
		if arguments != "" {
			return kind + " " + arguments + " " + c.Via
		}
	}
	return "nothing"
}

// judge says what of an answer is not as it has to be.
func (g *gatewayRun) judge(t *testing.T, c *gatewayCase, a gatewayAnswer, err error) error {
	t.Helper()
	if c.Fails != "" {
		return judgeFailure(c.Fails, err)
	}
	if err != nil {
		return err
	}
	if c.Share != nil {
		return judgeShares(c.Share, a.text)
	}
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if a.status != c.Status {
		wrong("status %d, want %d", a.status, c.Status)
	}
	if from := a.headers["x-from"]; from != c.From {
		wrong("from %q, want %q", from, c.From)
	}
	if !strings.Contains(a.body, c.Body) {
		wrong("the body has no %q", c.Body)
	}
	lines := strings.Split(a.body, "\n")
	for _, want := range c.Saw {
		if !slices.Contains(lines, want) {
			wrong("the service did not see %q", want)
		}
	}
	for _, name := range c.Unseen {
		if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, name+":") }) {
			wrong("the service saw %q", name)
		}
	}
	for _, want := range c.Headers {
		name, value, _ := strings.Cut(want, ": ")
		if have := a.headers[name]; have != value {
			wrong("header %q is %q, want %q", name, have, value)
		}
	}
	for _, name := range c.Lacks {
		if have, ok := a.headers[name]; ok {
			wrong("header %q is there: %q", name, have)
		}
	}
	if name, want, ok := strings.Cut(c.Mirrored, " "); ok {
		envoytest.Eventually(t, envoytest.Patience, func() error { return g.services[name].hasSeen(want) })
	}
	return errors.Join(problems...)
}

// judgeShares counts who answered: within 15 points of a hundred, which is more than five times the deviation
// of 200 requests, and exactly where all or none are wanted.
func judgeShares(want map[string]int, text string) error {
	all := strings.Count(text, "x-from: ")
	for name, percent := range want {
		have := strings.Count(text, "x-from: "+name+"\r\n") * 100 / max(all, 1)
		if (percent == 0 || percent == 100) && have != percent || have < percent-15 || have > percent+15 {
			return fmt.Errorf("%s answers %d %% of %d requests, want %d %%", name, have, all, percent)
		}
	}
	return nil
}
