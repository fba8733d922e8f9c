package server

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/files"
)

// config is that of a server over the directories, with a state directory.
func config(t *testing.T, dirs ...string) Config {
	t.Helper()
	run := envoytest.ShortDir(t)
	cfg := Config{
		StateDir: t.TempDir(), RunDir: run, XDSAddress: "127.0.0.1:0", HTTPAddress: "",
		DebounceAfter: 10 * time.Millisecond, SourceWait: 200 * time.Millisecond,
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, d := range dirs {
		cfg.Roots = append(cfg.Roots, files.Root{Path: d})
	}
	return cfg
}

// running is a server under test.
type running struct {
	*Server
	t      *testing.T
	client *admin.Client
	out    *envoytest.Log
	stop   func()
}

// start runs a server until the test ends or stop is called.
func start(t *testing.T, cfg Config) *running {
	t.Helper()
	out := &envoytest.Log{}
	cfg.Logger = slog.New(slog.NewTextHandler(out, nil))
	s, err := New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	r := &running{Server: s, t: t, out: out, client: admin.NewClient(filepath.Join(cfg.RunDir, "admin.sock"))}
	r.stop = sync.OnceFunc(func() { cancel(); wg.Wait() })
	t.Cleanup(func() {
		r.stop()
		if t.Failed() {
			t.Logf("log:\n%s", out)
		}
	})
	return r
}

// eventually asks until the answer is nil.
func (r *running) eventually(ask func() error) {
	r.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(envoytest.Patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatal(err)
		}
		<-tick.C
	}
}

// sources asks the running server as `fairlead proxy-status` does.
func (r *running) sources() Sources {
	r.t.Helper()
	var s Sources
	if err := r.client.Do(r.t.Context(), http.MethodGet, "/v1/sources", nil, &s); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// fault finds a fault of a source whose text has all the words.
func (s *Sources) fault(source string, words ...string) error {
	var seen []string
	for _, st := range s.Files {
	next:
		for _, f := range st.Faults {
			seen = append(seen, st.Source+": "+f.String())
			for _, w := range words {
				if st.Source != source || !strings.Contains(f.String(), w) {
					continue next
				}
			}
			return nil
		}
	}
	return fmt.Errorf("no fault of %q says %q: %q", source, words, seen)
}

// treeOf writes files into a new directory.
func treeOf(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name := range content {
		put(t, filepath.Join(dir, name), content[name])
	}
	return dir
}

// put replaces a file by rename.
func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// rule is a DestinationRule.
func rule(namespace, name string) string {
	return fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: %s, namespace: %s}\n"+
		"spec: {host: %s.example, trafficPolicy: {loadBalancer: {simple: RANDOM}}}\n---\n", name, namespace, name)
}
