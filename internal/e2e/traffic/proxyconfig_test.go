package traffic

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

const proxyConfigRoutes = `
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: versions, namespace: shop}
spec:
  host: echo.shop.internal
  subsets:
  - {name: v1, labels: {app: echo}}
  - {name: v2, labels: {version: v2}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: echo, namespace: shop}
spec:
  hosts: [echo.shop.internal]
  http:
  - match: [{uri: {prefix: /old}, headers: {x-canary: {exact: "yes"}}}]
    redirect: {authority: new.example.com}
  - timeout: 7s
    route:
    - {destination: {host: echo.shop.internal, subset: v1}, weight: 90}
    - {destination: {host: echo.shop.internal, subset: v2}, weight: 10}
`

// TestProxyConfigOfARealEnvoy asks for every type that the command completes, in every format:
// of the server, of the host's Envoy, and of a file. It finds what there is, and no private key.
func TestProxyConfigOfARealEnvoy(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.Write("routes.yaml", proxyConfigRoutes)
	p.StartServer()
	p.startHosts()
	runDir := func(name string) string { return p.RunDir(name) }
	cli := func(args ...string) (string, error) {
		return p.CLI(append([]string{"proxy-config"}, args...)...)
	}
	dump, err := cli("all", "--agent-run-dir", runDir("client"), "-o", "dump")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dump.json")
	if err := os.WriteFile(file, []byte(dump), 0o600); err != nil {
		t.Fatal(err)
	}
	listed, err := p.CLI("__completeNoDesc", "proxy-config", "")
	if err != nil {
		t.Fatal(err)
	}
	listed, _, _ = strings.Cut(listed, ":")
	types := strings.Fields(listed)
	if len(types) < 8 {
		t.Fatalf("types %q", types)
	}
	sources := map[string][]string{
		"server": {"client", "--run-dir", runDir("server")}, "agent": {"--agent-run-dir", runDir("client")}, "file": {"-f", file},
	}
	wants := map[string]string{ // what the table has of each source that has the type
		"cluster": "echo.shop.internal 9080 v1 outbound", "listener": "127.", "route": "outbound|9080|v1|echo.shop.internal 90 7s echo.shop", "virtual-host": "", "extension": "", "proxyconfig": "", "name": "",
		"endpoint": "9080 HEALTHY", "secret": "ROOTCA CA ACTIVE true", "bootstrap": "node id sidecar~", "log": "admin", "all": "listener",
	}
	lacks := map[string]string{"server secret": "", "server bootstrap": "", "server log": "", "file log": ""}
	for _, typ := range types {
		want, known := wants[typ]
		if !known {
			t.Errorf("nothing is expected of %s", typ)
		}
		for source, from := range sources {
			for _, format := range []string{"short", "json", "yaml"} {
				out, err := cli(append([]string{typ, "-o", format}, from...)...)
				if _, lacking := lacks[source+" "+typ]; lacking {
					if err == nil {
						t.Errorf("%s of %s: %s", typ, source, out)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s of %s: %v", typ, source, err)
					continue
				}
				noKey(t, typ+" of "+source+" as "+format, out)
				if err := parses(format, out); err != nil {
					t.Errorf("%s of %s as %s: %v\n%s", typ, source, format, err, out)
				}
				if format == "short" && !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
					t.Errorf("%s of %s lacks %q:\n%s", typ, source, want, out)
				}
			}
		}
	}
	out, err := cli("endpoints", "--agent-run-dir", runDir("client"), "--fqdn", "echo.shop.internal", "--port", "9080")
	if rows := strings.Count(out, "\n") - 1; err != nil || rows < 1 || strings.Count(out, " OK ") != rows {
		t.Errorf("endpoints by Envoy's outlier detection: %v\n%s", err, out)
	}
	out, err = cli("clusters", "client", "--run-dir", runDir("server"), "--subset", "v1", "--port", "9080")
	if err != nil || !strings.Contains(out, "echo.shop,versions.shop") && !strings.Contains(out, "versions.shop,echo.shop") {
		t.Errorf("the DestinationRules of a cluster: %v\n%s", err, out)
	}
	for _, typ := range []string{"secrets", "bootstrap"} {
		if _, err := cli(typ, "client", "--run-dir", runDir("server")); err == nil || !strings.Contains(err.Error(), "--agent-run-dir") {
			t.Errorf("%s of the server: %v", typ, err)
		}
	}
}

// noKey fails if a private key is in a text, as it is or encoded.
func noKey(t *testing.T, what, text string) {
	t.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte("-----BEGIN EC PRIVATE KEY"))[:24]
	for _, key := range []string{"PRIVATE KEY", encoded, base64.StdEncoding.EncodeToString([]byte("-----BEGIN PRIVATE KEY"))[:24], base64.StdEncoding.EncodeToString([]byte("-----BEGIN RSA PRIVATE KEY"))[:24]} {
		if strings.Contains(text, key) {
			t.Errorf("%s has a private key", what)
		}
	}
}

// parses tells why an output has not the form that was asked for.
func parses(format, out string) error {
	var list []map[string]any
	switch format {
	case "json":
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
	case "yaml":
		if err := yaml.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		if strings.HasPrefix(strings.TrimSpace(out), "[{") {
			return errors.New("it is JSON")
		}
	default:
		return nil
	}
	for _, e := range list {
		if e["name"] == "" || e["type"] == "" {
			return fmt.Errorf("an entry without name or type: %v", e)
		}
	}
	return nil
}
