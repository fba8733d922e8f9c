package stream_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacconfigv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/stream"
)

// How real Envoys handle extensions (ECDS), release by release.
func TestConformanceExtensions(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		for name, test := range map[string]func(*testing.T, string){
			"in-force-on-kept-connection": extensionInForceAtOnce,
			"missing":                     missingExtension,
			"bad":                         badExtension,
			"first-version-bad":           firstExtensionBad,
			"second-listener":             secondListener,
			"reconnect":                   extensionReconnect,
			"removed-while-draining":      extensionOfDrainingListener,
		} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				test(t, version)
			})
		}
	}
}

// extension adds an extension: RBAC without rules, or RBAC that refuses everything.
func (w *testMesh) extension(name string, deny bool) {
	w.t.Helper()
	rbac := &rbacv3.RBAC{}
	if deny {
		rbac.Rules = &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_ALLOW}
	}
	w.put(stream.ExtensionType, name, &corev3.TypedExtensionConfig{Name: name, TypedConfig: w.any(rbac)})
}

// badExtension adds an extension that Envoy rejects when it makes the filter.
func (w *testMesh) badExtension(name string) {
	w.t.Helper()
	path := &matcherv3.PathMatcher{Rule: &matcherv3.PathMatcher_Path{Path: &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: "("}},
	}}}
	w.put(stream.ExtensionType, name, &corev3.TypedExtensionConfig{Name: name, TypedConfig: w.any(&rbacv3.RBAC{
		Rules: &rbacconfigv3.RBAC{Action: rbacconfigv3.RBAC_DENY, Policies: map[string]*rbacconfigv3.Policy{"p": {
			Permissions: []*rbacconfigv3.Permission{{Rule: &rbacconfigv3.Permission_UrlPath{UrlPath: path}}},
			Principals:  []*rbacconfigv3.Principal{{Identifier: &rbacconfigv3.Principal_Any{Any: true}}},
		}}},
	})})
}

// ruledListener adds a listener that names extensions.
func (w *testMesh) ruledListener(name string, port int, statPrefix string, extensions ...string) {
	w.t.Helper()
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix: statPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{host("all", "ok", "*")},
		}},
	}
	source := ads()
	source.InitialFetchTimeout = durationpb.New(0)
	for _, x := range extensions {
		hcm.HttpFilters = append(hcm.HttpFilters, &hcmv3.HttpFilter{Name: x, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{
			ConfigDiscovery: &corev3.ExtensionConfigSource{
				ConfigSource: source, TypeUrls: []string{"type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC"},
			},
		}})
	}
	hcm.HttpFilters = append(hcm.HttpFilters, &hcmv3.HttpFilter{Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: w.any(&routerv3.Router{})}})
	w.put(stream.ListenerType, name, &listenerv3.Listener{
		Name: name,
		Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
			Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
		}}},
		FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
			Name: "hcm", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: w.any(hcm)},
		}}}},
	})
}

// status is the status code of one request; reused tells whether it used the connection of
// the one before.
func status(t *testing.T, client *http.Client, port int) (code int, reused bool, err error) {
	t.Helper()
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), http.NoBody)
	if err != nil {
		return 0, false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, reused, err
}

// answersWith waits until new connections are answered with a status code.
func answersWith(t *testing.T, port, want int) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: envoytest.Attempt}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		code, _, err := status(t, client, port)
		if err == nil && code != want {
			err = fmt.Errorf("answered with %d, want %d", code, want)
		}
		return err
	})
}

// keptClient has one connection, which stays open.
func keptClient(t *testing.T) *http.Client {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}, Timeout: envoytest.Attempt}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// ruled starts a control plane and an Envoy with one listener that names two extensions.
func ruled(t *testing.T, version string) (*testMesh, *controlPlane, *envoytest.Envoy) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	w.extension("x", false)
	w.extension("y", false)
	w.ruledListener("l", w.port, "one", "x", "y")
	g := w.generation()
	p.set(g)
	e := p.envoy(t, version)
	p.waitConverged(t, g.Number)
	answersWith(t, w.port, http.StatusOK)
	return w, p, e
}

