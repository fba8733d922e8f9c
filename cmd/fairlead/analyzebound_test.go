package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewayOf is a Gateway of the namespace infra with hosts as they are written.
func gatewayOf(hosts string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: infra}
spec:
  selector: {app: edge}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: %s}]
---
`, hosts)
}

// ruleOf is a DestinationRule of the namespace shop with a traffic policy.
func ruleOf(name, host, policy string) string {
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %s, namespace: shop}
spec: {host: %q, trafficPolicy: %s}
---
`, name, host, policy)
}

// atGateway makes a VirtualService one for the Gateway of the namespace infra.
func atGateway(text string) string {
	return strings.Replace(text, "spec:\n", "spec:\n  gateways: [infra/edge]\n", 1)
}

// boundOf runs analyze --bound.
func boundOf(t *testing.T, args ...string) (boundReport, int) {
	t.Helper()
	code, out, errs := cli(t, append([]string{"analyze", "--bound", "-o", "json"}, args...)...)
	var r boundReport
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("analyze --bound: %d, %v\n%s\n%s", code, err, out, errs)
	}
	return r, code
}

// asked finds what is asked for.
func (r *boundReport) asked(source, what, name string) *boundAsk {
	for i, s := range r.Sources {
		for j, a := range s.Asks {
			if filepath.Base(s.Source) == source && a.For == what && a.Name == name {
				return &r.Sources[i].Asks[j]
			}
		}
	}
	return nil
}

// TestBoundShowsWhatSourcesHave: each way to have a name is listed, and what an object asks for is found in it, or has the
// flag that gives it.
func TestBoundShowsWhatSourcesHave(t *testing.T) {
	t.Parallel()
	dir := tenantDirs(t, map[string]string{
		"platform": gatewayOf(`["shop/www.example.com", "shop/*.com", "*/open.example"]`) + entry("shop", "legacy", "legacy.example", shopAddress, ""),
		"shop": entry("shop", "orders", "orders.shop.internal", shopAddress, "") + entry("shop", "own", "own.shop.svc.cluster.local", shopAddress, "") +
			strings.Replace(entry("shop", "more", "more.example", shopAddress, ""), "  location", "  addresses: [10.9.1.0/24]\n  location", 1) +
			routesTo("shop", "legacy", "legacy.example", "orders.shop.internal", "") +
			atGateway(routesTo("shop", "www", "www.example.com", "orders.shop.internal", "")) + atGateway(routesTo("shop", "open", "open.example", "orders.shop.internal", "")) +
			ruleOf("bank", "orders.shop.internal", "{tls: {mode: MUTUAL, credentialName: bank}}") + ruleOf("own", "own.shop.svc.cluster.local", "{tls: {mode: MUTUAL, credentialName: own}}") +
			ruleOf("files", "more.example", "{tls: {mode: MUTUAL, clientCertificate: /c, privateKey: /k}}") +
			strings.Replace(entry("shop", "private", "private.example", shopAddress, ""), "spec:\n", "spec:\n  exportTo: [\".\"]\n", 1),
		"empty": "",
	})
	shop := dir("shop")
	r, code := boundOf(t, dir("platform"), shop+"=shop", dir("empty")+"=empty", "--config-hosts", shop+"=*.shop.internal", "--config-credentials", shop+"=own")
	if code != 1 || len(r.Sources) != 2 || r.Sources[1].Source != dir("empty") { // files of the hosts are an error
		t.Fatalf("exit code %d: %+v", code, r)
	}
	for _, want := range []boundHas{
		{"*.shop.internal", mesh.ForAll, "pattern"},
		{"*.shop.svc.cluster.local", mesh.ForAll, "namespace shop"},
		{"www.example.com", mesh.ForAll, "a Gateway"},
		{"*.com", mesh.ForGateways, "a Gateway"},
		{"legacy.example", mesh.ForRoutes, "ServiceEntry shop/legacy, of a source without a namespace"},
	} {
		if !slices.Contains(r.Sources[0].Has, want) {
			t.Errorf("it does not have %v: %v", want, r.Sources[0].Has)
		}
	}
	for _, c := range []struct{ what, name, by, flag string }{
		{mesh.ForDeclare, "orders.shop.internal", "pattern *.shop.internal", ""},
		{mesh.ForDeclare, "own.shop.svc.cluster.local", "namespace *.shop.svc.cluster.local", ""},
		{mesh.ForDeclare, "more.example", "", "--config-hosts '" + shop + "=more.example'"},
		{mesh.ForAddress, "10.9.1.0/24", "", "--config-hosts '" + shop + "=10.9.1.0/24'"},
		{mesh.ForRoutes, "legacy.example", "declared in its namespace", ""},
		{mesh.ForGateways, "www.example.com", "Gateway www.example.com", ""},
		{mesh.ForGateways, "open.example", "", "--config-hosts '" + shop + "=open.example'"},
		{mesh.ForSecret, "bank", "", "--config-credentials '" + shop + "=bank'"},
		{forPath, "spec.trafficPolicy.tls.clientCertificate", "", "--allow-files '" + shop + "'"},
	} {
		if a := r.asked("shop", c.what, c.name); a == nil || a.By != c.by || a.Flag != c.flag || a.Line == 0 || a.Namespace != "shop" {
			t.Errorf("%s %s: %+v, want %q or %q", c.what, c.name, a, c.by, c.flag)
		}
	}
	if r.asked("shop", mesh.ForDeclare, "private.example") != nil || r.asked("shop", mesh.ForSecret, "own") != nil {
		t.Errorf("it asks for what concerns its own namespace, or what was given: %+v", r.Sources[0].Asks)
	}
	_, text, _ := cli(t, "analyze", "--bound", dir("platform"), shop+"=shop")
	for _, want := range []string{shop + " is bound to shop", "NOT GIVEN", "    --config-hosts '" + shop + "=more.example'\n", `declares "more.example", which belongs to nobody`} {
		if !strings.Contains(text, want) {
			t.Errorf("the text lacks %q:\n%s", want, text)
		}
	}
	if code, _, errs := cli(t, "analyze", "--bound", dir("platform")); code != 2 || !strings.Contains(errs, "DIR=NAMESPACE") {
		t.Errorf("nothing is bound: %d\n%s", code, errs)
	}
}

