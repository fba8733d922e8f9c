package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// TestSourceValues: a value belongs to the source that is named, and a slip in a name does not start.
func TestSourceValues(t *testing.T) {
	t.Parallel()
	roots := []files.Root{{Path: "/etc/mesh/shop", Namespaces: []string{"shop"}}, {Path: "/etc/mesh/all"}}
	f := sourceValuesFlag{"/etc/mesh/./shop/=b,a", "/etc/mesh/shop=b", keysSource + "=k"}
	if err := f.check(roots, "mesh=kv"); err != nil {
		t.Error(err)
	}
	if got := f.dir("/etc/mesh/shop"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("the directory has %q", got)
	}
	if got, other := f.keys(), f.dir("/etc/mesh/bank"); !slices.Equal(got, []string{"k"}) || other != nil {
		t.Errorf("the keys have %q, another directory has %q", got, other)
	}
	for value, said := range map[string]string{
		"/etc/mesh/shop": "write DIR=NAME", "=a": "write DIR=NAME", "/etc/mesh/shop=": "write DIR=NAME", "/etc/mesh/shop=a,*": "whole names",
		"/etc/mesh=a": "a directory of", "/etc/mesh/all=a": "not bound to a namespace",
	} {
		err := sourceValuesFlag{value}.check(roots, "")
		if err == nil || !strings.Contains(err.Error(), said) || !strings.Contains(err.Error(), "--config-credentials") {
			t.Errorf("%q: %v", value, err)
		}
	}
	for prefix, said := range map[string]string{"": "--consul-kv-prefix", "mesh": "not bound to a namespace"} {
		if err := (sourceValuesFlag{keysSource + "=a"}).check(roots, prefix); err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("keys below %q: %v", prefix, err)
		}
	}
}

// TestCredentialsOfBoundDirectories: the commands that judge for the server say what a gateway of another
// namespace does not use, and where it is written.
func TestCredentialsOfBoundDirectories(t *testing.T) {
	t.Parallel()
	rule := write(t, "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: a, namespace: shop}\n"+
		"spec:\n  host: a.example\n  trafficPolicy:\n    tls:\n      mode: SIMPLE\n      credentialName: partner\n")
	dir := filepath.Dir(rule)
	for _, c := range []struct {
		args    []string
		refused string
	}{
		{[]string{"analyze", dir + "=shop"}, rule + ":9:23: warning [FL0232] DestinationRule shop/a spec.trafficPolicy.tls.credentialName: the credential \"partner\" is not given to this source"},
		{[]string{"analyze", dir}, ""},
		{[]string{"analyze", dir + "=shop", "--config-credentials", dir + "=partner"}, ""},
		{[]string{"analyze", dir + "=shop", "--config-credentials", dir + "=other"}, "[FL0232]"},
		{[]string{"render", "--config-dir", dir + "=shop", "--ip", "10.0.0.1"}, "warning [FL0232] DestinationRule shop/a spec.trafficPolicy.tls.credentialName"},
		{[]string{"render", "--config-dir", dir + "=shop", "--ip", "10.0.0.1", "--config-credentials", dir + "=partner"}, ""},
	} {
		_, out, more := cli(t, c.args...)
		if out += more; c.refused != "" && !strings.Contains(out, c.refused) || c.refused == "" && strings.Contains(out, "FL0232") {
			t.Errorf("%q says %s", c.args, out)
		}
	}
}

// TestTablesAndRoutesOfBoundDirectories: the commands that judge for the server say what is refused to a bound
// directory, and of a directory that is bound to nothing they say nothing.
func TestTablesAndRoutesOfBoundDirectories(t *testing.T) {
	t.Parallel()
	const rule = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\n" +
		"spec:\n  host: a.shop.internal\n  trafficPolicy:\n    loadBalancer:\n      consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: %s}}\n  subsets: [%s]\n---\n"
	dirs := tenantDirs(t, map[string]string{
		"large": fmt.Sprintf(rule, "65538", ""),
		"many":  entry("shop", "a", "a.shop.internal", "10.0.0.1", "") + fmt.Sprintf(rule, "65537", strings.TrimSuffix(strings.Repeat("{name: v%d}, ", 15), ", ")),
		"shop": entry("shop", "a", "a.shop.internal", "10.0.0.1", "") +
			"apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: r, namespace: shop}\nspec:\n  hosts: [a.shop.internal]\n  gateways: [edge/shared]\n" +
			"  http: [{route: [{destination: {host: bank.bank.internal, port: {number: 80}}}]}]\n",
		"bank": entry("bank", "bank", "bank.bank.internal", "10.0.0.2", ""),
	})
	many := filepath.Join(dirs("many"), "all.yaml")
	text, err := os.ReadFile(many)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 15 {
		text = bytes.Replace(text, []byte("v%d"), []byte(fmt.Sprint("v", i)), 1)
	}
	if err := os.WriteFile(many, text, 0o600); err != nil {
		t.Fatal(err)
	}
	both := []string{
		dirs("shop") + "=shop", dirs("bank") + "=bank", "--config-hosts", dirs("shop") + "=*.shop.internal", "--config-hosts", dirs("bank") + "=*.bank.internal",
	}
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"validate", dirs("large") + "=shop"}, "all.yaml:9:23: error [FL0231] DestinationRule shop/r spec.trafficPolicy.loadBalancer.consistentHash: refused: the table of consistentHash has 65538 entries"},
		{[]string{"validate", dirs("large")}, ""},
		{[]string{"analyze", dirs("large")}, ""},
		{[]string{"analyze", dirs("many") + "=shop"}, "error [FL0231] DestinationRule shop/r spec.trafficPolicy.loadBalancer.consistentHash: refused: the tables of consistentHash have 1048592 entries"},
		{[]string{"analyze", dirs("many")}, ""},
		{slices.Concat([]string{"analyze"}, both), "warning [FL0233] VirtualService shop/r spec.http[0].route[0].destination: bank.bank.internal is a service of the namespace bank"},
		{slices.Concat([]string{"analyze", "--config-routes-only"}, both), "error [FL0233] VirtualService shop/r spec.http[0].route[0].destination: bank.bank.internal is a service of the namespace bank: refused"},
		{[]string{"analyze", "--config-routes-only", dirs("shop") + "=shop", "--config-hosts", dirs("shop") + "=*.shop.internal", dirs("bank")}, ""},
		{[]string{
			"render", "--config-dir", dirs("shop") + "=shop", "--config-dir", dirs("bank") + "=bank", "--ip", "10.9.9.9",
			"--config-hosts", dirs("shop") + "=*.shop.internal", "--config-hosts", dirs("bank") + "=*.bank.internal",
		}, "warning [FL0233]"},
	} {
		_, out, more := cli(t, c.args...)
		if out += more; c.says != "" && !strings.Contains(out, c.says) || c.says == "" && (strings.Contains(out, "FL0231") || strings.Contains(out, "FL0233")) {
			t.Errorf("%q says %s", c.args, out)
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
