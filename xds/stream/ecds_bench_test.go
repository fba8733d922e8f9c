package stream_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// BenchmarkSlots is the CPU that an Envoy takes for a request to an application behind it,
// by HTTP/1.1 in plaintext on one connection: without filters for rules, with two whose rules
// travel by themselves (ECDS) and are empty, and with 40, to tell what one costs.
func BenchmarkSlots(b *testing.B) {
	for _, version := range []string{"1.36.2", "1.40.0"} {
		for _, slots := range []int{0, 2, 40} {
			b.Run(fmt.Sprintf("%s/%d", version, slots), func(b *testing.B) {
				var names []string
				for i := range slots {
					names = append(names, fmt.Sprintf("rules-%d", i))
				}
				w, p := newTestMesh(b), newControlPlane(b)
				w.cluster("a", nil)
				for _, name := range names {
					w.extension(name, false)
				}
				w.ruledListener("l", w.port, "one", names...)
				w.forward("l", "a")
				p.set(w.generation())
				e := p.envoy(b, version)
				client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
				defer client.CloseIdleConnections()
				ask := func() error {
					req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", w.port), http.NoBody)
					if err != nil {
						return err
					}
					resp, err := client.Do(req)
					if err != nil {
						return err
					}
					defer resp.Body.Close()
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
						return fmt.Errorf("%s: %w", resp.Status, err)
					}
					return nil
				}
				envoytest.Eventually(b, envoytest.Patience, ask)
				before := cpuOf(b, e.PID())
				for b.Loop() {
					if err := ask(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64((cpuOf(b, e.PID())-before).Nanoseconds())/1e3/float64(b.N), "envoy-µs/op")
			})
		}
	}
}

// forward has a listener of ruledListener send everything to a cluster.
func (w *testMesh) forward(listener, cluster string) {
	w.t.Helper()
	l, hcm := &listenerv3.Listener{}, &hcmv3.HttpConnectionManager{}
	if err := proto.Unmarshal(w.types[stream.ListenerType][listener].Body, l); err != nil {
		w.t.Fatal(err)
	}
	f := l.GetFilterChains()[0].GetFilters()[0]
	if err := f.GetTypedConfig().UnmarshalTo(hcm); err != nil {
		w.t.Fatal(err)
	}
	hcm.GetRouteConfig().GetVirtualHosts()[0].Routes = []*routev3.Route{{
		Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
	}}
	l.TrafficDirection = corev3.TrafficDirection_INBOUND
	f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: w.any(hcm)}
	w.put(stream.ListenerType, listener, l)
}

// cpuOf is the CPU time that a process has used.
func cpuOf(tb testing.TB, pid int) time.Duration {
	tb.Helper()
	var total time.Duration
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, task := range tasks {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, task.Name()))
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		if err != nil {
			tb.Fatal(err)
		}
		total += time.Duration(ns)
	}
	return total
}