// earlierState is a state directory as the release before writes it: the records of owners, and the last good versions.
type earlierState struct {
	t   *testing.T
	dir string
}

func (s earlierState) seal(path string, v any) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		s.t.Fatal(err)
	}
	if err := durable.Seal(path, v, 1<<28); err != nil {
		s.t.Fatal(err)
	}
}

// owner is an element of the record.
type owner struct {
	Host      string `json:"host"`
	Namespace string `json:"namespace"`
	Routes    bool   `json:"routes,omitempty"`
}

// record writes host-owners.json, and range-owners.json, which has ports, ranges and wildcards.
func (s earlierState) record(owners ...owner) {
	s.t.Helper()
	type file struct {
		Version int     `json:"version"`
		Hosts   []owner `json:"hosts"`
	}
	hosts, ranges := file{Version: 1}, file{Version: 1}
	for _, o := range owners {
		if strings.ContainsAny(o.Host, "*/:") {
			ranges.Hosts = append(ranges.Hosts, o)
		} else {
			hosts.Hosts = append(hosts.Hosts, o)
		}
	}
	s.seal(filepath.Join(s.dir, "host-owners.json"), hosts)
	s.seal(filepath.Join(s.dir, "range-owners.json"), ranges)
}

// save writes the last good version of a file.
func (s earlierState) save(root, rel string, contents ...string) {
	s.t.Helper()
	e := lastgood.Entry{Root: root, Rel: rel}
	for _, c := range contents {
		e.Contents = append(e.Contents, []byte(c))
	}
	s.seal(lastgood.NewStore(filepath.Join(s.dir, "files", "files")).Path(root, rel), []lastgood.Entry{e})
}