func statusOf(t *testing.T, list []stream.TypeStatus, url stream.TypeURL) stream.TypeStatus {
	t.Helper()
	for _, st := range list {
		if st.Type == url {
			return st
		}
	}
	t.Fatalf("no status of %s", url.Short())
	return stream.TypeStatus{}
}

// Once Envoy has acknowledged an extension, it is in force on connections that are open, and
// neither they nor the listener change.
func extensionInForceAtOnce(t *testing.T, version string) {
	t.Helper()
	w, p, e := ruled(t, version)
	client := keptClient(t)
	if code, _, err := status(t, client, w.port); code != http.StatusOK || err != nil {
		t.Fatal(code, err)
	}
	for i := range 20 {
		w.extension("x", i%2 == 0)
		if sent, _ := w.push(p); sent != 1 {
			t.Errorf("%d resources sent for one extension", sent)
		}
		want := http.StatusOK
		if i%2 == 0 {
			want = http.StatusForbidden
		}
		if code, reused, err := status(t, client, w.port); err != nil || code != want || !reused {
			t.Errorf("step %d: answered with %d on a kept connection (%v), want %d: %v", i, code, reused, want, err)
		}
	}
	if n := e.Stat(t, "listener_manager.listener_modified") + e.Stat(t, "listener_manager.listener_in_place_updated"); n != 0 {
		t.Errorf("%d updates of listeners", n)
	}
	e.NoRejections(t)
}

// A listener that names an extension which does not exist is not served, and the one before
// it is; once the extension is there, it is.
func missingExtension(t *testing.T, version string) {
	t.Helper()
	w, p, e := ruled(t, version)
	w.ruledListener("l", w.port, "two", "x", "z")
	other := envoytest.FreePorts(t, 1)[0]
	w.ruledListener("m", other, "m", "z")
	_, list := w.push(p)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if n := e.Stat(t, "listener_manager.total_listeners_warming"); n != 2 {
			return fmt.Errorf("%v listeners are warming", n)
		}
		return nil
	})
	if code, _, err := status(t, keptClient(t), w.port); code != http.StatusOK || err != nil {
		t.Error("the listener before is not served", code, err)
	}
	if code, _, err := status(t, keptClient(t), other); err == nil {
		t.Error("a listener without its extension is served", code)
	}
	if st := statusOf(t, list, stream.ListenerType); len(st.Rejected) > 0 {
		t.Errorf("rejected: %+v", st)
	}
	w.extension("z", true)
	w.push(p)
	answersWith(t, w.port, http.StatusForbidden)
	answersWith(t, other, http.StatusForbidden)
	e.NoRejections(t)
}

// Of two changed extensions one is rejected: that one keeps its last version, also for a
// listener that is replaced later, and the other one is in force.
func badExtension(t *testing.T, version string) {
	t.Helper()
	for _, name := range []string{"x", "y"} {
		w, p, _ := ruled(t, version)
		good := map[string]string{"x": "y", "y": "x"}[name]
		w.badExtension(name)
		w.extension(good, true)
		_, list := w.push(p)
		st := statusOf(t, list, stream.ExtensionType)
		if len(st.Rejected) != 1 || st.Rejected[0].Name != name || st.Unknown != 0 {
			t.Errorf("rejected %+v, want %s", st, name)
		}
		answersWith(t, w.port, http.StatusForbidden)
		w.extension(good, false)
		w.push(p)
		answersWith(t, w.port, http.StatusOK)
		// Without the last good version Envoy would reject the listener, too.
		w.ruledListener("l", w.port, "two", "x", "y")
		_, list = w.push(p)
		if st := statusOf(t, list, stream.ListenerType); len(st.Rejected) > 0 {
			t.Errorf("the listener is rejected: %+v", st)
		}
		answersWith(t, w.port, http.StatusOK)
		w.extension(name, true)
		_, list = w.push(p)
		if st := statusOf(t, list, stream.ExtensionType); len(st.Rejected) > 0 || st.LastError != "" {
			t.Errorf("still rejected: %+v", st)
		}
		answersWith(t, w.port, http.StatusForbidden)
	}
}

