package edgegateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

// status is the answer of one request, with where it redirects to.
func status(ctx context.Context, c *http.Client, address, host string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Host = host
	res, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, res.Header.Get("Location"), err
}

// TestEdgeGateway goes through the README, step by step.
func TestEdgeGateway(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t)
	m := meshtest.New(t, "examples/edge-gateway/mesh", map[string]int{"web": 18080})
	keys := meshtest.NewKeyRing(t, filepath.Join(m.Dir, "credentials"))
	for _, name := range []string{"shop", "admin"} {
		keys.Put(name, name+".site.example")
	}
	keys.Write("admin", "ca.crt", keys.RootPEM())
	m.StartServer("--mesh-config", "mesh-config.yaml")
	m.StartHost(meshtest.Host{Name: "web", Workload: "shop/web", Address: 11, App: []string{}, Agent: []string{"--drain-time", "1s"}})
	edge := meshtest.Host{Name: "edge", Workload: "edge/edge", Address: 13, Agent: []string{"--drain-time", "1s", "--credentials-dir", keys.Dir}}
	m.StartAgent(edge, m.Token("--host", "edge", "--workload", "edge/edge", "--type", "router"))
	m.AwaitLive("web", "edge")

	at := func(host, port string) string {
		return net.JoinHostPort(m.Address(map[string]int{"web": 11, "edge": 13}[host]), port)
	}
	secure := "https://" + at("edge", "8443") + "/"
	answers := func(c *meshtest.Client) func() error {
		return func() error {
			a, err := c.Fresh().Get(t.Context(), secure)
			if err == nil && a.Caller != "spiffe://cluster.local/ns/edge/sa/edge" {
				err = fmt.Errorf("the application was called by %q", a.Caller)
			}
			return err
		}
	}
	fails := func(c *meshtest.Client, why string) func() error {
		return func() error {
			switch _, err := c.Fresh().Get(t.Context(), secure); {
			case err == nil:
				return errors.New("it answers")
			case !strings.Contains(err.Error(), why):
				return fmt.Errorf("it fails with %w, want %q", err, why)
			}
			return nil
		}
	}
	await := func(ask func() error) {
		t.Helper()
		envoytest.Eventually(t, envoytest.Patience, ask)
	}
	alice, number := keys.Client("alice")
	bob, _ := keys.Client("bob")
	shop, next := keys.HTTPS("shop.site.example"), keys.HTTPS("next.site.example")
	await(answers(shop))
	await(answers(keys.HTTPS("admin.site.example", alice)))
	await(fails(keys.HTTPS("admin.site.example"), "certificate required"))
	await(fails(next, ""))

	plain := &http.Client{
		Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	await(func() error {
		code, to, err := status(t.Context(), plain, "http://"+at("edge", "8080")+"/", "shop.site.example")
		if err != nil || code != http.StatusMovedPermanently || to != "https://shop.site.example/" {
			return fmt.Errorf("got %d to %q, %w", code, to, err)
		}
		return nil
	})
	if code, _, err := status(t.Context(), plain, "http://"+at("web", "9080")+"/", ""); err == nil {
		t.Errorf("the application's port takes plaintext: %d", code)
	}
	out := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: at("web", "3128")})}}
	await(func() error {
		if code, _, err := status(t.Context(), out, "http://example.com/", ""); err != nil || code != http.StatusBadGateway {
			return fmt.Errorf("a request to another site got %d, %w", code, err)
		}
		return nil
	})
	shows := func(name, state string) {
		t.Helper()
		await(func() error {
			table, _ := m.CLI("proxy-status", "--run-dir", m.RunDir("server")) // exits with 1 while a key is missing
			for line := range strings.Lines(table) {
				if f := strings.Fields(line); len(f) > 3 && f[0] == name && f[1] == "edge.edge" && f[2] == state {
					return nil
				}
			}
			return fmt.Errorf("no line says that %s is %s:\n%s", name, state, table)
		})
	}
	shows("next", "missing")
	shows("admin-cacert", "ready")

	keys.Put("next", "next.site.example")
	await(answers(next))
	shows("next", "ready")
	keys.Put("shop", "shop.site.example")
	await(answers(shop))
	keys.Write("admin", "ca.crl", keys.Revoke(number))
	await(fails(keys.HTTPS("admin.site.example", alice), "revoked"))
	await(answers(keys.HTTPS("admin.site.example", bob)))
	m.Server.Kill()
	keys.Put("admin", "admin.site.example")
	await(answers(keys.HTTPS("admin.site.example", bob)))
}
