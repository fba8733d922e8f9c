package bootstrap

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func testConfig(tb testing.TB) Config {
	tb.Helper()
	dir := tb.TempDir()
	return Config{
		Node: *ordersNode(), XDSSocket: filepath.Join(dir, "xds.sock"), SDSSocket: filepath.Join(dir, "sds.sock"), ALSSocket: filepath.Join(dir, "als.sock"),
		Token: "A-TOKEN-OF-THIS-TEST", AdminSocket: filepath.Join(dir, "admin.sock"),
	}
}

func TestMarshalIsStable(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.StatsAddress, c.HealthAddress = netip.MustParseAddrPort("127.0.0.1:15090"), netip.MustParseAddrPort("127.0.0.1:15021")
	first, err := Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		again, err := Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, again) {
			t.Fatal("equal configs gave different bytes")
		}
	}
}

func TestBuildRejects(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Config){
		"relative":   func(c *Config) { c.XDSSocket = "xds.sock" },
		"long":       func(c *Config) { c.SDSSocket = "/" + strings.Repeat("a", MaxSocketPath) },
		"admin_long": func(c *Config) { c.AdminSocket = "/" + strings.Repeat("a", MaxSocketPath) },
		"als_long":   func(c *Config) { c.ALSSocket = "/" + strings.Repeat("a", MaxSocketPath) },
		"no_token":   func(c *Config) { c.Token = "" },
		"moved_long": func(c *Config) { c.MovedAdminSocket = "/" + strings.Repeat("a", MaxSocketPath) },
		"node":       func(c *Config) { c.Node.Name = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			spoil(&c)
			if _, err := Build(c); err == nil {
				t.Error("accepted")
			} else {
				t.Log(err)
			}
		})
	}
}

func TestEnvoyAcceptsBootstrap(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	ports := envoytest.FreePorts(t, 3)
	local := func(port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	}
	c.StatsAddress, c.HealthAddress = local(ports[0]), local(ports[1])
	c.Limits = Limits{MaxHeap: 448 << 20, MaxConnections: 7168}
	b, err := Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := envoytest.Validate(t, b); err != nil {
		t.Error(err)
	}
	c.AdminAddress = local(ports[2])
	if b, err = Marshal(c); err != nil {
		t.Fatal(err)
	}
	if err := envoytest.Validate(t, b); err != nil {
		t.Error(err)
	}
}

// TestStaticListeners omits dynamic configuration, so that Envoy opens the static
// listeners without a control plane.
func TestStaticListeners(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			c := testConfig(t)
			ports := envoytest.FreePorts(t, 3)
			local := func(port int) netip.AddrPort {
				return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
			}
			c.AdminAddress, c.StatsAddress, c.HealthAddress = local(ports[0]), local(ports[1]), local(ports[2])
			e := envoytest.Start(t, envoytest.Config{Bootstrap: static(t, c), Version: version})
			envoytest.Eventually(t, deadline, func() error { return want(t, c.HealthAddress, HealthPath, http.StatusOK) })
			for _, q := range []struct {
				at     netip.AddrPort
				path   string
				status int
			}{
				{c.StatsAddress, StatsPath, http.StatusOK},
				{c.StatsAddress, "/config_dump", http.StatusNotFound},
				{c.StatsAddress, "/stats/prometheus/../../quitquitquit", http.StatusNotFound},
				{c.HealthAddress, "/stats", http.StatusNotFound},
			} {
				if err := want(t, q.at, q.path, q.status); err != nil {
					t.Error(err)
				}
			}
			post(t, c.AdminAddress, "/healthcheck/fail")
			if err := want(t, c.HealthAddress, HealthPath, http.StatusServiceUnavailable); err != nil {
				t.Error(err)
			}
			e.NoRejections(t)
		})
	}
}

// TestGuardsOfEachEnvoy: each release gets the guards that it knows, and none that it
// reports as unknown. A path with a fragment is served without it, as in Istio.
func TestGuardsOfEachEnvoy(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			minor := envoytest.Minor(t, version)
			c := testConfig(t)
			ports := envoytest.FreePorts(t, 2)
			c.AdminAddress = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(ports[0]))
			c.StatsAddress = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(ports[1]))
			c.EnvoyVersion = Version{Major: 1, Minor: uint32(minor)}
			e := envoytest.Start(t, envoytest.Config{Bootstrap: static(t, c), Version: version})
			envoytest.Eventually(t, deadline, func() error { return want(t, c.StatsAddress, StatsPath, http.StatusOK) })
			if status := getRaw(t, c.StatsAddress, StatsPath+"#part"); !strings.Contains(status, " 200 ") {
				t.Errorf("a path with a fragment is answered with %q", status)
			}
			log := strings.ToLower(e.Log())
			for _, sign := range []string{"envoy bug", "envoy_bug", "unable to find runtime", "invalid runtime", "unknown field"} {
				if strings.Contains(log, sign) {
					t.Errorf("the log has %q", sign)
				}
			}
			if off := strings.Contains(e.Admin(t, "/runtime"), "coalesce_lb_rebuilds"); off != (minor >= 38) {
				t.Errorf("the guard against envoy#45212 is set: %v", off)
			}
		})
	}
}

// TestAdminSocket: the socket gives its owner access to the admin interface, and nobody
// else.
func TestAdminSocket(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	startRaw(t, static(t, c))
	envoytest.Eventually(t, deadline, func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", c.AdminSocket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	fi, err := os.Stat(c.AdminSocket)
	if err != nil {
		t.Fatal(err)
	}
	if perm := fi.Mode().Perm(); perm != 0o600 {
		t.Errorf("the admin socket has mode %o", perm)
	}
}

func get(tb testing.TB, method string, at netip.AddrPort, path string) (int, string, error) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, "http://"+at.String()+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	res, err := (&http.Client{Timeout: deadline}).Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, string(body), err
}
