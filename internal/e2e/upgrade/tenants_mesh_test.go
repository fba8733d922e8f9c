package upgrade

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// The addresses are those of the record, as in [xdsAddress].
const (
	tenantsBlock = "127.250.8."
	tenantsKeys  = "teams/mesh"
	tenantsData  = "testdata/tenants"
)

// tenantHosts are the hosts of the record, by their addresses: a shared gateway, a client that is no tenant's, and
// one of a tenant.
func tenantHosts() map[string]string {
	return map[string]string{"edge": "10", "client": "11", "customer": "12"}
}

// call is a request at a host, and the endpoint that answers it: the last number of its address.
type call struct{ from, url, answer string }

// tenants is the recorded mesh of tenants.
type tenants struct {
	*meshtest.Mesh
	t        *testing.T
	fairlead string
	consul   *consultest.Agent
	http     *http.Client
	agents   []*meshtest.Process
}

func newTenants(t *testing.T) *tenants {
	t.Helper()
	consultest.Binary(t)
	m := meshtest.New(t, "", nil)
	fairlead, _ := m.Binaries()
	s := &tenants{Mesh: m, t: t, fairlead: fairlead, consul: consultest.Start(t, consultest.Options{})}
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	s.http = &http.Client{Timeout: envoytest.Attempt, Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
	for n := 21; n <= 33; n++ {
		s.endpoint(strconv.Itoa(n))
	}
	return s
}

// endpoint answers with its number: by HTTP, or at the port of TCP as soon as it is connected.
func (s *tenants) endpoint(number string) {
	s.t.Helper()
	web, err := net.Listen("tcp", net.JoinHostPort(tenantsBlock+number, "9080"))
	if err != nil {
		s.t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: envoytest.Patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, number) })}
	go func() { _ = server.Serve(web) }()
	s.t.Cleanup(func() { _ = server.Close() })
	plain, err := net.Listen("tcp", net.JoinHostPort(tenantsBlock+number, "7000"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = plain.Close() })
	go func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, number)
			_ = c.Close()
		}
	}()
}

// ask makes a call. That another endpoint answers is an error.
func (s *tenants) ask(ctx context.Context, c call) error {
	u, err := url.Parse(c.url)
	if err != nil {
		return err
	}
	at := net.JoinHostPort(tenantsBlock+tenantHosts()[c.from], u.Port())
	var answer string
	if u.Scheme == "tcp" {
		answer, err = s.connect(ctx, at)
	} else {
		answer, err = s.get(ctx, u, at)
	}
	if err == nil && answer != c.answer {
		err = fmt.Errorf("%s answers, and not %s", answer, c.answer)
	}
	if err != nil {
		return fmt.Errorf("%s at %s: %w", c.url, c.from, err)
	}
	return nil
}

func (s *tenants) get(ctx context.Context, u *url.URL, at string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+u.Path, http.NoBody)
	if err != nil {
		return "", err
	}
	req.Host = u.Hostname()
	res, err := s.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", res.StatusCode, body)
	}
	return string(body), err
}

func (s *tenants) connect(ctx context.Context, at string) (string, error) {
	d := net.Dialer{Timeout: envoytest.Attempt}
	c, err := d.DialContext(ctx, "tcp", at)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(envoytest.Attempt)); err != nil {
		return "", err
	}
	answer := make([]byte, 2)
	_, err = io.ReadFull(bufio.NewReader(c), answer)
	return string(answer), err
}

// put puts a manifest of the record into its source.
func (s *tenants) put(file string) {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(tenantsData, "config", file))
	if err != nil {
		s.t.Fatal(err)
	}
	if name, is := strings.CutPrefix(file, "keys/"); is {
		if _, err := s.consul.Client().KV().Put(&api.KVPair{Key: tenantsKeys + "/" + name, Value: content}, nil); err != nil {
			s.t.Fatal(err)
		}
		return
	}
	to, next := filepath.Join(s.Dir, file), filepath.Join(s.Dir, "new")
	if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o750), os.WriteFile(next, content, 0o600), os.Rename(next, to)); err != nil {
		s.t.Fatal(err)
	}
}

// putAll puts all manifests.
func (s *tenants) putAll() {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(tenantsData, "config/*/*.yaml"))
	if err != nil || len(files) == 0 {
		s.t.Fatal(files, err)
	}
	for _, f := range files {
		s.put(filepath.Join(filepath.Base(filepath.Dir(f)), filepath.Base(f)))
	}
}

// copyState puts the state of the record where the processes have theirs.
func (s *tenants) copyState() {
	s.t.Helper()
	for _, name := range append(slices.Collect(maps.Keys(tenantHosts())), "server") {
		if err := os.CopyFS(s.StateDir(name), os.DirFS(filepath.Join(tenantsData, name))); err != nil {
			s.t.Fatal(err)
		}
		ownFiles(s.t, s.StateDir(name))
	}
}

