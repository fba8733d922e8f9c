package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// limited is an Envoy with limits and a listener that answers directly.
type limited struct {
	Config
	envoy   *envoytest.Envoy
	traffic netip.AddrPort
}

func newLimited(t *testing.T, version string, l Limits) *limited {
	t.Helper()
	f := &limited{Config: testConfig(t)}
	ports := envoytest.FreePorts(t, 4)
	local := func(port int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	}
	f.AdminAddress, f.StatsAddress, f.HealthAddress, f.traffic = local(ports[0]), local(ports[1]), local(ports[2]), local(ports[3])
	f.Limits = l
	b, err := Build(f.Config)
	if err != nil {
		t.Fatal(err)
	}
	b.DynamicResources = nil
	traffic, err := httpListener("traffic", f.traffic, []*routev3.Route{{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: http.StatusOK}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	traffic.IgnoreGlobalConnLimit, traffic.BypassOverloadManager = false, false
	b.StaticResources.Listeners = append([]*listenerv3.Listener{traffic}, b.GetStaticResources().GetListeners()...)
	j, err := marshalJSON(b)
	if err != nil {
		t.Fatal(err)
	}
	f.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: j, Version: version})
	return f
}

// TestConnectionsAreLimited opens connections until Envoy accepts no more, and checks that
// probes and metrics still work.
func TestConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	const limit = 5
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f := newLimited(t, version, Limits{MaxHeap: 1 << 30, MaxConnections: limit})
			envoytest.Eventually(t, deadline, func() error { return want(t, f.HealthAddress, HealthPath, http.StatusOK) })
			for n := range limit {
				if err := f.hold(t, deadline); err != nil {
					t.Fatalf("connection %d of %d: %v", n+1, limit, err)
				}
			}
			if err := f.hold(t, deadline); err == nil {
				t.Errorf("connection %d of %d was taken", limit+1, limit)
			}
			if err := errors.Join(want(t, f.HealthAddress, HealthPath, http.StatusOK), want(t, f.StatsAddress, StatsPath, http.StatusOK)); err != nil {
				t.Error(err)
			}
			f.envoy.NoRejections(t)
		})
	}
}

// hold opens a connection and keeps it until the test ends.
func (f *limited) hold(t *testing.T, wait time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", f.traffic.String())
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(wait))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: traffic\r\n\r\n"); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1))
	return err
}

// TestHeapIsLimited has an Envoy exceed its heap limit: it rejects traffic, and answers
// probes and metrics.
func TestHeapIsLimited(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			f := newLimited(t, version, Limits{MaxHeap: 1 << 20})
			envoytest.Eventually(t, deadline, func() error {
				if n := f.envoy.Stat(t, "overload.envoy.overload_actions.stop_accepting_requests.active"); n != 1 {
					return fmt.Errorf("the action is %d", n)
				}
				return errors.Join(want(t, f.HealthAddress, HealthPath, http.StatusOK), want(t, f.StatsAddress, StatsPath, http.StatusOK))
			})
			if err := f.hold(t, time.Second); err == nil {
				t.Error("traffic is served beyond the limit of the heap")
			}
		})
	}
}
