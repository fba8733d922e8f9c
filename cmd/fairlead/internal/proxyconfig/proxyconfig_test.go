package proxyconfig_test

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
)

var update = flag.Bool("update", false, "write the expected tables")

// recorded is the config_dump of a real Envoy 1.40.0 behind an agent, made shorter, with what is
// in no dump.
func recorded(t *testing.T) []proxyconfig.Entry {
	t.Helper()
	raw, err := os.ReadFile("testdata/config_dump.json")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := proxyconfig.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	levels, err := proxyconfig.Loggers([]byte("active loggers:\n  admin: warning\n  http: debug\n"))
	if err != nil {
		t.Fatal(err)
	}
	own := proxyconfig.Entry{ // which a server has, and no Envoy
		Type: proxyconfig.ProxyConfig, Name: "default", Version: "1", Accepted: true,
		Resource: json.RawMessage(`{"status_port": 15020, "proxy_metadata": {"ISTIO_META_WORKLOAD_NAME": "echo-1"}}`),
	}
	names := []proxyconfig.Entry{
		{Type: proxyconfig.Name, Name: ".", Version: "1", Accepted: true, Resource: json.RawMessage(`{"name": ".", "answer_ttl": "30s"}`)},
		{
			Type: proxyconfig.Name, Name: "echo.shop.internal", Version: "2", Accepted: true, Origins: []string{"mesh.yaml:3:1"},
			Resource: json.RawMessage(`{"name": "echo.shop.internal", "endpoint": {"address_list": {"address": ["240.240.7.9", "2001:2::9"]}}}`),
		},
		{
			Type: proxyconfig.Name, Name: "srv/echo.shop.internal", Version: "3", Accepted: true,
			Resource: json.RawMessage(`{"name": "echo.shop.internal", "endpoint": {"service_list": {"services": [{"service_name": "http", "protocol": {"name": "tcp"}, "targets": [{"host_name": "echo.shop.internal", "port": 9080}]}]}}}`),
		},
	}
	return append(append(entries, levels, own), names...)
}

func write(t *testing.T, typ *proxyconfig.Type, format string, filters map[string]string, entries []proxyconfig.Entry) string {
	t.Helper()
	var b strings.Builder
	if err := typ.Write(&b, format, filters, entries); err != nil {
		t.Fatalf("%s as %s: %v", typ.Name, format, err)
	}
	return b.String()
}

// TestTables compares the table of each type with the expected one.
func TestTables(t *testing.T) {
	t.Parallel()
	entries := recorded(t)
	for _, typ := range proxyconfig.Types() {
		got := write(t, &typ, "short", nil, entries)
		if typ.Name == proxyconfig.Secret { // the clock decides
			got = strings.NewReplacer(" true  ", " ?     ", " false ", " ?     ").Replace(got)
		}
		path := filepath.Join("testdata", typ.Name+".txt")
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got; -update writes it):\n%s", typ.Name, diff)
		}
		if typ.Name != proxyconfig.VirtualHost && strings.Count(got, "\n") < 2 {
			t.Errorf("nothing of type %s is in the recorded dump", typ.Name)
		}
	}
}

// TestNames finds each type by all of its names, which are different.
func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, typ := range proxyconfig.Types() {
		for _, name := range append([]string{typ.Name}, typ.Aliases...) {
			if other, twice := seen[name]; twice {
				t.Errorf("%s is %s and %s", name, other, typ.Name)
			}
			seen[name] = typ.Name
			if found, err := proxyconfig.Find(name); err != nil || found.Name != typ.Name {
				t.Errorf("%s: %s, %v", name, found.Name, err)
			}
			if _, err := proxyconfig.FindServed(name); (err == nil) != typ.Server {
				t.Errorf("%s of a server: %v", name, err)
			}
		}
		if len(typ.Aliases) == 0 {
			t.Errorf("%s has no plural", typ.Name)
		}
	}
	_, err := proxyconfig.Find("clutser")
	for _, name := range proxyconfig.Names() {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("an unknown type: %v", err)
		}
	}
}

