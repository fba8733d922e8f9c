package relay

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/vhds"
)

var fiveTypes = append(slices.Clone(fourTypes), stream.VirtualHostType)

// vhdsOf is the shop's configuration with a virtual host for each mark, sent by VHDS.
func (s *shop) vhdsOf(marks map[string]string) map[string]proto.Message {
	out := s.messages("")
	out["rds/routes"] = parse(s.tb, &routev3.RouteConfiguration{},
		`{"name":"routes","vhds":{"config_source":{"ads":{},"resource_api_version":"V3"}}}`)
	for name, mark := range marks {
		out["vhds/routes/"+name] = parse(s.tb, &routev3.VirtualHost{}, `{"name":"routes/%s","domains":["%s.test","%s.test:*"],
		 "routes":[{"match":{"prefix":"/"},"route":{"cluster":"app"},
		 "request_headers_to_add":[{"header":{"key":"x-route","value":%q}}]}]}`, name, name, name, mark)
	}
	return out
}

// inlineOf is the same, with the virtual hosts inside the route configuration.
func (s *shop) inlineOf(marks map[string]string) map[string]proto.Message {
	out := s.vhdsOf(marks)
	rc := out["rds/routes"].(*routev3.RouteConfiguration)
	rc.Vhds = nil
	for _, name := range slices.Sorted(maps.Keys(marks)) {
		h := out["vhds/routes/"+name].(*routev3.VirtualHost)
		h.Name = name
		rc.VirtualHosts = append(rc.VirtualHosts, h)
		delete(out, "vhds/routes/"+name)
	}
	return out
}

// marksOf are n virtual hosts.
func marksOf(n int, mark string) map[string]string {
	out := map[string]string{}
	for i := range n {
		out[fmt.Sprintf("h%02d", i)] = mark
	}
	return out
}

// ask gives the status and the body of an answer to a request for a host.
func (s *shop) ask(ctx context.Context, client *http.Client, host string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", s.port), http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Host = host + ".test"
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// hosts is nil once each host answers with its mark.
func (s *shop) hosts(marks map[string]string) error {
	client := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for host, mark := range marks {
		status, body, err := s.ask(s.tb.Context(), client, host)
		if err != nil {
			return err
		}
		if mark == "" && status == http.StatusNotFound {
			continue
		}
		if status != http.StatusOK || body != mark {
			return fmt.Errorf("%s answers %d %q, want %q", host, status, body, mark)
		}
	}
	return nil
}

// settles waits until the hosts answer with their marks and the server has the
// acknowledgement.
func (s *shop) settles(server *fakeServer, number uint64, marks map[string]string) {
	s.tb.Helper()
	envoytest.Eventually(s.tb, deadline, func() error { return s.hosts(marks) })
	server.inStep(s.tb, number, fiveTypes...)
}

// load sends requests to some hosts until it is stopped; each has to be answered.
func (s *shop) load(hosts ...string) (stop func()) {
	ctx, cancel := context.WithCancel(s.tb.Context())
	var group sync.WaitGroup
	var asked, failed atomic.Int64
	for w := range 4 {
		group.Go(func() {
			client := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{DisableKeepAlives: w%2 == 0}}
			defer client.CloseIdleConnections()
			for i := w; ctx.Err() == nil; i++ {
				host := hosts[i%len(hosts)]
				status, body, err := s.ask(context.WithoutCancel(ctx), client, host)
				asked.Add(1)
				if err != nil || status != http.StatusOK {
					failed.Add(1)
					s.tb.Errorf("%s answers %d %q, %v", host, status, body, err)
				}
			}
		})
	}
	return func() {
		cancel()
		group.Wait()
		s.tb.Logf("%d requests, %d failed", asked.Load(), failed.Load())
		if asked.Load() == 0 {
			s.tb.Error("nothing was asked")
		}
	}
}

