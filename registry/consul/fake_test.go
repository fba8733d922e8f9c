package consul_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// odd starts a server that answers as a Consul does that has one service, web,
// but for the queries that a test answers by itself: by path.
func odd(tb testing.TB, answers map[string]http.HandlerFunc) consul.Config {
	tb.Helper()
	usual := map[string]string{
		"/v1/status/leader":      `"10.0.0.1:8300"`,
		"/v1/catalog/services":   `{"web": ["a"]}`,
		"/v1/health/service/web": `[{"Node": {"Node": "n1", "Address": "10.0.0.1"}, "Service": {"ID": "web-1", "Service": "web", "Port": 80}}]`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Consul-Knownleader", "true")
		w.Header().Set("X-Consul-Lastcontact", "0")
		if answer, ok := answers[r.URL.Path]; ok {
			answer(w, r)
			return
		}
		if r.URL.Path == "/v1/internal/acl/authorize" {
			http.Error(w, "ACL support disabled", http.StatusUnauthorized)
			return
		}
		if !await(w, r) {
			return
		}
		text, ok := usual[r.URL.Path]
		if !ok {
			text = "[]"
		}
		_, _ = io.WriteString(w, text)
	}))
	tb.Cleanup(s.Close)
	m, err := mapping.New(mapping.Config{})
	if err != nil {
		tb.Fatal(err)
	}
	return consul.Config{Mapper: m, Client: client.Config{Address: s.URL}}
}

// await names the index, and waits as a blocking query does if it is the one that
// is known; nothing ever changes.
func await(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Query().Get("index") == "7" {
		<-r.Context().Done()
		return false
	}
	w.Header().Set("X-Consul-Index", "7")
	return true
}

// long writes a list of services with very many tags, and web, and answers the
// size of it.
func long(w io.Writer, megabytes int) {
	tag := `"` + strings.Repeat("t", 1<<20) + `"`
	_, _ = io.WriteString(w, `{"big": [`+tag)
	for range megabytes {
		_, _ = io.WriteString(w, ", "+tag)
	}
	_, _ = io.WriteString(w, `], "web": ["a"]}`)
}

// What one registrant writes in tags keeps nothing of the others from being read.
func TestVeryLongListIsRead(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("tens of MB take too long beside the race detector")
	}
	cfg := odd(t, map[string]http.HandlerFunc{
		"/v1/catalog/services": func(w http.ResponseWriter, r *http.Request) {
			if await(w, r) {
				long(w, 80)
			}
		},
		"/v1/health/state/critical": func(w http.ResponseWriter, r *http.Request) {
			if await(w, r) {
				output := `{"Node": "n9", "CheckID": "x", "ServiceName": "big", "Output": "` + strings.Repeat("o", 1<<20) + `"}`
				_, _ = io.WriteString(w, "["+output+strings.Repeat(", "+output, 80)+"]")
			}
		},
	})
	r := start(t, cfg)
	r.awaitStatus("read", func(st *consul.Status) bool { return live(st) && st.Services == 1 && st.Instances == 1 })
}

// A service with an answer that is too long is its own fault, and so are those
// with names that cannot be asked for.
func TestOversizedServiceAffectsOnlyItself(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("tens of MB take too long beside the race detector")
	}
	cfg := odd(t, map[string]http.HandlerFunc{
		"/v1/catalog/services": func(w http.ResponseWriter, r *http.Request) {
			if await(w, r) {
				_, _ = fmt.Fprintf(w, `{"web": [], "big": [], ".": [], "..": [], %q: []}`, strings.Repeat("n", 10_000))
			}
		},
		"/v1/health/service/big": func(w http.ResponseWriter, r *http.Request) {
			if await(w, r) {
				_, _ = io.WriteString(w, "["+strings.Repeat(" ", 65<<20)+"]")
			}
		},
	})
	r := start(t, cfg)
	r.awaitStatus("read", func(st *consul.Status) bool {
		return live(st) && st.Instances == 1 && len(st.Unreadable) == 4
	})
}

// A list that cannot be read is reported once, with what stays in force.
func TestUnreadableListIsReported(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"not the shape": `[]`, "cut": `{"web": ["a"], "x`, "no list of tags": `{"web": {"a": 1}}`,
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			r := start(t, odd(t, map[string]http.HandlerFunc{"/v1/catalog/services": func(w http.ResponseWriter, r *http.Request) {
				if await(w, r) {
					_, _ = io.WriteString(w, body)
				}
			}}))
			r.awaitStatus("reported", func(st *consul.Status) bool {
				return st.State == consul.Starting && strings.Contains(st.Reason, "answer") || strings.Contains(st.Reason, "EOF")
			})
			if log := r.log.String(); strings.Contains(log, "serving the last known one") || strings.Count(log, "and none is stored") != 1 {
				t.Errorf("the log is\n%s", log)
			}
			if st := r.source.Status(); st.Delivered {
				t.Errorf("status is %+v", *st)
			}
		})
	}
}

// While the list cannot be used, the last known catalog is reported as stale, with the
// reason, and the log has it once.
func TestCatalogOutlivesUnusableList(t *testing.T) {
	t.Parallel()
	spoiled := make(chan struct{})
	r := start(t, odd(t, map[string]http.HandlerFunc{"/v1/catalog/services": func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("index") == "7" {
			select {
			case <-r.Context().Done():
				return
			case <-spoiled:
			}
		}
		select {
		case <-spoiled:
			w.Header().Set("X-Consul-Index", "8")
			_, _ = io.WriteString(w, `{"web": {}}`)
		default:
			w.Header().Set("X-Consul-Index", "7")
			_, _ = io.WriteString(w, `{"web": ["a"]}`)
		}
	}}))
	r.await("read", func(f *mesh.Fragment) bool { return len(f.Workloads) == 1 })
	close(spoiled)
	r.awaitStatus("reported", func(st *consul.Status) bool {
		return st.State == consul.Stale && st.Delivered && st.Instances == 1 && strings.Contains(st.Reason, "answer")
	})
	if log := r.log.String(); strings.Count(log, "failed: serving the last known one") != 1 {
		t.Errorf("the log is\n%s", log)
	}
}

// A server that is no Consul has no services because it knows of none.
func TestServerWithoutIndexIsNotConsul(t *testing.T) {
	t.Parallel()
	plain := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
	}
	r := start(t, odd(t, map[string]http.HandlerFunc{
		"/v1/catalog/services": plain("{}"), "/v1/config/service-defaults": plain("[]"), "/v1/config/proxy-defaults": plain("[]"),
	}))
	r.awaitStatus("reported", func(st *consul.Status) bool { return strings.Contains(st.Reason, "is this Consul?") })
	if st := r.source.Status(); st.Delivered || st.State != consul.Starting {
		t.Errorf("status is %+v", *st)
	}
}
