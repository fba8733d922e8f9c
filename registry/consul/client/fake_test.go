package client_test

import (
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

const patience = time.Minute

// fake answers as Consul does, one query at a time as a test says.
type fake struct {
	*httptest.Server
	conns map[net.Conn]bool
	most  int // connections at the same time

	mu     sync.Mutex // guards all fields
	answer func(w http.ResponseWriter, r *http.Request)
	leader string
	asked  []string // the queries, with what they carried
	// restore answers the queries that wait for a restored snapshot; nil holds them.
	restore func(w http.ResponseWriter, r *http.Request)
}

// restorePath is what these ask for.
const restorePath = "/v1/health/node/fairlead.io-none"

// serve starts a fake; answer is called for every query but those for the
// leader and for a restored snapshot.
func serve(tb testing.TB, overTLS bool, answer func(w http.ResponseWriter, r *http.Request)) *fake {
	tb.Helper()
	streams := 0
	if overTLS {
		streams = 250 // as Consul has it
	}
	return serveStreams(tb, streams, answer)
}

// serveStreams starts a fake that speaks HTTP/2, of so many queries a connection;
// of none it speaks plain HTTP/1.1.
func serveStreams(tb testing.TB, streams int, answer func(w http.ResponseWriter, r *http.Request)) *fake {
	tb.Helper()
	f := &fake{answer: answer, leader: "10.0.0.1:8300", conns: map[net.Conn]bool{}}
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(f.serve))
	f.Config.ConnState = func(c net.Conn, s http.ConnState) {
		f.mu.Lock()
		defer f.mu.Unlock()
		switch s {
		case http.StateNew:
			f.conns[c] = true
		case http.StateClosed, http.StateHijacked:
			delete(f.conns, c)
		case http.StateActive, http.StateIdle:
		}
		f.most = max(f.most, len(f.conns))
	}
	f.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	if streams > 0 {
		f.EnableHTTP2 = true
		f.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
		f.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: streams}
		f.StartTLS()
	} else {
		f.Start()
	}
	tb.Cleanup(f.Close)
	return f
}

func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Consul-Knownleader", "true")
	w.Header().Set("X-Consul-Lastcontact", "0")
	f.mu.Lock()
	answer, leader := f.answer, f.leader
	if r.URL.Path == restorePath && f.restore == nil { // as Consul holds it while it restores nothing
		f.mu.Unlock()
		hold(r)
		return
	}
	restore := f.restore
	if r.URL.Path != "/v1/status/leader" && r.URL.Path != restorePath {
		q := r.URL.Query()
		f.asked = append(f.asked, fmt.Sprintf("%s index=%s stale=%t token=%s", r.URL.EscapedPath(), q.Get("index"), q.Has("stale"), r.Header.Get("X-Consul-Token")))
	}
	f.mu.Unlock()
	if r.URL.Path == "/v1/status/leader" {
		_, _ = fmt.Fprintf(w, "%q", leader)
		return
	}
	if r.URL.Path == restorePath {
		restore(w, r)
		return
	}
	answer(w, r)
}

func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fake) queries() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.asked...)
}

// reply is a list of names at an index.
func reply(w http.ResponseWriter, index int, names string) {
	if index > 0 {
		w.Header().Set("X-Consul-Index", strconv.Itoa(index))
	}
	_, _ = fmt.Fprint(w, names)
}

// hold waits as a blocking query does, until the client gives up.
func hold(r *http.Request) { <-r.Context().Done() }

func newClient(tb testing.TB, f *fake, change func(*client.Config)) *client.Client {
	tb.Helper()
	c := client.Config{Logger: slog.New(slog.DiscardHandler), Address: f.URL}
	if f.TLS != nil {
		c.CAFile = filepath.Join(tb.TempDir(), "ca.pem")
		block := &pem.Block{Type: "CERTIFICATE", Bytes: f.Certificate().Raw}
		if err := os.WriteFile(c.CAFile, pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	if change != nil {
		change(&c)
	}
	cl, err := client.New(c)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(cl.Close)
	return cl
}

func services(c *api.Client, q *api.QueryOptions) (map[string][]string, *api.QueryMeta, error) {
	return c.Catalog().Services(q)
}
