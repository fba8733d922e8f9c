package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/files"
)

func TestAllowHostPaths(t *testing.T) {
	t.Parallel()
	roots := []files.Root{{Path: "/etc/mesh/shop", Namespaces: []string{"shop"}}, {Path: "/etc/mesh/bank", Namespaces: []string{"bank"}}}
	f := sourcesFlag{"/etc/mesh/./shop/", keysSource}
	if !f.keys() || !f.dir("/etc/mesh/shop") || f.dir("/etc/mesh/bank") || f.dir(keysSource) {
		t.Errorf("%q allows something else", f)
	}
	for flag, both := range map[string]func(sourcesFlag) hostPathFlags{
		"--allow-unix-sockets":    func(f sourcesFlag) hostPathFlags { return hostPathFlags{unixSockets: f} },
		"--allow-files":           func(f sourcesFlag) hostPathFlags { return hostPathFlags{files: f} },
		"--allow-local-addresses": func(f sourcesFlag) hostPathFlags { return hostPathFlags{localAddresses: f} },
	} {
		all := both(f)
		if err := all.check(roots, "mesh"); err != nil {
			t.Errorf("%s: %v", flag, err)
		}
		for said, f := range map[string]sourcesFlag{"--consul-kv-prefix": {keysSource}, "without its namespaces": {"/etc/mesh/shop=shop"}, "a directory of": {"/etc/mesh"}} {
			all := both(f)
			if err := all.check(roots, ""); err == nil || !strings.Contains(err.Error(), said) || !strings.Contains(err.Error(), flag) {
				t.Errorf("%s %q: %v", flag, f, err)
			}
		}
		root := roots[0]
		all.allow(&root)
		got := map[string]bool{"--allow-unix-sockets": !root.NoUnixSockets(), "--allow-files": !root.NoFiles(), "--allow-local-addresses": !root.NoLocalAddresses()}
		for other, allowed := range got {
			if allowed != (other == flag) {
				t.Errorf("%s allows %+v", flag, root)
			}
		}
	}
}

// TestBoundDirectoriesByEveryCommand holds that what the server keeps out is told
// by those who judge for it.
func TestBoundDirectoriesByEveryCommand(t *testing.T) {
	t.Parallel()
	dir := filepath.Dir(write(t, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a, namespace: shop}\nspec: {address: \"unix:///srv/a.sock\"}\n"))
	keys := filepath.Dir(write(t, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\n"+
		"spec: {host: a.example, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: /srv/ca.pem}}}\n"))
	local := filepath.Dir(write(t, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: a, namespace: shop}\nspec: {address: 169.254.169.254}\n"))
	for _, c := range []struct {
		args []string
		kept bool
	}{
		{[]string{"analyze", local + "=shop"}, true},
		{[]string{"analyze", local}, false},
		{[]string{"analyze", local + "=shop", "--allow-local-addresses", local}, false},
		{[]string{"analyze", local + "=shop", "--allow-unix-sockets", local}, true},
		{[]string{"render", "--config-dir", local + "=shop", "--ip", "10.0.0.1"}, true},
		{[]string{"render", "--config-dir", local + "=shop", "--ip", "10.0.0.1", "--allow-local-addresses", local}, false},
		{[]string{"analyze", dir + "=shop"}, true},
		{[]string{"analyze", dir}, false},
		{[]string{"analyze", dir + "=shop", "--allow-unix-sockets", dir}, false},
		{[]string{"render", "--config-dir", dir + "=shop", "--ip", "10.0.0.1"}, true},
		{[]string{"render", "--config-dir", dir + "=shop", "--ip", "10.0.0.1", "--allow-unix-sockets", dir}, false},
		{[]string{"analyze", keys + "=shop", "--allow-unix-sockets", keys}, true},
		{[]string{"analyze", keys}, false},
		{[]string{"analyze", keys + "=shop", "--allow-files", keys}, false},
		{[]string{"render", "--config-dir", keys + "=shop", "--ip", "10.0.0.1"}, true},
		{[]string{"render", "--config-dir", keys + "=shop", "--ip", "10.0.0.1", "--allow-files", keys}, false},
	} {
		_, out, more := cli(t, c.args...)
		if out += more; strings.Contains(out, "and this source may not name any") != c.kept {
			t.Errorf("%q says %s", c.args, out)
		}
	}
}
