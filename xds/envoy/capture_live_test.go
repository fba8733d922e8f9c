package envoy_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// inNamespace is set in the process that runs in a network namespace of its own: to a version of Envoy,
// with ipv6Only behind it for a host that has no IPv4 but 127.0.0.1.
const (
	inNamespace = "FAIRLEAD_TEST_IN_NAMESPACE"
	ipv6Only    = "-ipv6"
)

// speaksFirstWithin separates a server that is heard after the detection timeout of capture, 1 s,
// from one that is heard after that of other listeners, 15 s.
const speaksFirstWithin = 10 * time.Second

// capturedMesh is a host, 10.77.0.1 and fd77::1, with a server that speaks first, and services
// elsewhere, two of them at one port.
const capturedMesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: shop}
spec: {hosts: [web.shop.mesh], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}], endpoints: [{address: 10.77.0.2}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one, namespace: shop}
spec: {hosts: [one.shop.mesh], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 3306, name: tcp, protocol: TCP}], endpoints: [{address: 10.77.0.2}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: two, namespace: shop}
spec: {hosts: [two.shop.mesh], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 3306, name: tcp, protocol: TCP}], endpoints: [{address: 10.77.0.3}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: own, namespace: shop}
spec: {hosts: [own.shop.mesh], location: MESH_INTERNAL, resolution: STATIC, ports: [{number: 5000, name: tcp, protocol: TCP}], workloadSelector: {labels: {app: own}}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: own, namespace: shop}
spec: {address: 10.77.0.1, labels: {app: own}, serviceAccount: own}
`

// capturing redirects connections to allocated addresses, and to the port of the server, as
// rules of packet capture do.
const capturing = `table inet test {
  chain output {
    type nat hook output priority -105; policy accept;
    ip daddr 240.240.0.0/16 meta l4proto tcp redirect to :15001
    ip6 daddr 2001:2::/48 meta l4proto tcp redirect to :15001
    ip saddr 127.0.0.6 return
    ip6 saddr ::6 return
    ip daddr 10.77.0.1 tcp dport 5000 redirect to :15006
    ip6 daddr fd77::1 tcp dport 5000 redirect to :15006
  }
}
`

// TestCapturedPackets has a real Envoy, and the kernel redirect connections to it: by the
// allocated addresses of IPv4 and IPv6 each service is reached, and no other one of the same
// port. A plaintext client hears a server that speaks first. A host with IPv6 only is no exception:
// its listeners' first address is 0.0.0.0, and `::` is the other one.
func TestCapturedPackets(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs Envoys")
	}
	if version := os.Getenv(inNamespace); version != "" {
		runCaptured(t, version)
		return
	}
	versions := envoytest.Versions()
	for _, version := range append(versions, versions[0]+ipv6Only) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			child := exec.CommandContext(t.Context(), "unshare", "--net", os.Args[0], "-test.run=^TestCapturedPackets$", "-test.v")
			child.Env = append(os.Environ(), inNamespace+"="+version)
			out, err := child.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "--- PASS: TestCapturedPackets") {
				t.Fatalf("%v:\n%s", err, out)
			}
		})
	}
}

func must(t *testing.T, input, command string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command, args...)
	cmd.Stdin = strings.NewReader(input)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v: %s", command, args, err, out)
	}
}

// nft is the one of the tools, or that of the system.
func nft(t *testing.T) string {
	t.Helper()
	if found, err := filepath.Glob("../../.tools/nftables-*/nft"); err == nil && len(found) > 0 {
		return found[0]
	}
	path, err := exec.LookPath("nft")
	fatalIf(t, err, "looking for nft")
	return path
}

// says serves lines at an address: it speaks first.
func says(t *testing.T, address, line string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	fatalIf(t, err, "listening")
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, line+"\n")
			_ = c.Close()
		}
	}()
}

func runCaptured(t *testing.T, version string) {
	t.Helper()
	must(t, "", "ip", "link", "set", "lo", "up")
	version, six := strings.CutSuffix(version, ipv6Only)
	addresses, of := []string{"10.77.0.1/32", "10.77.0.2/32", "10.77.0.3/32", "fd77::1/128"}, strings.NewReplacer()
	if six {
		addresses, of = []string{"fd77::1/128", "fd77::2/128", "fd77::3/128"}, strings.NewReplacer("10.77.0.", "fd77::")
	}
	for _, a := range addresses {
		must(t, "", "ip", "address", "add", a, "dev", "lo", "nodad") // it can be bound at once
	}
	must(t, "", "ip", "address", "add", "::6/128", "dev", "lo", "preferred_lft", "0", "nodad")
	must(t, "", "ip", "route", "add", "240.240.0.0/16", "dev", "lo", "scope", "host") // as capture has it: a host may have 127.0.0.1 only
	must(t, "", "ip", "route", "add", "2001:2::/48", "dev", "lo")
	must(t, capturing, nft(t), "-f", "-")
	says(t, net.JoinHostPort(of.Replace("10.77.0.2"), "3306"), "one")
	says(t, net.JoinHostPort(of.Replace("10.77.0.3"), "3306"), "two")
	own := map[string]string{"[fd77::1]:5000": "own, IPv6"}
	if !six {
		own["10.77.0.1:5000"] = "own, IPv4"
	}
	for at, line := range own {
		says(t, at, line)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(of.Replace("10.77.0.2"), "8080"))
	fatalIf(t, err, "listening")
	web := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "web") })}
	t.Cleanup(func() { _ = web.Close() })
	go func() { _ = web.Serve(l) }()

	s := allocatedSnapshot(t, of.Replace(capturedMesh))
	p := proxyFile{Namespace: "shop", ServiceAccount: "own", IP: of.Replace("10.77.0.1"), Interception: "REDIRECT", Labels: map[string]string{"app": "own"}}.proxy()
	if !six {
		p.Addresses = append(p.Addresses, "fd77::1")
	}
	var boot map[string]any
	fatalIf(t, json.Unmarshal(bootstrap(t, buildAll(view.Build(s, p))), &boot), "reading own JSON")
	withoutSDS(boot)
	withSecrets(t, boot, newAuthority(t), proxyFile{Namespace: "shop", ServiceAccount: "own"})
	boot["admin"] = json.RawMessage(envoytest.AdminJSON)
	body, err := json.Marshal(boot)
	fatalIf(t, err, "marshaling bootstrap")
	e := envoytest.Start(t, envoytest.Config{Bootstrap: body, Version: version})

	for _, host := range []string{"web", "one", "two"} {
		for _, address := range allocatedTo(t, s, host) {
			envoytest.Eventually(t, envoytest.Patience, func() error {
				got, err := heard(t, address, host == "web")
				if err == nil && got != host {
					err = fmt.Errorf("at %s, an address of %s, %q answers", address, host, got)
				}
				return err
			})
		}
	}
	for address, want := range own {
		began := time.Now()
		got, err := heard(t, address, false)
		if err != nil || got != want || time.Since(began) > speaksFirstWithin {
			t.Errorf("at %s %q is heard after %s, %v", address, got, time.Since(began), err)
		}
	}
	e.NoRejections(t)
	if stats := e.Admin(t, "/stats?usedonly&filter=listener_manager.listener_create_failure"); strings.Contains(stats, "listener_create_failure") {
		t.Error(stats)
	}
}

// heard is what a client hears at an address: the first line, or the answer to a request.
func heard(t *testing.T, address string, web bool) (string, error) {
	t.Helper()
	if web {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: envoytest.Patience}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address, http.NoBody)
		if err != nil {
			return "", err
		}
		res, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		return string(body), err
	}
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(envoytest.Patience))
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// allocatedSnapshot is a mesh in which hosts have addresses from the server.
func allocatedSnapshot(t *testing.T, manifests string) *mesh.Snapshot {
	t.Helper()
	file, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte(manifests))
	refuse(t, faults)
	f := &mesh.Fragment{Source: "test"}
	for _, o := range file.Objects {
		f.Append(o.Fragment())
	}
	list := []*mesh.Fragment{f.Sorted()}
	return mesh.Merge(mesh.Input{Fallback: manifest.DefaultMeshConfig(), Fragments: list, Allocations: addresses.Of(addresses.Default(), list, nil)})
}

// allocatedTo are the addresses of a service with its port: one of each family.
func allocatedTo(t *testing.T, s *mesh.Snapshot, name string) []string {
	t.Helper()
	for _, svc := range s.Services {
		if svc.Name != name {
			continue
		}
		var out []string
		for _, a := range svc.Allocated {
			ip, err := netip.ParseAddr(a)
			fatalIf(t, err, "reading an address")
			out = append(out, netip.AddrPortFrom(ip, uint16(svc.Ports[0].Number)).String())
		}
		if len(out) == 2 {
			return out
		}
	}
	fatalIf(t, errors.New("no such service"), "looking for addresses of %s", name)
	return nil
}
