package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

const hostile = "\x1b[2J\x1b[H \r\n\nPROXY   e140.shop everything is fine \u202e\u009b"

// rejections are many, in the words of somebody who wants to be taken for the
// server.
func rejections(n int) []server.Rejection {
	var out []server.Rejection
	for i := range n {
		out = append(out, server.Rejection{Proxy: "web", Name: fmt.Sprintf("c%03d", i), Reason: hostile + strings.Repeat("w", 4000)})
	}
	return out
}

// wantPlain wants text to have nothing that a terminal acts on, and to be no more
// than what a person reads.
func wantPlain(t *testing.T, out string) {
	t.Helper()
	if strings.ContainsAny(out, "\x1b\r\u202e\u009b") || strings.Contains(out, "\nPROXY   e140") {
		t.Errorf("not plain: %q", out)
	}
	if len(out) > 16<<10 {
		t.Errorf("%d bytes:\n%.2000s", len(out), out)
	}
}

func TestProxyStatusIsShortAndPlain(t *testing.T) {
	t.Parallel()
	p := server.Proxy{Name: "web.shop", Connected: true, Types: []server.Type{
		{Type: "cluster", Rejected: rejections(8)}, {Type: "endpoint", Rejected: rejections(100), RejectedMore: 39},
	}}
	src := registry.SourceStatus{Name: "files", HeldCount: 145}
	for i := range 100 {
		src.Held = append(src.Held, registry.Held{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: fmt.Sprintf("s%d", i)}, Since: time.Now()})
	}
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/proxies": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Proxies, error) {
			return server.Proxies{Proxies: []server.Proxy{p}}, nil
		}),
		"GET /v1/sources": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Sources, error) {
			return server.Sources{Registry: registry.Status{Sources: []registry.SourceStatus{src}}}, nil
		}),
	})
	code, out, errs := cli(t, "proxy-status", "--run-dir", run)
	if code != exitInvalid || errs != "" {
		t.Errorf("%d %s", code, errs)
	}
	wantPlain(t, out)
	for want, n := range map[string]int{
		"web.shop rejected cluster c": 8, "web.shop rejected endpoint c": 2, "… and 137 more that web.shop rejected": 1,
		"is on hold for": 5, "… and 140 more removals of files": 1,
	} {
		if got := strings.Count(out, want); got != n {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, n, out)
		}
	}
}