// TestVirtualHosts edits, removes and adds virtual hosts. Envoys that support VHDS get them
// separately, the others inline.
func TestVirtualHosts(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			h := newHost(t, server.addr)
			r, stop := h.relay()
			marks := marksOf(60, "one")
			server.set(generation(t, 1, shop.vhdsOf(marks)))
			e := h.envoy(version)
			shop.settles(server, 1, marks)
			if split, minor := r.Status().Envoys[0].Split, uint32(envoytest.Minor(t, version)); (len(split) > 0) != vhds.Supported(1, minor) {
				t.Errorf("in vhds are %q", split)
			}
			server.takeSent()

			down, up := server.down.Load(), server.up.Load()
			marks["h07"] = "two"
			server.set(generation(t, 2, shop.vhdsOf(marks)))
			shop.settles(server, 2, marks)
			down, up = server.down.Load()-down, server.up.Load()-up
			t.Logf("one edit: %d bytes down, %d up", down, up)
			if down+up > 1024 {
				t.Errorf("one edit costs %d bytes down and %d up", down, up)
			}
			if sent := server.takeSent(); !slices.Equal(sent, []string{"routes/h07"}) {
				t.Errorf("one edit sent %q", sent)
			}

			// One goes, one comes; what was there is not asked for again.
			delete(marks, "h08")
			marks["new"] = "three"
			server.set(generation(t, 3, shop.vhdsOf(marks)))
			shop.settles(server, 3, marks)
			envoytest.Eventually(t, deadline, func() error { return shop.hosts(map[string]string{"h08": ""}) })
			if sent := server.takeSent(); !slices.Equal(sent, []string{"routes/new", "-routes/h08"}) {
				t.Errorf("sent %q", sent)
			}

			// The relay starts again without the control plane, then Envoy too.
			server.kill()
			stop()
			h.cfg.EnvoyRunning = true
			r, stop = h.relay()
			envoytest.Eventually(t, deadline, func() error { return liveness(r) })
			if err := shop.hosts(marks); err != nil {
				t.Error(err)
			}
			e.NoRejections(t)
			e.Kill()
			stop()
			h.cfg.EnvoyRunning = false
			h.relay()
			e = h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.hosts(marks) })
			server.takeSent()
			server.start()
			server.set(generation(t, 4, shop.vhdsOf(marks)))
			server.inStep(t, 4, fiveTypes...)
			if sent := server.takeSent(); len(sent) > 0 {
				t.Errorf("sent again: %q", sent)
			}
			e.NoRejections(t)
		})
	}
}

func liveness(r *Relay) error {
	if s := r.Status(); s.Envoy != bootstrap.EnvoyLive || s.Held > 0 {
		return fmt.Errorf("status %+v", s)
	}
	return nil
}

// TestVirtualHostsUnderLoad changes virtual hosts fifty times, and the form in which the
// server sends them. No request fails.
func TestVirtualHostsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			h := newHost(t, server.addr)
			h.relay()
			marks := marksOf(30, "0")
			server.set(generation(t, 1, shop.vhdsOf(marks)))
			e := h.envoy(version)
			shop.settles(server, 1, marks)
			stop := shop.load("h00", "h01", "h02", "h29")
			number := uint64(1)
			for i := range 50 {
				number++
				marks[fmt.Sprintf("h%02d", i%30)] = strconv.FormatUint(number, 10)
				extra := fmt.Sprintf("extra%d", i/4)
				switch i % 4 {
				case 0:
					marks[extra] = "extra"
				case 3:
					delete(marks, extra)
				}
				if i%10 == 5 { // inline, and back
					server.set(generation(t, number, shop.inlineOf(marks)))
					shop.settles(server, number, marks)
					number++
				}
				server.set(generation(t, number, shop.vhdsOf(marks)))
				if i%3 == 0 {
					shop.settles(server, number, marks)
				}
			}
			shop.settles(server, number, marks)
			stop()
			e.NoRejections(t)
		})
	}
}