func (s *tenants) startServer(fairlead string, more ...string) {
	s.t.Helper()
	argv := []string{
		fairlead, "server", "--config-dir", filepath.Join(s.Dir, "mesh"), "--state-dir", s.StateDir("server"), "--run-dir", s.RunDir("server"),
		"--xds-address", tenantsBlock + "1:15012", "--http-address", tenantsBlock + "1:15014",
		"--consul-address", s.consul.Address(), "--consul-kv-prefix", tenantsKeys + "=orders,stock", "--allow-local-addresses", "consul-kv",
	}
	for dir, ns := range map[string]string{"shop": "shop", "shop-more": "shop", "pay": "pay"} {
		path := filepath.Join(s.Dir, dir)
		argv = append(argv, "--config-dir", path+"="+ns, "--allow-local-addresses", path)
	}
	s.Server = s.Start("server", append(argv, more...)...)
}

// startAgents starts the agents of all hosts; with tokens, those below a directory, if they have not joined.
func (s *tenants) startAgents(fairlead, tokens string) {
	s.t.Helper()
	for name, number := range tenantHosts() {
		argv := []string{
			fairlead, "agent", "--envoy", envoytest.Binary(s.t), "--address", tenantsBlock + number, "--state-dir", s.StateDir(name), "--run-dir", s.RunDir(name),
			"--drain-time", "1s",
		}
		if tokens != "" {
			argv = append(argv, "--token-file", filepath.Join(tokens, name+".token"))
		}
		s.agents = append(s.agents, s.Start(name, argv...))
	}
}

// status is what proxy-status prints; that something needs a person is no error.
func (s *tenants) status() string {
	s.t.Helper()
	out, err := s.CLI("proxy-status", "--run-dir", s.RunDir("server"))
	if out == "" {
		s.t.Fatal(err)
	}
	return out
}

// record makes testdata of what a release leaves; testdata/tenants/README.md has how to call it. Who comes first
// has a name, also a port.
func (s *tenants) record(release string) {
	s.t.Helper()
	for _, f := range []string{"mesh/platform.yaml", "shop/customer.yaml", "shop/first.yaml", "pay/first.yaml"} {
		s.put(f)
	}
	if err := os.MkdirAll(filepath.Join(s.Dir, "shop-more"), 0o750); err != nil {
		s.t.Fatal(err)
	}
	s.startServer(release, "--certificate-ttl", "79000h")
	s.recorded("range-owners.json", ":7000")
	s.putAll()
	workloads := map[string][]string{"edge": {"istio-system/edge", "--type", "router"}, "client": {"platform/client"}, "customer": {"shop/customer"}}
	for host, w := range workloads {
		token := s.Token(append([]string{"--host", host, "--workload"}, w...)...)
		if err := os.WriteFile(filepath.Join(s.Dir, host+".token"), []byte(token), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	s.startAgents(release, s.Dir)
	s.AwaitLive(slices.Collect(maps.Keys(workloads))...)
	for _, c := range slices.Concat(slices.Collect(maps.Values(scenes()))...) {
		envoytest.Eventually(s.t, envoytest.Patience, func() error { return s.ask(s.t.Context(), c) })
	}
	s.recorded("host-owners.json", "legacy.example.net")
	for _, p := range append(s.agents, s.Server) {
		p.Stop()
	}
	for from, files := range map[string][]string{
		"server": {"pki", "claims.json", "host-addresses.json", "host-owners.json", "range-owners.json"},
		"edge":   nil, "client": nil, "customer": nil,
	} {
		to := filepath.Join(tenantsData, from)
		err := os.RemoveAll(to)
		for _, f := range files {
			if info, is := os.Stat(filepath.Join(s.StateDir(from), f)); is == nil && !info.IsDir() {
				data, failed := os.ReadFile(filepath.Join(s.StateDir(from), f))
				err = cmp.Or(err, failed, os.MkdirAll(to, 0o750), os.WriteFile(filepath.Join(to, f), data, 0o600))
			} else if is == nil {
				err = cmp.Or(err, os.CopyFS(filepath.Join(to, f), os.DirFS(filepath.Join(s.StateDir(from), f))))
			}
		}
		if files == nil {
			err = cmp.Or(err, os.CopyFS(to, os.DirFS(s.StateDir(from))), os.Remove(filepath.Join(to, "agent.lock")), os.Remove(filepath.Join(to, "counters.json")))
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// recorded waits until a file of the server's state has a text.
func (s *tenants) recorded(file, text string) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		data, err := os.ReadFile(filepath.Join(s.StateDir("server"), file))
		if err == nil && !strings.Contains(string(data), text) {
			err = fmt.Errorf("%s does not have %s", file, text)
		}
		return err
	})
}