// TestManyProxiesRejectTheSame: one bad change at a thousand proxies is one thing
// to read, with the line that it was made from.
func TestManyProxiesRejectTheSame(t *testing.T) {
	t.Parallel()
	var list []server.Proxy
	for i := range 1000 {
		bad := server.Rejection{Name: "8080/orders:8080", Reason: "no such thing", Origins: []string{"mesh/orders.yaml:11:1"}}
		list = append(list, server.Proxy{Name: fmt.Sprintf("p%04d.shop", i), Types: []server.Type{{Type: "virtual-host", Rejected: []server.Rejection{bad}, RejectedMore: 1}}})
	}
	var b strings.Builder
	writeRejected(&b, list)
	want := `
p0000.shop, p0001.shop, p0002.shop, … and 997 more rejected virtual-host 8080/orders:8080:
  no such thing
  made from mesh/orders.yaml:11:1

… and 1000 more that p0000.shop, p0001.shop, p0002.shop, … and 997 more rejected: ` + "`fairlead proxy-config all p0000.shop`" + ` lists them
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
	b.Reset()
	for i := range list { // each in words of its own
		list[i].Types[0].Rejected[0].Reason += list[i].Name
	}
	writeRejected(&b, list)
	if n := strings.Count(b.String(), "no such thing"); n != maxRejections || !strings.Contains(b.String(), "… and 1970 more") {
		t.Errorf("%d: %s", n, b.String())
	}
}

// TestLastGoodVersionIsReported: whoever reads of a broken object wants to know
// what is in force instead; and not of thousands one by one.
func TestLastGoodVersionIsReported(t *testing.T) {
	t.Parallel()
	at := &mesh.Origin{Path: "a.yaml", Line: 2, Column: 1}
	faults := []manifest.Fault{
		{Origin: at, Severity: manifest.Error, Code: manifest.CodeKind, Message: "broken"},
		{Origin: at, Severity: manifest.Warning, Code: lastgood.CodeKept, Message: "the last good version stands"},
	}
	for range 100 {
		faults = append(faults, manifest.Fault{Origin: at, Severity: manifest.Error, Code: manifest.CodeKind, Message: "another"})
	}
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/proxies": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Proxies, error) { return server.Proxies{}, nil }),
		"GET /v1/sources": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Sources, error) {
			return server.Sources{Files: []files.Status{{Source: "files", Faults: faults}}}, nil
		}),
	})
	code, out, _ := cli(t, "proxy-status", "--run-dir", run)
	if code != exitInvalid || !strings.Contains(out, "101 errors in manifests:\n  a.yaml:2:1: error") || !strings.Contains(out, "the last good version stands") ||
		strings.Count(out, "another") != manyFaults-2 || !strings.Contains(out, "… and 62 more") {
		t.Errorf("%d %s", code, out)
	}
}

func TestApplyIsShortAndPlain(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if !printRollout(&b, "a.yaml", server.Rollout{Touched: 1, Rejected: rejections(50), RejectedMore: 7}) {
		t.Error("it does not say that it was rejected")
	}
	wantPlain(t, b.String())
	if out := b.String(); strings.Count(out, "rejected it: ") != maxShown || !strings.Contains(out, "… and 47 more rejections") {
		t.Error(out)
	}
}

// TestEmptyPrefixIsReported: a prefix with a typing error in it has no manifest.
func TestEmptyPrefixIsReported(t *testing.T) {
	t.Parallel()
	none := manifest.Fault{Origin: &mesh.Origin{Path: "consul-kv:typo"}, Severity: manifest.Warning, Code: kv.CodeNoKeys, Message: "there is no manifest"}
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/proxies": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Proxies, error) { return server.Proxies{}, nil }),
		"GET /v1/sources": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Sources, error) {
			return server.Sources{Files: []files.Status{{Source: "consul-kv", Faults: []manifest.Fault{none}}}}, nil
		}),
	})
	if code, out, _ := cli(t, "proxy-status", "--run-dir", run); code != exitInvalid || !strings.Contains(out, "FL0306") {
		t.Errorf("%d %s", code, out)
	}
}

// TestManifestTextIsSanitized: what is wrong with a text is told in words of who
// wrote it, of any key and file.
func TestManifestTextIsSanitized(t *testing.T) {
	t.Parallel()
	text := "apiVersion: networking.istio.io/v1\nkind: \"\\e[31mEvil\"\nmetadata: {name: \"x\\e]52;c;x\\a\", namespace: \"\\u202e\"}\nspec: {}\n"
	path := filepath.Join(t.TempDir(), "a\x1b[2J\u202e.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"validate", path}, {"analyze", path}, {"validate", path + "\x1b[2J"}} {
		code, out, errs := cli(t, args...)
		if code == 0 {
			t.Errorf("%q is not refused: %s", args, out)
		}
		wantPlain(t, out)
		wantPlain(t, errs)
	}
	_, faults := manifest.Decode(manifest.Options{Source: "files"}, path, []byte(text))
	st := lastgood.Status{Source: "files", State: lastgood.Partial, Reason: hostile, Faults: faults}
	run := adminOf(t, map[string]http.Handler{
		"GET /v1/proxies": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Proxies, error) {
			return server.Proxies{Warnings: []server.Warning{{Origin: hostile, Message: hostile}}}, nil
		}),
		"GET /v1/sources": admin.JSON(func(context.Context, *http.Request, struct{}) (server.Sources, error) {
			return server.Sources{Files: []files.Status{st}, NotReady: []string{hostile}}, nil
		}),
	})
	_, out, _ := cli(t, "proxy-status", "--run-dir", run)
	if !strings.Contains(out, "Evil") {
		t.Error(out)
	}
	wantPlain(t, out)
}