// bytes are all files, with their times.
func (s earlierState) bytes() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	err := filepath.Walk(s.dir, func(path string, info os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		var content []byte
		if info.Mode().IsRegular() {
			content, err = os.ReadFile(path)
		}
		out[path] = info.ModTime().Format(time.RFC3339Nano) + string(content)
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// manyOf is a ServiceEntry that makes some number after expansion.
func manyOf(namespace, name string, ports, endpoints int) string {
	var p, e []string
	for i := range ports {
		p = append(p, fmt.Sprintf("{number: %d, name: http-%d, protocol: HTTP}", 1000+i, i))
	}
	for i := range endpoints {
		e = append(e, fmt.Sprintf("{address: 10.8.%d.%d}", i/250, i%250+1))
	}
	return fmt.Sprintf(`apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: %s}
spec:
  hosts: [%s.%s.svc.cluster.local]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [%s]
  endpoints: [%s]
---
`, name, namespace, name, namespace, strings.Join(p, ", "), strings.Join(e, ", "))
}

// costly is a ServiceEntry that costs each proxy 100 units for each port of each host.
func costly(namespace string, hosts, ports int) string {
	var h []string
	for i := range hosts {
		h = append(h, fmt.Sprintf("h%d.%s.svc.cluster.local", i, namespace))
	}
	return strings.Replace(manyOf(namespace, "costly", ports, 1), "[costly."+namespace+".svc.cluster.local]", "["+strings.Join(h, ", ")+"]", 1)
}

func ring(size int) string {
	return fmt.Sprintf("{loadBalancer: {consistentHash: {httpHeaderName: x, ringHash: {minimumRingSize: %d}}}}", size)
}

// TestUpgradeLosses: each kind of loss is listed, with the flag that keeps it; what was not given before is none.
func TestUpgradeLosses(t *testing.T) {
	t.Parallel()
	edge := gatewayOf(`["*/*.example.com"]`)
	for name, c := range map[string]struct {
		platform, shop, evil string
		owners               []owner
		saved                string // the last good version of shop/all.yaml
		args                 []string
		granted              bool
		what, lost, flag     string // flag is that of shop
		advice               string
	}{
		"host":              {shop: entry("shop", "a", "a.example", shopAddress, ""), owners: []owner{{Host: "a.example", Namespace: "shop"}}, granted: true, what: mesh.ForDeclare, lost: "a.example", flag: "--config-hosts 'SHOP=a.example'"},
		"wildcard":          {shop: entry("shop", "a", "a.corp.example", shopAddress, ""), owners: []owner{{Host: "*.corp.example", Namespace: "shop"}}, granted: true, what: mesh.ForDeclare, lost: "a.corp.example", flag: "--config-hosts 'SHOP=*.corp.example'"},
		"wildcard_of_two":   {shop: entry("shop", "a", "a.corp.example", shopAddress, ""), evil: entry("evil", "b", "b.corp.example", evilAddress, ""), owners: []owner{{Host: "*.corp.example", Namespace: "shop"}, {Host: "b.corp.example", Namespace: "evil"}}, granted: true, what: mesh.ForDeclare, lost: "a.corp.example", flag: "--config-hosts 'SHOP=a.corp.example'"},
		"no_object_has_it":  {owners: []owner{{Host: "gone.example", Namespace: "shop"}}, granted: true, what: forReserved, lost: "gone.example", flag: "--config-hosts 'SHOP=gone.example'"},
		"address":           {shop: strings.Replace(entry("shop", "a", "a.shop.svc.cluster.local", shopAddress, ""), "  location", "  addresses: [10.9.1.0/24]\n  location", 1), owners: []owner{{Host: "10.9.1.0/24", Namespace: "shop"}}, granted: true, what: mesh.ForAddress, lost: "10.9.1.0/24", flag: "--config-hosts 'SHOP=10.9.1.0/24'"},
		"route":             {shop: routesTo("shop", "a", "a.example", "a.shop.svc.cluster.local", ""), owners: []owner{{Host: "a.example", Namespace: "shop", Routes: true}}, granted: true, what: mesh.ForRoutes, lost: "a.example", flag: "--config-hosts 'SHOP=a.example'"},
		"route_at_gateways": {platform: edge, shop: atGateway(routesTo("shop", "a", "a.example.com", "a.shop.svc.cluster.local", "")), owners: []owner{}, granted: true, what: mesh.ForGateways, lost: "a.example.com", flag: "--config-hosts 'SHOP=a.example.com'"},
		"port": {
			shop: strings.ReplaceAll(entry("shop", "a", "a.shop.svc.cluster.local", shopAddress, ""), "HTTP", "TCP"), evil: strings.ReplaceAll(entry("evil", "b", "b.evil.svc.cluster.local", evilAddress, ""), "HTTP", "TCP"),
			owners: []owner{{Host: ":80", Namespace: "shop"}}, granted: true, what: mesh.ForPort, lost: ":80", advice: "an address by a pattern",
		},
		"short_names": {shop: entry("shop", "a", "x.corp.svc.cluster.local", shopAddress, ""), owners: []owner{{Host: "x.corp.svc.cluster.local", Namespace: "shop"}}, what: mesh.ForShort, lost: "x.corp.svc.cluster.local", advice: "whole name"},
		"credential":  {shop: ruleOf("a", "a.shop.svc.cluster.local", "{tls: {mode: MUTUAL, credentialName: bank}}"), what: mesh.ForSecret, lost: "bank", flag: "--config-credentials 'SHOP=bank'"},
		"object_size": {shop: manyOf("shop", "a", 30, 3500), what: forSize, lost: "spec.endpoints", advice: "no flag allows more"},
		"source_size": {shop: manyOf("shop", "a", 2, 30) + manyOf("shop", "b", 2, 50), args: []string{"--max-expansion", "100"}, what: forSize, lost: "", flag: "--max-expansion 160"},
		"table_size":  {shop: ruleOf("a", "a.shop.svc.cluster.local", ring(100_000)), what: forSize, lost: "spec.trafficPolicy.loadBalancer.consistentHash", advice: "no flag allows more"},
		"expression":  {shop: strings.Replace(routesTo("shop", "a", "a.shop.svc.cluster.local", "a.shop.svc.cluster.local", ""), "http: [{", `http: [{match: [{uri: {regex: "a{1000}b{1000}c{1000}d{1000}e{1000}"}}], `, 1), what: forSize, lost: "spec.http[0].match[0].uri.regex", advice: "no flag allows more"},
		"proxy_size":  {shop: costly("shop", 101, 100), what: forSize, lost: "", flag: "--max-expansion 1010000"},
		"table_sum":   {shop: manyOf("shop", "a", 17, 1) + ruleOf("a", "a.shop.svc.cluster.local", ring(65_536)), what: mesh.ForTables, lost: "spec.trafficPolicy.loadBalancer.consistentHash", advice: "may have 1048576"},
		"saved_size":  {shop: "kind: [\n", saved: manyOf("shop", "a", 30, 3500), what: forSize, lost: "spec.endpoints", advice: "no flag allows more"},
		"saved_host":  {shop: "kind: [\n", saved: entry("shop", "a", "a.example", shopAddress, ""), owners: []owner{{Host: "a.example", Namespace: "shop"}}, granted: true, what: mesh.ForDeclare, lost: "a.example", flag: "--config-hosts 'SHOP=a.example'"},
		"saved_sum":   {shop: "kind: [\n", saved: manyOf("shop", "a", 2, 60), args: []string{"--max-expansion", "100"}, what: forSize, lost: "", flag: "--max-expansion 120"},
		"third":       {platform: edge, shop: atGateway(routesTo("shop", "a", "a.shop.svc.cluster.local", "b.evil.svc.cluster.local", "")), evil: entry("evil", "b", "b.evil.svc.cluster.local", evilAddress, ""), args: []string{"--config-routes-only"}, what: mesh.ForThird, lost: "spec.http[0].route[0].destination", advice: "exportTo"},
		"never_had":   {shop: entry("shop", "a", "a.example", shopAddress, ""), owners: []owner{{Host: "a.example", Namespace: "evil"}}},
		"patterns":    {shop: entry("shop", "a", "a.example", shopAddress, ""), owners: []owner{{Host: "a.example", Namespace: "shop"}}, args: []string{"--config-hosts-only"}},
		"given":       {shop: entry("shop", "a", "a.example", shopAddress, ""), owners: []owner{{Host: "a.example", Namespace: "shop"}}, args: []string{"--config-hosts", "SHOP=*.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := tenantDirs(t, map[string]string{"platform": c.platform, "shop": c.shop, "evil": c.evil})
			state := earlierState{t, t.TempDir()}
			if c.owners != nil {
				state.record(c.owners...)
			}
			if c.saved != "" {
				state.save(dir("shop"), "all.yaml", "# shop\n"+c.saved)
			}
			before := state.bytes()
			args := []string{dir("platform"), dir("shop") + "=shop", dir("evil") + "=evil", "--state-dir", state.dir}
			for _, a := range c.args {
				args = append(args, strings.ReplaceAll(a, "SHOP", dir("shop")))
			}
			r, code := boundOf(t, args...)
			if after := state.bytes(); fmt.Sprint(before) != fmt.Sprint(after) {
				t.Error("the state directory differs")
			}
			var found *boundAsk
			for i, a := range slices.Concat(r.Upgrade.Lost, r.Upgrade.Granted) {
				if a.For == c.what && a.Name == c.lost && a.Granted == c.granted && (a.Namespace == "shop") && c.what != "" {
					found = &slices.Concat(r.Upgrade.Lost, r.Upgrade.Granted)[i]
				}
			}
			if c.what == "" {
				if len(r.Upgrade.Lost)+len(r.Upgrade.Granted) > 0 && name != "never_had" || slices.ContainsFunc(r.Upgrade.Granted, func(a boundAsk) bool { return a.Namespace == "shop" }) || code != 0 {
					t.Errorf("exit code %d: %+v", code, r.Upgrade)
				}
				return
			}
			flag := strings.ReplaceAll(c.flag, "SHOP", dir("shop"))
			if found == nil || found.Flag != flag || !strings.Contains(found.Advice, c.advice) || flag != "" && !slices.Contains(r.Upgrade.Flags, flag) {
				t.Errorf("%s %q: %+v, want %q\n%+v", c.what, c.lost, found, flag, r.Upgrade)
			}
			if lost := !c.granted || c.saved != ""; (code == 1) != lost { // a file that is broken is an error, too
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestUpgradeFlagsKeepAll follows the flags that are printed: without grants, everybody gets what they got, nothing
// is lost, and nothing needs host-grants.json any more.
func TestUpgradeFlagsKeepAll(t *testing.T) {
	t.Parallel()
	dir := tenantDirs(t, map[string]string{
		"platform": gatewayOf(`["*/*.example.com"]`),
		"shop": entry("shop", "a", "a.corp.example", "10.1.0.11", "") + entry("shop", "c", "c.corp.example", "10.1.0.12", "") + entry("shop", "sink", "sink.shop.svc.cluster.local", "10.1.0.13", "") +
			strings.Replace(entry("shop", "range", "range.shop.svc.cluster.local", "10.1.0.14", ""), "  location", "  addresses: [10.9.1.0/24, 10.9.3.3]\n  location", 1) +
			routesTo("shop", "route", "route.example", "sink.shop.svc.cluster.local", "") + atGateway(routesTo("shop", "www", "www.example.com", "sink.shop.svc.cluster.local", "")) +
			ruleOf("bank", "sink.shop.svc.cluster.local", "{tls: {mode: MUTUAL, credentialName: bank}}") + manyOf("shop", "many", 2, 60),
		"evil": entry("evil", "b", "b.corp.example", "10.6.0.11", "") + entry("evil", "d", "d.example", "10.6.0.12", ""),
	})
	state := earlierState{t, t.TempDir()}
	state.record(
		owner{Host: "*.corp.example", Namespace: "shop"}, owner{Host: "b.corp.example", Namespace: "evil"}, owner{Host: "d.example", Namespace: "evil"}, owner{Host: "10.9.1.0/24", Namespace: "shop"},
		owner{Host: "10.9.3.3", Namespace: "shop"}, owner{Host: "route.example", Namespace: "shop", Routes: true}, owner{Host: ":80", Namespace: "shop"},
	)
	args := []string{"--max-expansion", "100", dir("platform"), dir("shop") + "=shop", dir("evil") + "=evil", "--state-dir", state.dir}
	first, code := boundOf(t, args...)
	if code != 1 || len(first.Upgrade.Lost) != 2 || len(first.Upgrade.Granted) < 8 {
		t.Fatalf("exit code %d: %+v", code, first.Upgrade)
	}
	var flags []string
	for _, f := range first.Upgrade.Flags {
		name, value, _ := strings.Cut(f, " ")
		flags = append(flags, name, strings.Trim(value, "'")) // as a shell does
	}
	second, code := boundOf(t, append(slices.Clone(args[2:]), flags...)...)
	if code != 0 || len(second.Upgrade.Lost)+len(second.Upgrade.Granted) > 0 {
		t.Errorf("with %q, exit code %d: %+v", flags, code, second.Upgrade)
	}
	for _, s := range second.Sources {
		for _, a := range s.Asks {
			if a.By == "" || a.Granted {
				t.Errorf("with the flags it is not given: %+v", a)
			}
		}
	}
	without := []string{"--config-dir", dir("platform"), "--config-dir", dir("shop") + "=shop", "--config-dir", dir("evil") + "=evil"}
	got, _ := rendered(t, "third", append(slices.Clone(without), flags...)...)
	lacks, _ := rendered(t, "third", without...)
	for _, address := range []string{"10.1.0.11", "10.1.0.12", "10.6.0.11", "10.6.0.12"} {
		if !strings.Contains(got, `"`+address+`"`) || strings.Contains(lacks, `"`+address+`"`) {
			t.Errorf("a client in another namespace gets %s: %t; without the flags: %t", address, strings.Contains(got, address), strings.Contains(lacks, address))
		}
	}
}

// TestUpgradeLosesToTheCatalog: the catalog comes before what is granted; a pattern comes before the catalog.
func TestUpgradeLosesToTheCatalog(t *testing.T) {
	t.Parallel()
	dir := tenantDirs(t, map[string]string{"shop": entry("shop", "a", "a.service.consul", shopAddress, "")})
	tr, err := readTree(nil, []string{dir("shop") + "=shop"}, &boundFlags{}, hostPathFlags{})
	if err != nil {
		t.Fatal(err)
	}
	tr.Catalog = &catalogReading{fragments: []*mesh.Fragment{{Source: "consul", Services: []*mesh.Service{{
		Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "default", Name: "a"}, Origin: &mesh.Origin{Source: "consul", Path: "consul://dc1/service/a"}}, Hostname: "a.service.consul", Catalog: true,
		Ports: []mesh.Port{{Number: 80, Name: "http", Protocol: mesh.HTTP}},
	}}}}}
	owners := &server.Owners{Recorded: []mesh.Recorded{{Name: "a.service.consul", Namespace: "shop"}}}
	r := tr.boundReport(manifest.DefaultMeshConfig(), owners)
	if len(r.Upgrade.Lost) != 1 || r.Upgrade.Lost[0].Flag != "--config-hosts '"+dir("shop")+"=a.service.consul'" || !strings.Contains(r.Upgrade.Lost[0].Owner, "the catalog") {
		t.Errorf("lost: %+v", r.Upgrade)
	}
}

// TestUpgradeStateIsRead: what cannot be read is an error, and never "nothing is lost".
func TestUpgradeStateIsRead(t *testing.T) {
	t.Parallel()
	dir := tenantDirs(t, map[string]string{"shop": entry("shop", "a", "a.example", shopAddress, "")})
	for name, break_ := range map[string]func(s earlierState){
		"no_directory":    func(s earlierState) { _ = os.RemoveAll(s.dir) },
		"damaged_record":  func(s earlierState) { _ = os.WriteFile(filepath.Join(s.dir, "host-owners.json"), []byte("x"), 0o600) },
		"damaged_version": func(s earlierState) { s.save(dir("shop"), "all.yaml") },
		"damaged_grants":  func(s earlierState) { _ = os.WriteFile(filepath.Join(s.dir, "host-grants.json"), []byte("x"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := earlierState{t, t.TempDir()}
			s.record(owner{Host: "a.example", Namespace: "shop"})
			break_(s)
			if code, out, errs := cli(t, "analyze", "--bound", dir("shop")+"=shop", "--state-dir", s.dir); code != 2 || out != "" || errs == "" {
				t.Errorf("exit code %d\n%s%s", code, out, errs)
			}
		})
	}
}

// TestUpgradeOfKeys: what a prefix of Consul's key-value store had is compared with the versions that a source has saved of
// its keys: a key that is broken now counts as it was. The flags are those of the prefix.
func TestUpgradeOfKeys(t *testing.T) {
	t.Parallel()
	p := newPlace(t, consultest.Start(t, consultest.Options{}), "fairlead/upgrade")
	state := earlierState{t, t.TempDir()}
	state.record(owner{Host: "a.example", Namespace: "shop"})
	p.put("host.yaml", entry("shop", "a", "a.example", shopAddress, ""))
	p.put("teams/size.yaml", manyOf("shop", "many", 2, 60))
	src, err := kv.New(kv.Config{Logger: slog.New(slog.DiscardHandler), Client: client.Config{Address: p.a.Address()}, Prefix: p.prefix, Namespaces: []string{"shop"}, StateDir: state.dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, ended := make(chan *mesh.Fragment, 64), make(chan error, 1)
	go func() { ended <- src.Run(ctx, out) }()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		saved, err := savedVersions(state.dir)
		if err == nil && len(saved) != 2 {
			err = fmt.Errorf("%d texts are saved", len(saved))
		}
		return err
	})
	cancel()
	<-ended
	p.put("host.yaml", "kind: [\n")
	p.put("teams/size.yaml", "kind: [\n")
	before := state.bytes()
	args := []string{"--consul-address", p.a.Address(), "--consul-kv-prefix", p.prefix + "=shop", "--state-dir", state.dir, "--max-expansion", "100"}
	r, code := boundOf(t, args...)
	if after := state.bytes(); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Error("the state directory differs")
	}
	if code != 1 || len(r.Sources) != 1 || r.Sources[0].Source != mesh.KeysSource || len(r.Upgrade.Lost) != 1 || len(r.Upgrade.Granted) != 1 ||
		!slices.Equal(r.Upgrade.Flags, []string{"--consul-kv-hosts 'a.example'", "--max-expansion 121"}) {
		t.Fatalf("exit code %d: %+v %+v", code, r, r.Upgrade)
	}
	if lost, granted := r.Upgrade.Lost[0], r.Upgrade.Granted[0]; lost.For != forSize || lost.File != "consul-kv:fairlead/upgrade/teams/size.yaml" || granted.For != mesh.ForDeclare || granted.Name != "a.example" || granted.File != "consul-kv:fairlead/upgrade/host.yaml" {
		t.Errorf("lost %+v, granted %+v", lost, granted)
	}
	args[len(args)-1] = "121"
	r, _ = boundOf(t, append(args, "--consul-kv-hosts", "a.example")...)
	if len(r.Upgrade.Lost)+len(r.Upgrade.Granted) > 0 {
		t.Errorf("with the flags: %+v", r.Upgrade)
	}
	// Keys of another prefix are not those.
	args[3] = "fairlead=shop"
	p.prefix = "fairlead"
	p.put("host.yaml", "kind: [\n")
	if r, _ = boundOf(t, args...); slices.ContainsFunc(r.Upgrade.Granted, func(a boundAsk) bool { return a.For == mesh.ForDeclare }) {
		t.Errorf("versions of another prefix count: %+v", r.Upgrade)
	}
}
