package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/internal/nethost"
)

// page is the YAML of docs/first-two-vms.md, in its order: a mesh, capture on both hosts, a canary, a
// policy.
func page(t *testing.T, one, two string) []string {
	t.Helper()
	b, err := os.ReadFile("../../../docs/first-two-vms.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, _, _ := strings.Cut(string(b), "\n## The same in five commands\n")
	names := strings.NewReplacer("10.0.0.1", one, "10.0.0.2", two, "[fairlead-agent]", fmt.Sprintf("[%d]", proxyUser), "[web]", fmt.Sprintf("[%d]", appUser))
	var out []string
	for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(steps, -1) {
		if !strings.HasPrefix(m[1], "token-file:") { // the agent's settings are flags here
			out = append(out, names.Replace(m[1]))
		}
	}
	if len(out) != 5 {
		t.Fatalf("the page has %d files, and this test knows 5", len(out))
	}
	return out
}

// vm is one of the two hosts of the page.
type vm struct {
	*nethost.Host
	name, ip string
	h        *host
}

// start starts the agent of a host, and captures.
func (v *vm) start(workload, settings string) {
	t := v.h.t
	t.Helper()
	dir := filepath.Join(filepath.Dir(v.h.RunDir(v.name)), v.name+"-capture")
	token, file := dir+".token", dir+".yaml"
	for path, content := range map[string]string{token: v.h.Token("--host", v.name, "--workload", workload), file: settings} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(v.h.StateDir(v.name)), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{v.h.StateDir(v.name), v.h.RunDir(v.name)} {
		if err := os.MkdirAll(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{v.h.StateDir(v.name), v.h.RunDir(v.name), token} {
		if err := os.Chown(path, proxyUser, proxyUser); err != nil {
			t.Fatal(err)
		}
	}
	fairlead, _ := v.h.Binaries()
	v.h.in(v.Host, v.name, "setpriv", "--reuid", strconv.Itoa(proxyUser), "--regid", strconv.Itoa(proxyUser), "--clear-groups", "--inh-caps=-all", fairlead,
		"agent", "--address", v.ip, "--envoy", envoytest.Binary(t), "--state-dir", v.h.StateDir(v.name), "--run-dir", v.h.RunDir(v.name),
		"--capture", "--token-file", token, "--drain-time", "1s")
	v.h.AwaitLive(v.name)
	for _, args := range [][]string{
		{"apply", "--capture-file", file, "--capture-run-dir", dir, "--capture-dir", dir, "--confirm-within", "1h"}, {"confirm", "--capture-dir", dir},
	} {
		out, err := exec.CommandContext(t.Context(), "ip", append([]string{"netns", "exec", v.Name, fairlead, "capture"}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %q: %v: %s", v.name, args, err, out)
		}
	}
}

// TestFirstTwoHosts follows docs/first-two-vms.md, with the files of the page: unmodified programs, by
// name, by mTLS, with a canary and a policy.
func TestFirstTwoHosts(t *testing.T) {
	one, two := nethost.New(t), nethost.New(t)
	t.Parallel()
	h := &host{Mesh: meshtest.New(t, "", nil), Host: one, t: t, peer: two, net: 100 + nets.Add(1)}
	nethost.Link(one, two, int(h.net))
	for _, dir := range []string{filepath.Dir(h.Dir), h.Dir, filepath.Dir(h.RunDir("web"))} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	web, api := &vm{one, "web-1", h.ip(1), h}, &vm{two, "api-1", h.ip(2), h}
	files := page(t, web.ip, api.ip)
	h.Write("lab.yaml", files[0])
	fairlead, app := h.Binaries()
	for version, port := range map[string]int{"api-v1": 8080, "api-v2": 8081} {
		h.in(two, version, app, "--name", version, "--listen", fmt.Sprintf(":%d", port))
	}
	h.Server = h.in(one, "server", fairlead, "server", "--config-dir", h.ConfigDir, "--state-dir", h.StateDir("server"), "--run-dir", h.RunDir("server"),
		"--xds-address", ":15012", "--advertise", web.ip+":15012", "--http-address", "127.0.0.1:15014")
	h.Server.Eventually(envoytest.Patience, func() error {
		_, err := h.CLI("host", "list", "--run-dir", h.RunDir("server"))
		return err
	})
	web.start("lab/web", files[1])
	api.start("lab/api", files[2])

	// /etc/hosts of the test's own machine stays as it is: the test connects to the address of the line.
	lines, err := h.CLI("addresses", "--etc-hosts", "virtual", "--run-dir", h.RunDir("server"))
	if err != nil {
		t.Fatal(err)
	}
	at := regexp.MustCompile(`(?m)^(240\S+) api\.lab$`).FindStringSubmatch(lines)
	if at == nil {
		t.Fatalf("api.lab has no address:\n%s", lines)
	}
	ask := func(uid int, path string, header http.Header) (answer string, err error) {
		var conn net.Conn
		one.As(uid, func() { conn, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", net.JoinHostPort(at[1], "80")) })
		if err != nil {
			return "", err
		}
		c := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{
			DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		}}
		return get(t.Context(), c, "http://api.lab"+path, header)
	}
	h.Server.Eventually(envoytest.Patience, func() error {
		got, err := ask(appUser, "/", nil)
		if err == nil && !strings.Contains(got, "spiffe://cluster.local/ns/lab/sa/web") {
			err = errors.New("the caller is not named: " + got)
		}
		return err
	})
	if got, err := ask(otherUser, "/", nil); err == nil {
		t.Errorf("a user who is not declared is answered: %s", got)
	}
	if got := two.Get(otherUser, net.JoinHostPort(api.ip, "8080")); got != "" && !strings.HasPrefix(got, "error") {
		t.Logf("from the host itself, api answers directly: %q", got)
	}
	if got := one.Get(otherUser, net.JoinHostPort(api.ip, "8080")); !strings.HasPrefix(got, "error") && got != "refused" {
		t.Errorf("a plaintext call is answered: %q", got)
	}

	h.Write("canary.yaml", files[3])
	h.Server.Eventually(envoytest.Patience, func() error {
		for range 10 {
			got, err := ask(appUser, "/", http.Header{"X-Canary": {"1"}})
			if err == nil && !strings.Contains(got, "api-v2") {
				err = errors.New("with the header, another version answers: " + got)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	versions := map[bool]int{}
	for range 200 {
		got, err := ask(appUser, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		versions[strings.Contains(got, "api-v2")]++
	}
	if n := versions[true]; n < 2 || n > 60 { // 20 are expected; each bound is wrong once in 10^6 runs
		t.Errorf("of 200 calls %d are answered by the new version", n)
	}

	h.Write("policy.yaml", files[4])
	h.Server.Eventually(envoytest.Patience, func() error {
		if got, err := ask(appUser, "/admin", nil); err == nil || !strings.Contains(err.Error(), "403") {
			return fmt.Errorf("/admin: %s, %w", got, err)
		}
		_, err := ask(appUser, "/", nil)
		return err
	})
}

func get(ctx context.Context, client *http.Client, address string, header http.Header) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return "", err
	}
	if header != nil {
		req.Header = header
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}