// TestRejectedVirtualHost has one virtual host that Envoy rejects among others: it alone is
// rejected upstream.
func TestRejectedVirtualHost(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			h := newHost(t, server.addr)
			byVHDS := vhds.Supported(1, uint32(envoytest.Minor(t, version)))
			r, stopRelay := h.relay()
			marks := marksOf(40, "one")
			server.set(generation(t, 1, shop.vhdsOf(marks)))
			e := h.envoy(version)
			shop.settles(server, 1, marks)
			stop := shop.load("h00", "h01", "h11")

			for host := range marks {
				marks[host] = "two"
			}
			bad := shop.vhdsOf(marks)
			// Its domain is another one's, which no rule of the message forbids.
			h10 := bad["vhds/routes/h10"].(*routev3.VirtualHost)
			h10.Domains = append(h10.Domains, "h20.test")
			marks["h10"] = "one"
			server.set(generation(t, 2, bad))
			shop.settles(server, 2, marks)
			stop()
			server.mu.Lock()
			rejected := slices.DeleteFunc(slices.Clone(server.events), func(ev stream.Event) bool { return ev.Kind != stream.EventRejected })
			server.mu.Unlock()
			// Either of the two that want the domain is to blame.
			if len(rejected) != 1 || !strings.HasPrefix(rejected[0].Name, "routes/h") || !strings.Contains(rejected[0].Reason, "h20.test") {
				t.Errorf("rejected upstream: %+v", rejected)
			}
			if s := r.Status(); s.Envoy != bootstrap.EnvoyRejecting || len(s.Rejected) != 1 || (len(s.Envoys[0].Split) > 0) != byVHDS {
				t.Errorf("status %+v", s)
			}

			// Without the control plane, relay and Envoy start again.
			server.kill()
			stopRelay()
			e.Kill()
			h.relay()
			e = h.envoy(version)
			envoytest.Eventually(t, deadline, func() error { return shop.hosts(marks) })
			e.NoRejections(t)
			server.start()
			marks["h10"] = "three"
			server.set(generation(t, 3, shop.vhdsOf(marks)))
			shop.settles(server, 3, marks)
		})
	}
}

// TestRejectedHostsDoNotBlockOthers edits valid virtual hosts beside two that Envoy rejects,
// an edited one and a new one. The valid edits arrive, only the two are reported, and VHDS
// stays in use through restarts of the control plane and the relay. When the two are fixed
// they arrive.
func TestRejectedHostsDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			rejectedDoNotBlockOthers(t, version)
		})
	}
}

func rejectedDoNotBlockOthers(t *testing.T, version string) {
	t.Helper()
	server, shop := newServer(t), newShop(t)
	h := newHost(t, server.addr)
	r, stopRelay := h.relay()
	marks := marksOf(40, "one")
	server.set(generation(t, 1, shop.vhdsOf(marks)))
	h.envoy(version)
	shop.settles(server, 1, marks)
	stop := shop.load("h00", "h01", "h10")
	byVHDS := vhds.Supported(1, uint32(envoytest.Minor(t, version)))
	number := uint64(1)
	is := func(bad ...string) {
		t.Helper()
		number++
		server.set(generation(t, number, shop.invalid(marks, bad...)))
		shop.settles(server, number, marks)
		envoytest.Eventually(t, deadline, func() error { return rejectedAre(r.Status(), byVHDS, bad) })
	}
	marks["h00"], marks["h20"], marks["h30"] = "two", "two", "two"
	delete(marks, "h31")
	is("h10")
	marks["h21"] = "three"
	is("h10", "new")
	envoytest.Eventually(t, deadline, func() error { return shop.hosts(map[string]string{"new": "", "h31": ""}) })

	// The control plane starts again with them in it, and then the relay too.
	server.kill()
	server.start()
	is("h10", "new")
	server.kill()
	stopRelay()
	h.cfg.EnvoyRunning = true
	r, _ = h.relay()
	envoytest.Eventually(t, deadline, func() error { return liveness(r) })
	server.start()
	marks["h22"] = "five"
	is("h10", "new")

	marks["h10"], marks["new"] = "fixed", "fixed"
	is()
	stop()
}

// invalid is the configuration with virtual hosts that every Envoy rejects: they have a domain
// twice, which protoc-gen-validate accepts.
func (s *shop) invalid(marks map[string]string, bad ...string) map[string]proto.Message {
	all := maps.Clone(marks)
	for _, name := range bad {
		all[name] = "bad"
	}
	out := s.vhdsOf(all)
	for _, name := range bad {
		h := out["vhds/routes/"+name].(*routev3.VirtualHost)
		h.Domains = append(h.Domains, h.Domains[0])
	}
	return out
}

// rejectedAre is nil once exactly these virtual hosts are rejected, by an Envoy that has their
// route configuration in this form.
func rejectedAre(s Status, byVHDS bool, hosts []string) error {
	var names []string
	for _, x := range s.Rejected {
		names = append(names, strings.TrimPrefix(x.Name, "routes/"))
	}
	if !slices.Equal(names, hosts) || len(s.Envoys) != 1 || (len(s.Envoys[0].Split) > 0) != byVHDS {
		return fmt.Errorf("rejected are %q: %+v", names, s)
	}
	return nil
}
