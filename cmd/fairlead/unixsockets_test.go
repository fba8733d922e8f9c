package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/files"
)

func TestAllowUnixSockets(t *testing.T) {
	t.Parallel()
	roots := []files.Root{{Path: "/etc/mesh/shop", Namespaces: []string{"shop"}}, {Path: "/etc/mesh/bank", Namespaces: []string{"bank"}}}
	f := unixSocketsFlag{"/etc/mesh/./shop/", keysSource}
	if err := f.check(roots, "mesh"); err != nil || !f.keys() || !f.dir("/etc/mesh/shop") || f.dir("/etc/mesh/bank") || f.dir(keysSource) {
		t.Errorf("check = %v", err)
	}
	for said, f := range map[string]unixSocketsFlag{"--consul-kv-prefix": {keysSource}, "without its namespaces": {"/etc/mesh/shop=shop"}, "a directory of": {"/etc/mesh"}} {
		if err := f.check(roots, ""); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("%q: %v", f, err)
		}
	}
}

// TestBoundDirectoriesByEveryCommand holds that what the server keeps out is told
// by those who judge for it.
func TestBoundDirectoriesByEveryCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(write(t, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a, namespace: shop}\nspec: {address: \"unix:///srv/a.sock\"}\n"))
	for _, c := range []struct {
		args []string
		kept bool
	}{
		{[]string{"analyze", dir + "=shop"}, true},
		{[]string{"analyze", dir}, false},
		{[]string{"analyze", dir + "=shop", "--allow-unix-sockets", dir}, false},
		{[]string{"render", "--config-dir", dir + "=shop", "--ip", "10.0.0.1"}, true},
		{[]string{"render", "--config-dir", dir + "=shop", "--ip", "10.0.0.1", "--allow-unix-sockets", dir}, false},
	} {
		_, out, more := cli(t, c.args...)
		if out += more; strings.Contains(out, "is a unix socket, which an Envoy") != c.kept {
			t.Errorf("%q says %s", c.args, out)
		}
	}
}
