package consul_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// many is a server that answers by TLS as a Consul does that has services with an
// instance each. Every change is one of all of them.
type many struct {
	services int
	// about is the service that an answer is about; nil means the one that was
	// asked for.
	about  func(name string) string
	server *httptest.Server

	mu      sync.Mutex // guards all following fields
	index   int
	changed chan struct{} // closed and replaced at each change
}

// change is one of every service: its port.
func (m *many) change() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.index++
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *many) now() (int, <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.index, m.changed
}

// serve starts the server, with so many streams a connection; none means HTTP/1.1.
func (m *many) serve(tb testing.TB, streams int) consul.Config {
	tb.Helper()
	if m.changed == nil {
		m.index, m.changed = 10, make(chan struct{})
	}
	s := httptest.NewUnstartedServer(m)
	if m.server != nil { // at the same place, with other protocols
		at := m.server.Listener.Addr().String()
		end(m.server)
		l, err := net.Listen("tcp", at)
		if err != nil {
			tb.Fatal(err)
		}
		_ = s.Listener.Close()
		s.Listener = l
	}
	m.server = s
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if streams > 0 {
		s.EnableHTTP2 = true
		s.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
	}
	s.StartTLS()
	tb.Cleanup(s.Close)
	ca := filepath.Join(tb.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		tb.Fatal(err)
	}
	mapper, err := mapping.New(mapping.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return consul.Config{Mapper: mapper, Client: client.Config{Address: s.URL, CAFile: ca, Datacenter: "dc1"}}
}

// end ends a server, and whoever comes while it ends.
func end(s *httptest.Server) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.Close()
	}()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		s.CloseClientConnections()
		select {
		case <-ended:
			return
		case <-tick.C:
		}
	}
}

// ServeHTTP implements http.Handler.
func (m *many) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Consul-Knownleader", "true")
	w.Header().Set("X-Consul-Lastcontact", "0")
	switch r.URL.Path {
	case "/v1/status/leader":
		_, _ = io.WriteString(w, `"10.0.0.1:8300"`)
		return
	case "/v1/internal/acl/authorize":
		http.Error(w, "ACL support disabled", http.StatusUnauthorized)
		return
	}
	index, changed := m.now()
	if r.URL.Query().Get("index") == strconv.Itoa(index) {
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
		index, _ = m.now()
	}
	w.Header().Set("X-Consul-Index", strconv.Itoa(index))
	name, service := strings.CutPrefix(r.URL.Path, "/v1/health/service/")
	var answer any = []any{}
	switch {
	case r.URL.Path == "/v1/catalog/services":
		names := map[string][]string{}
		for i := range m.services {
			names[fmt.Sprint("s", i)] = nil
		}
		answer = names
	case service && !r.URL.Query().Has("tag"):
		i, _ := strconv.Atoi(name[1:])
		if m.about != nil {
			name = m.about(name)
		}
		answer = []any{map[string]any{
			"Node":    map[string]any{"Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1"},
			"Service": map[string]any{"ID": name, "Service": name, "Port": 1000 + i, "Meta": map[string]string{"at": strconv.Itoa(index)}},
		}}
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// at reports whether all of a fragment is of an index.
func (m *many) at(index int) func(*mesh.Fragment) bool {
	return func(f *mesh.Fragment) bool {
		for _, w := range f.Workloads {
			if w.Labels["at"] != strconv.Itoa(index) {
				return false
			}
		}
		return len(f.Workloads) == m.services
	}
}

// What is before a Consul may carry less than Consul does: watches leave room for
// what else is to be asked.
func TestWatchesLeaveRoomForReads(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		streams, connections int
		mode                 string
	}{
		"ten_streams":  {10, 8, consul.ModeBoth},
		"one_stream":   {1, 14, consul.ModeTables},
		"http1":        {0, 14, consul.ModeTables},
		"many_streams": {1000, 14, consul.ModeWatches},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := &many{services: 80}
			cfg := m.serve(t, c.streams)
			cfg.Client.MaxConnections = c.connections
			r := start(t, cfg)
			r.await("the first catalog", m.at(10))
			r.awaitStatus("read", func(st *consul.Status) bool { return live(st) && st.Mode == c.mode })
			for index := 11; index < 14; index++ {
				m.change()
				r.await("a change of everything", m.at(index))
			}
			if st := r.source.Status(); st.Failed > 0 {
				t.Errorf("status is %+v", *st)
			}
		})
	}
}

// What carries a watch for each service may be replaced by what does not.
func TestWatchesAreReplacedByTables(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	m := &many{services: 80}
	cfg := m.serve(t, 250)
	cfg.Client.MaxConnections = 14
	r := start(t, cfg)
	r.await("the first catalog", m.at(10))
	for i, streams := range []int{0, 8, 250} {
		m.serve(t, streams)
		m.change()
		r.await("a change of everything", m.at(11+i))
		mode := map[int]string{0: consul.ModeTables, 8: consul.ModeBoth, 250: consul.ModeBoth}[streams]
		r.awaitStatus(mode, func(st *consul.Status) bool { return live(st) && st.Mode == mode && st.Watches <= 80+6 })
	}
}

// An answer about another service, or another datacenter, takes nothing from the
// one that was asked for.
func TestSwappedAnswersAreRefused(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	var swapped sync.Map
	m := &many{services: 4, about: func(name string) string {
		if _, yes := swapped.Load("now"); yes && name != "s0" {
			return "s" + strconv.Itoa((int(name[1]-'0')+1)%4)
		}
		return name
	}}
	cfg := m.serve(t, 250)
	r := start(t, cfg)
	r.await("the first catalog", m.at(10))
	swapped.Store("now", true)
	m.change()
	r.awaitStatus("reported", func(st *consul.Status) bool {
		return st.UnreadableCount == 3 && strings.Contains(strings.Join(st.Unreadable, ""), "the answer is about another service")
	})
	for _, f := range r.fragments() {
		if len(f.Workloads) != 4 {
			t.Errorf("a catalog was\n%s", text(f))
		}
	}
	swapped.Delete("now")
	r.await("all is well again", m.at(11))

	cfg.Client.Datacenter = "dc2"
	elsewhere := start(t, cfg)
	elsewhere.awaitStatus("reported", func(st *consul.Status) bool {
		return st.UnreadableCount == 4 && strings.Contains(st.Unreadable[0], "another datacenter")
	})
}

// A certificate that is not Consul's, or not in force, is no way to read.
func TestTokenIsSentOnlyToConsul(t *testing.T) {
	t.Parallel()
	m := &many{services: 1}
	cfg := m.serve(t, 250)
	other := (&many{}).serve(t, 250)
	asked := make(chan struct{}, 100)
	thief := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }))
	thief.EnableHTTP2 = true
	thief.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	thief.StartTLS()
	t.Cleanup(thief.Close)
	for name, change := range map[string]func(*client.Config){
		"no_authority": func(c *client.Config) { c.CAFile = "" },
		"another_name": func(c *client.Config) { c.ServerName = "consul.nowhere" },
		"another_one":  func(c *client.Config) { c.Address, c.ServerName = thief.URL, "consul.nowhere" },
	} {
		cfg := cfg
		cfg.Client.CAFile = other.Client.CAFile
		change(&cfg.Client)
		r := start(t, cfg)
		r.awaitStatus(name, func(st *consul.Status) bool {
			return st.State == consul.Starting && strings.Contains(st.Reason, "certificate")
		})
	}
	if len(asked) > 0 {
		t.Error("who has no right certificate was asked, with the token")
	}
}