// An extension whose first version is rejected leaves its listener closed.
func firstExtensionBad(t *testing.T, version string) {
	t.Helper()
	w, p := newTestMesh(t), newControlPlane(t)
	w.badExtension("x")
	w.ruledListener("l", w.port, "one", "x")
	g := w.generation()
	p.set(g)
	p.envoy(t, version)
	list := p.waitConverged(t, g.Number)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		list = p.status
		for _, st := range list {
			if st.Type == stream.ExtensionType && len(st.Rejected) == 1 {
				return nil
			}
		}
		return errors.New("nothing is rejected")
	})
	if st := statusOf(t, list, stream.ExtensionType); st.Unknown != 0 || st.Pending {
		t.Errorf("status %+v", st)
	}
	answersWith(t, w.port, http.StatusInternalServerError)
	w.extension("x", false)
	w.push(p)
	answersWith(t, w.port, http.StatusOK)
}

// A listener that names an extension which Envoy has is in force without another response.
func secondListener(t *testing.T, version string) {
	t.Helper()
	w, p, e := ruled(t, version)
	w.extension("x", true)
	w.push(p)
	other := envoytest.FreePorts(t, 1)[0]
	w.ruledListener("m", other, "m", "x")
	if sent, _ := w.push(p); sent != 1 {
		t.Errorf("%d resources sent for one listener", sent)
	}
	answersWith(t, other, http.StatusForbidden)
	w.extension("x", false)
	w.push(p)
	answersWith(t, w.port, http.StatusOK)
	answersWith(t, other, http.StatusOK)
	e.NoRejections(t)
}

// After a restart of the server nothing is sent that is known, and what has changed is.
func extensionReconnect(t *testing.T, version string) {
	t.Helper()
	w, p, e := ruled(t, version)
	client := keptClient(t)
	p.stop()
	p.start(t)
	list := p.waitConverged(t, w.number)
	if st := statusOf(t, list, stream.ExtensionType); p.sentSoFar() != 0 || st.Resources != 2 || st.Names != 2 {
		t.Errorf("%d resources sent; %+v", p.sentSoFar(), st)
	}
	p.stop()
	w.extension("x", true)
	w.ruledListener("l", w.port, "two", "y", "x") // it has both, in another order
	g := w.generation()
	p.set(g)
	p.start(t)
	p.waitConverged(t, g.Number)
	if n := p.sentSoFar(); n != 2 {
		t.Errorf("%d resources sent, want the extension and the listener", n)
	}
	answersWith(t, w.port, http.StatusForbidden)
	if code, _, err := status(t, client, w.port); err != nil || code != http.StatusForbidden {
		t.Error(code, err)
	}
	e.NoRejections(t)
}

// A listener is replaced by one that names another extension, and the one before goes with
// it: connections of the listener before are answered until they are drained, and then Envoy
// unsubscribes.
func extensionOfDrainingListener(t *testing.T, version string) {
	t.Helper()
	w, p, e := ruled(t, version)
	client := keptClient(t)
	if code, _, err := status(t, client, w.port); code != http.StatusOK || err != nil {
		t.Fatal(code, err)
	}
	w.extension("z", true)
	w.ruledListener("l", w.port, "two", "z")
	delete(w.types[stream.ExtensionType], "x")
	delete(w.types[stream.ExtensionType], "y")
	w.push(p)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		code, reused, err := status(t, client, w.port)
		if !reused {
			return err
		}
		if code != http.StatusOK || err != nil {
			t.Errorf("a connection that drains is answered with %d, %v", code, err)
		}
		return errors.New("the connection is still open")
	})
	answersWith(t, w.port, http.StatusForbidden)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, st := range p.status {
			if st.Type == stream.ExtensionType && (st.Names != 1 || st.Resources != 1) {
				return fmt.Errorf("subscribed to %d, has %d", st.Names, st.Resources)
			}
		}
		return nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if removed := slices.ContainsFunc(p.events, func(x stream.Event) bool { return x.Type == stream.ExtensionType && x.Removal }); removed {
		t.Error("an extension was removed")
	}
	e.NoRejections(t)
}
