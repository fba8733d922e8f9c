package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// entry is a ServiceEntry at one address.
func entry(namespace, name, host, address, more string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s%s}
spec:
  hosts: [%s]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: %s, serviceAccount: %s}]
---
`, name, namespace, more, host, address, name)
}

// routesTo is a VirtualService that sends the requests of a host elsewhere.
func routesTo(namespace, name, host, to, more string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: %s%s}
spec:
  hosts: [%q]
  http: [{route: [{destination: {host: %s, port: {number: 80}}}]}]
---
`, name, namespace, more, host, to)
}

// tenantDirs are directories, each with one file.
func tenantDirs(t *testing.T, contents map[string]string) func(name string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range contents {
		if err := os.MkdirAll(filepath.Join(root, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name, "all.yaml"), []byte("# "+name+"\n"+content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return func(name string) string { return filepath.Join(root, name) }
}

// rendered is what a proxy of a namespace gets of directories.
func rendered(t *testing.T, namespace string, args ...string) (out, errs string) {
	t.Helper()
	code, out, errs := cli(t, append([]string{"render", "--namespace", namespace, "--ip", "10.9.9.9"}, args...)...)
	if code != 0 {
		t.Fatalf("render: %d\n%s", code, errs)
	}
	return out, errs
}

var toSink = regexp.MustCompile(`"cluster": *"outbound\|80\|\|sink\.evil\.internal"`)

const (
	shopAddress = "10.1.0.1"
	evilAddress = "10.6.6.6"
	oldest      = `, creationTimestamp: "1970-01-01T00:00:01Z"`
)

// TestBoundDirectoryBinds attacks the host of a namespace from a directory that is
// bound to another one, in every way there is to name a host. Clients of a third
// namespace get none of it; those of the attacker's own do, as consumers may.
func TestBoundDirectoryBinds(t *testing.T) {
	t.Parallel()
	const host = "orders.shop.internal"
	sink := entry("evil", "sink", "sink.evil.internal", evilAddress, "")
	for name, c := range map[string]struct {
		platform, shop, evil string
		flags                []string
	}{
		"routes":          {shop: entry("shop", "orders", host, shopAddress, ""), flags: []string{"--config-hosts", "shop=orders.shop.internal"}, evil: sink + routesTo("evil", "a", host, "sink.evil.internal", oldest)},
		"declares":        {platform: entry("shop", "orders", host, shopAddress, ""), evil: entry("evil", "a", host, evilAddress, oldest)},
		"wildcard":        {shop: entry("shop", "orders", host, shopAddress, ""), flags: []string{"--config-hosts", "shop=orders.shop.internal"}, evil: sink + routesTo("evil", "a", "*.shop.internal", "sink.evil.internal", oldest)},
		"routes_platform": {platform: entry("shop", "orders", host, shopAddress, ""), evil: sink + routesTo("evil", "a", host, "sink.evil.internal", oldest)},
		"below_wildcard":  {platform: entry("shop", "orders", "'*.shop.internal'", shopAddress, ""), evil: entry("evil", "a", host, evilAddress, oldest)},
		"pattern": {
			shop: entry("shop", "other", "other.shop.internal", shopAddress, ""), evil: entry("evil", "a", host, evilAddress, oldest),
			flags: []string{"--config-hosts", "shop=*.shop.internal"},
		},
		"nobody_else": {
			shop: entry("shop", "other", "other.shop.internal", shopAddress, ""), evil: entry("evil", "a", host, evilAddress, oldest),
		},
		"same_name": {
			platform: entry("evil", "a", "a.platform.internal", shopAddress, ""), evil: entry("evil", "a", "a.platform.internal", evilAddress, oldest),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tenantDirs(t, map[string]string{"platform": c.platform, "shop": c.shop, "evil": c.evil})
			args := []string{"--config-dir", dir("evil") + "=evil", "--config-dir", dir("shop") + "=shop", "--config-dir", dir("platform"), "--config-hosts", dir("evil") + "=sink.evil.internal"}
			for _, f := range c.flags {
				args = append(args, strings.Replace(f, "shop=", dir("shop")+"=", 1))
			}
			out, errs := rendered(t, "third", args...)
			if name != "nobody_else" && name != "pattern" && !strings.Contains(out, shopAddress) {
				t.Errorf("the owner is not served:\n%s", out)
			}
			if strings.Contains(c.evil, "VirtualService") {
				if n := len(toSink.FindAllString(out, -1)); n != 1 { // those for the sink itself
					t.Errorf("requests of a third namespace go to the attacker on %d routes:\n%s", n, out)
				}
			} else if strings.Contains(out, evilAddress) {
				t.Errorf("requests of a third namespace go to the attacker:\n%s", out)
			}
			if name == "same_name" {
				return
			}
			if !strings.Contains(errs, "FL0226") || !strings.Contains(errs, filepath.Join("evil", "all.yaml")) {
				t.Errorf("it is not reported:\n%s", errs)
			}
			if own, _ := rendered(t, "evil", args...); !strings.Contains(own, evilAddress) {
				t.Errorf("its own clients do not get it:\n%s", own)
			}
			code, found, _ := cli(t, append([]string{"analyze", dir("evil") + "=evil", dir("shop") + "=shop", dir("platform")}, args[6:]...)...)
			if code != 0 || strings.Count(found, "FL0226") == 0 || !strings.Contains(found, "spec.hosts[0]") {
				t.Errorf("analyze: %d\n%s", code, found)
			}
			wantAdvice(t, name, found, dir("evil"), dir("shop"))
		})
	}
}

// TestBoundDirectoryTakesNoAddress attacks the address of a namespace from a directory
// that is bound to another one. Clients of a third namespace are not concerned, and
// what is written is told with its position.
func TestBoundDirectoryTakesNoAddress(t *testing.T) {
	t.Parallel()
	addressed := func(namespace, name, address, protocol, endpoint string) string {
		e := entry(namespace, name, name+"."+namespace+".internal", endpoint, "")
		e = strings.Replace(e, "protocol: HTTP", "protocol: "+protocol, 1)
		return strings.Replace(e, "  location:", "  addresses: [\""+address+"\"]\n  location:", 1)
	}
	for name, c := range map[string]struct{ shop, evil string }{
		"http":     {addressed("shop", "orders", "10.96.0.5", "HTTP", shopAddress), addressed("evil", "a", "10.96.0.5", "HTTP", evilAddress)},
		"tcp":      {addressed("shop", "orders", "10.96.0.5", "TCP", shopAddress), addressed("evil", "a", "10.96.0.5", "TCP", evilAddress)},
		"range":    {addressed("shop", "orders", "10.96.0.5", "HTTP", shopAddress), addressed("evil", "a", "10.96.0.0/16", "TCP", evilAddress)},
		"all":      {addressed("shop", "orders", "10.96.0.5", "HTTP", shopAddress), addressed("evil", "a", "0.0.0.0/0", "TCP", evilAddress)},
		"instance": {entry("shop", "orders", "orders.shop.internal", shopAddress, ""), addressed("evil", "a", shopAddress, "TCP", evilAddress)},
	} {
		for _, binding := range []string{"=shop", ""} {
			if binding != "" && name == "instance" {
				continue // endpoints have no address to themselves
			}
			t.Run(strings.Replace(name+binding, "=", "-", 1), func(t *testing.T) {
				t.Parallel()
				ns := "tenant"
				dir := tenantDirs(t, map[string]string{"shop": c.shop, "evil": strings.ReplaceAll(c.evil, "evil", ns)})
				hosts := []string{"--config-hosts", dir("evil") + "=a.tenant.internal"}
				if binding != "" {
					hosts = append(hosts, "--config-hosts", dir("shop")+"=orders.shop.internal,10.96.0.5")
				}
				args := append([]string{"--config-dir", dir("evil") + "=" + ns, "--config-dir", dir("shop") + binding}, hosts...)
				out, errs := rendered(t, "third", args...)
				if strings.Contains(out, evilAddress) || !strings.Contains(out, shopAddress) {
					t.Errorf("a third namespace gets:\n%s", out)
				}
				if own, _ := rendered(t, ns, args...); !strings.Contains(own, evilAddress) {
					t.Errorf("its own clients do not get it:\n%s", own)
				}
				code, found, _ := cli(t, append([]string{"analyze", dir("evil") + "=" + ns, dir("shop") + binding}, hosts...)...)
				if code != 0 || !strings.Contains(errs, "FL0226") || !strings.Contains(found, "FL0226") || !strings.Contains(found, "spec.addresses[0]") {
					t.Errorf("reported: %d %s\n%s", code, found, errs)
				}
			})
		}
	}
}

// wantAdvice checks that FL0226 has the flag that gives the host, or says why none does.
func wantAdvice(t *testing.T, name, found, evil, shop string) {
	t.Helper()
	want := "write --config-hosts '" + evil + "=orders.shop.internal'"
	switch name {
	case "routes", "pattern":
		pattern := map[string]string{"routes": "orders.shop.internal", "pattern": "*.shop.internal"}[name]
		want = "take it out of the pattern " + pattern + " of " + shop + " first, then " + want
	case "wildcard":
		want = "take it out of the pattern orders.shop.internal of " + shop + " first, then write --config-hosts '" + evil + "=*.shop.internal'"
	case "declares":
		want = "no pattern changes that: take the host out of one of the two objects"
	}
	if !strings.Contains(found, want) {
		t.Errorf("it does not say %q:\n%s", want, found)
	}
}

// TestRoutesInTheNamespaceOfTheHost: who is bound to the namespace in which a host
// is declared routes it for everybody.
func TestRoutesInTheNamespaceOfTheHost(t *testing.T) {
	t.Parallel()
	dir := tenantDirs(t, map[string]string{
		"platform": entry("shop", "orders", "orders.shop.internal", shopAddress, "") + entry("shop", "canary", "canary.shop.internal", evilAddress, ""),
		"shop":     routesTo("shop", "orders", "orders.shop.internal", "canary.shop.internal", ""),
	})
	bound, errs := rendered(t, "third", "--config-dir", dir("platform"), "--config-dir", dir("shop")+"=shop")
	free, _ := rendered(t, "third", "--config-dir", dir("platform"), "--config-dir", dir("shop"))
	if bound != free || errs != "" {
		t.Errorf("being bound to the namespace changes its routes\n%s", errs)
	}
}

// TestBoundSettings refuses settings of bound directories that cannot be meant.
func TestBoundSettings(t *testing.T) {
	t.Parallel()
	dir := tenantDirs(t, map[string]string{"a": "", "b": ""})
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"overlap":           {[]string{"--config-dir", dir("a") + "=a", "--config-dir", dir("b") + "=b", "--config-hosts", dir("a") + "=*.x.example", "--config-hosts", dir("b") + "=c.x.example"}, "in common"},
		"unbound":           {[]string{"--config-dir", dir("a"), "--config-hosts", dir("a") + "=*.x.example"}, "not bound to a namespace"},
		"unknown directory": {[]string{"--config-dir", dir("a") + "=a", "--config-hosts", dir("b") + "=*.x.example"}, "none of the directories"},
		"pattern":           {[]string{"--config-dir", dir("a") + "=a", "--config-hosts", dir("a") + "=*"}, "is not a host"},
		"root":              {[]string{"--config-dir", dir("a") + "=istio-system"}, "--bind-root-namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := t.TempDir()
			code, _, errs := cli(t, append([]string{"server", "--state-dir", run, "--run-dir", run, "--xds-address", "127.0.0.1:0", "--http-address", ""}, c.args...)...)
			if code != 2 || !strings.Contains(errs, c.want) {
				t.Errorf("server: %d\n%s", code, errs)
			}
			if name == "root" {
				return
			}
			if code, _, errs := cli(t, append([]string{"render", "--ip", "10.0.0.1"}, c.args...)...); code != 2 || !strings.Contains(errs, c.want) {
				t.Errorf("render: %d\n%s", code, errs)
			}
		})
	}
}