// TestFilters: with each filter of each type, only rows are left that have the value.
func TestFilters(t *testing.T) {
	t.Parallel()
	entries := recorded(t)
	values := map[string][]string{
		"fqdn": {"echo.shop.internal"}, "port": {"9080"}, "subset": {"v1"}, "direction": {"OUTBOUND"}, "address": {"127.0.0.11", "127.0.0.12"},
		"name":   {"9080", "default", "status_port", "node id", "admin", "outbound|9080|v1|echo.shop.internal", "127.0.0.11_9080", "envoy.filters.http.rbac.deny", "srv/echo.shop.internal"},
		"status": {"healthy", "active"}, "cluster": {"outbound|9080|v1|echo.shop.internal"},
	}
	for _, typ := range proxyconfig.Types() {
		for _, filter := range proxyconfig.Filters() {
			can := slices.Contains(proxyconfig.WithFilter(filter), typ.Name)
			if err := typ.Check(map[string]string{filter: "x"}); (err == nil) != can {
				t.Errorf("%s by %s: %v", typ.Name, filter, err)
			}
			if !can || typ.Name == proxyconfig.VirtualHost {
				continue
			}
			rows := 0
			for _, value := range values[filter] {
				some := write(t, &typ, "short", map[string]string{filter: value}, entries)
				rows += strings.Count(some, "\n") - 1
			}
			if rows == 0 {
				t.Errorf("%s by %s: nothing", typ.Name, filter)
			}
			if none := write(t, &typ, "json", map[string]string{filter: "no such thing"}, entries); strings.TrimSpace(none) != "[]" {
				t.Errorf("%s by %s: %s", typ.Name, filter, none)
			}
		}
	}
}

// TestNoKeys puts a private key into every place of a dump that has a name for one or a text,
// and looks for it in everything that is written.
func TestNoKeys(t *testing.T) {
	t.Parallel()
	key := "-----BEGIN PRIVATE KEY-----\nTOP5ECRET\n-----END PRIVATE KEY-----\n"
	encoded := base64.StdEncoding.EncodeToString([]byte(key))
	raw, err := os.ReadFile("testdata/config_dump.json")
	if err != nil {
		t.Fatal(err)
	}
	var dump any
	if err := json.Unmarshal(raw, &dump); err != nil {
		t.Fatal(err)
	}
	places := 0
	var spoil func(v any)
	spoil = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				switch k {
				case "private_key":
					v[k], places = map[string]any{"inline_bytes": encoded}, places+1
				case "generic_secret":
					v[k], places = map[string]any{"secret": map[string]any{"inline_string": "TOP5ECRET"}}, places+1
				case "inline_bytes":
					if b, err := base64.StdEncoding.DecodeString(e.(string)); err == nil { // a certificate's file with the key in it
						v[k], places = base64.StdEncoding.EncodeToString(append([]byte(key), b...)), places+1
					}
				default:
					spoil(e)
				}
			}
		case []any:
			for _, e := range v {
				spoil(e)
			}
		}
	}
	spoil(dump)
	if places < 4 {
		t.Fatalf("%d places for a key: the test is empty", places)
	}
	if raw, err = json.Marshal(dump); err != nil {
		t.Fatal(err)
	}
	entries, err := proxyconfig.Read(raw)
	if err != nil {
		t.Fatal(err)
	}
	entries = append(entries, proxyconfig.Entry{Type: proxyconfig.Log, Resource: json.RawMessage(`{"admin":"info"}`)})
	for _, typ := range proxyconfig.Types() {
		for _, format := range proxyconfig.Formats() {
			out := write(t, &typ, format, nil, entries)
			for _, secret := range []string{"PRIVATE KEY", "TOP5ECRET", encoded[:40], base64.StdEncoding.EncodeToString([]byte("TOP5ECRET"))} {
				if strings.Contains(out, secret) {
					t.Errorf("%s as %s has %q", typ.Name, format, secret)
				}
			}
		}
	}
}

// TestMerge: virtual hosts that travel by themselves are in their route configuration, and
// what became of them is what became of it.
func TestMerge(t *testing.T) {
	t.Parallel()
	entries := []proxyconfig.Entry{
		{Type: "route", Name: "80", Accepted: true, Resource: json.RawMessage(`{"name":"80","vhds":{"config_source":{"ads":{}}},"virtual_hosts":[{"name":"own","domains":["own"]}]}`)},
		{Type: "route", Name: "8", Accepted: true, Resource: json.RawMessage(`{"name":"8"}`)},
		{Type: "virtual-host", Name: "80/a:80", Rejected: "bad regex", Resource: json.RawMessage(`{"name":"80/a:80","domains":["a"],"routes":[{"match":{"prefix":"/"},"route":{"cluster":"c"}}]}`)},
		{Type: "virtual-host", Name: "81/b:81", Resource: json.RawMessage(`{"name":"81/b:81"}`)},
		{Type: "virtual-host", Name: "80/gone:80", Accepted: true},
	}
	before := string(entries[0].Resource)
	routes, err := proxyconfig.Find("routes")
	if err != nil {
		t.Fatal(err)
	}
	want := `NAME   VHOST NAME   DOMAINS   MATCH   DESTINATION   WEIGHT   TIMEOUT   VIRTUAL SERVICE
80     own          own       /*      404           -        -         -
80     a:80         a         /*      c             -        15s       -
`
	if got := write(t, &routes, "short", nil, entries); got != want {
		t.Errorf("%s", cmp.Diff(want, got))
	}
	merged, err := proxyconfig.Merge(entries)
	if err != nil || merged[0].Accepted || !strings.Contains(merged[0].Rejected, "80/a:80: bad regex") || strings.Contains(string(merged[0].Resource), "vhds") || !merged[1].Accepted {
		t.Errorf("%v %+v", err, merged[0])
	}
	if string(entries[0].Resource) != before || !entries[0].Accepted {
		t.Error("the argument is changed")
	}
}

// TestExtensionsThatNobodyKnows are shown as far as they are known, and whole as JSON.
func TestExtensionsThatNobodyKnows(t *testing.T) {
	t.Parallel()
	entries, err := proxyconfig.Read([]byte(`{"configs":[{"@type":"x","dynamic_listeners":[{"name":"l","active_state":{"version_info":"7","listener":{"@type":"x","name":"l","of_tomorrow":1,
		"filter_chains":[{"filters":[{"name":"acme","typed_config":{"@type":"type.googleapis.com/acme.Filter","mystery":"x"}}]}]}},"error_state":{"details":"no such filter"}}]},
		{"@type":"y","bananas":[1]}]}`))
	if err != nil || len(entries) != 1 || entries[0].Version != "7" || entries[0].Rejected != "no such filter" {
		t.Fatalf("%+v, %v", entries, err)
	}
	listeners, err := proxyconfig.Find("l")
	if err != nil {
		t.Fatal(err)
	}
	if table, doc := write(t, &listeners, "short", nil, entries), write(t, &listeners, "yaml", nil, entries); !strings.Contains(table, "acme") || !strings.Contains(doc, "mystery: x") || !strings.Contains(doc, "of_tomorrow: 1") {
		t.Errorf("%s\n%s", table, doc)
	}
	for _, no := range []string{"", "{}", "[]", "clusters: {}", `{"configs":[{"dynamic_listeners":7}]}`} {
		if _, err := proxyconfig.Read([]byte(no)); err == nil {
			t.Errorf("%q is a config_dump", no)
		}
	}
}

// TestHealth: Envoy's own view of endpoints has its place.
func TestHealth(t *testing.T) {
	t.Parallel()
	entries := []proxyconfig.Entry{{Type: "endpoint", Name: "c", Accepted: true, Resource: json.RawMessage(`{"cluster_name":"c","endpoints":[{"lb_endpoints":[
		{"endpoint":{"address":{"socket_address":{"address":"::1","port_value":80}}}},{"endpoint":{"address":{"pipe":{"path":"/s"}}}},{"endpoint":{"address":{"socket_address":{"address":"10.0.0.1","port_value":80}}}}]}]}`)}}
	answer := `{"cluster_statuses":[{"name":"c","host_statuses":[
		{"address":{"socket_address":{"address":"::1","port_value":80}},"health_status":{"eds_health_status":"HEALTHY","failed_outlier_check":true}},
		{"address":{"pipe":{"path":"/s"}},"health_status":{"eds_health_status":"HEALTHY","failed_active_health_check":true}}]}]}`
	if err := proxyconfig.AddHealth(entries, []byte(answer)); err != nil {
		t.Fatal(err)
	}
	endpoints, err := proxyconfig.Find("ep")
	if err != nil {
		t.Fatal(err)
	}
	want := `ADDRESS    PORT   STATUS      OUTLIER CHECK   CLUSTER   WEIGHT   LOCALITY   PRIORITY
::1        80     HEALTHY     FAILED          c         -        -          0
/s         -      UNHEALTHY   OK              c         -        -          0
10.0.0.1   80     HEALTHY     -               c         -        -          0
`
	if got := write(t, &endpoints, "short", nil, entries); got != want {
		t.Error(cmp.Diff(want, got))
	}
}