// TestFlagsOfSourcesAreCheckedAsByTheServer: analyze and render refuse flags with which the server does not start, with the
// same words. A directory that is written in another way would be read as a source that is given nothing.
func TestFlagsOfSourcesAreCheckedAsByTheServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open, shop := filepath.Join(dir, "open"), filepath.Join(dir, "shop")
	for _, d := range []string{open, shop} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	state := filepath.Join(dir, "state")
	flags := []string{"--config-credentials", shop + "s=bank", "--config-credentials", open + "=bank", "--max-expansion", "0"}
	want := []string{"--config-credentials", "--max-expansion 0"}
	for _, f := range (&hostPathFlags{}).paths() {
		flags, want = append(flags, "--"+f.name, shop+"s"), append(want, "--"+f.name+" ")
	}
	want = append(want, "needs none of this")
	keys := []string{"--consul-address", "http://127.0.0.1:1", "--consul-kv-prefix", "mesh", "--consul-kv-hosts", "*.shop.internal"}
	for name, args := range map[string][]string{
		"server":  {"server", "--state-dir", state, "--config-dir", open, "--config-dir", shop + "=shop"},
		"analyze": {"analyze", open, shop + "=shop"},
		"bound":   {"analyze", "--bound", open, shop + "=shop"},
		"render":  {"render", "--config-dir", open, "--config-dir", shop + "=shop"},
	} {
		code, _, errs := cli(t, append(slices.Clone(args), flags...)...)
		for _, text := range want {
			if code != exitFailed || !strings.Contains(errs, text) {
				t.Errorf("%s: exit code %d, without %q: %s", name, code, text, errs)
			}
		}
		if code, _, errs := cli(t, append(slices.Clone(args), keys...)...); code != exitFailed || !strings.Contains(errs, "--consul-kv-hosts: the prefix is not bound") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
	}
}
