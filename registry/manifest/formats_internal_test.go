package manifest

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/fairlead/fairlead/internal/envoytest"
)

func TestFormatFault(t *testing.T) {
	t.Parallel()
	for format, ok := range map[string]bool{
		"":                                       true,
		"plain (text) :3":                        true,
		"100%%":                                  true,
		"%%ENVIRONMENT(HOME)%%":                  true, // no command
		"%REQ(X)%%REQ(Y)%":                       true,
		"%START_TIME(%Y)%%%":                     true,
		"%PROTOCOL()%":                           true,
		`%UPSTREAM_METADATA(["a", "b"])%`:        true,
		"%":                                      false,
		"50% off":                                false,
		"%%%":                                    false,
		"%protocol%":                             false,
		"%PROTOCOL(x)%":                          false,
		"%PROTOCOL:3%":                           false,
		"%REQ%":                                  false,
		"%REQ()%":                                false,
		"%REQ(X?Y?Z)%":                           false,
		"%REQ(X":                                 false,
		"%REQ(X):%":                              false,
		"%REQ(X):999999999999999%":               false,
		"%DYNAMIC_METADATA(a:b):3%":              false, // not on every Envoy
		"%START_TIME(%n)%":                       false,
		"%FOO%":                                  false,
		"%ENVIRONMENT(HOME)%":                    false,
		"%ENVIRONMENT(HOME):3%":                  false,
		"%FILE_CONTENT(/etc/hostname)%":          false,
		"%GENERIC_SECRET(key)%":                  false,
		"%CEL(xds.node.id)%":                     false,
		"%%%ENVIRONMENT(HOME)%%%":                false,
		"%REQ(%ENVIRONMENT(HOME)%)%":             false,
		"%REQ(X)%%ENVIRONMENT(HOME)%":            false,
		"%START_TIME(%Y)%ENVIRONMENT(HOME)%":     false,
		`%COALESCE({"operators":["HOSTNAME"]})%`: false,
	} {
		if why := formatFault(format); (why == "") != ok {
			t.Errorf("%q: %q, want it taken: %v", format, why, ok)
		}
	}
}

// TestFormatFieldsAreThere has every name of the table be a field that there is.
func TestFormatFieldsAreThere(t *testing.T) {
	t.Parallel()
	for name := range formats {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if _, field := d.(protoreflect.FieldDescriptor); err != nil || !field {
			t.Errorf("%s is not a field: %v", name, err)
		}
	}
}

// TestFormatPage holds the user's page against the table that decides.
func TestFormatPage(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- commands made by: go test ./registry/manifest -run FormatPage -update -->\n", "<!-- end of commands -->\n"
	page, err := os.ReadFile(inForcePage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no part between %q and %q", inForcePage, begin, end)
	}
	var list strings.Builder
	for _, forms := range FormatCommands() {
		forms = slices.DeleteFunc(forms, func(f string) bool { return strings.HasSuffix(f, ":8%") }) // not Istio's, in headers
		list.WriteString("`" + forms[len(forms)-1] + "`\n")
	}
	want := head + begin + list.String() + end + tail
	if f := flag.Lookup("update"); f != nil && f.Value.String() == "true" {
		if err := os.WriteFile(inForcePage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(page) != want {
		t.Errorf("%s does not have all commands: go test ./registry/manifest -run FormatPage -update", inForcePage)
	}
}

// TestFormatsOnEnvoys has every release take all commands that are in force, and
// what is made of their pieces at random, and none of it read the environment.
func TestFormatsOnEnvoys(t *testing.T) {
	t.Parallel()
	const secret = "not-for-tenants"
	values := slices.Concat(FormatCommands()...)
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for len(values) < 1500 {
		if value := randomFormat(rng); formatFault(value) == "" {
			values = append(values, value)
		} else {
			refused++
		}
	}
	t.Logf("%d values, and %d that are refused", len(values), refused)
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			port := envoytest.FreePorts(t, 1)[0]
			e := envoytest.Start(t, envoytest.Config{
				Bootstrap: formatBootstrap(t, port, values), Version: version, Env: append(os.Environ(), "HOME="+secret),
			})
			for page := range (len(values) + formatsEach - 1) / formatsEach {
				for name, list := range answer(t, fmt.Sprintf("http://127.0.0.1:%d/%d", port, page)) {
					if strings.Contains(strings.Join(list, ""), secret) {
						t.Errorf("%s: %q shows the environment", name, list)
					}
				}
			}
			e.NoRejections(t)
		})
	}
}

// answer is the header of an answer.
func answer(t *testing.T, url string) http.Header {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Timeout: envoytest.Attempt}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d of %s", resp.StatusCode, url)
	}
	return resp.Header
}

// randomFormat puts pieces of formats together, most of which do not fit.
func randomFormat(rng *rand.Rand) string {
	pieces := []string{
		"%", "%%", "(", ")", ":", "8", "REQ", "ENVIRONMENT", "(HOME)", "(X)", "(:PATH)", "%ENVIRONMENT(HOME)%", "%REQ(X)%", "START_TIME", "(%Y", "%f",
		"PROTOCOL", " ", "a", "?", `["a"]`, "%PROTOCOL%", "_", "[", "\"", ",", "()", "%START_TIME(%Y)%", ":3%", "%PATH(NQ):3%",
	}
	var b strings.Builder
	for range 1 + rng.IntN(6) {
		b.WriteString(pieces[rng.IntN(len(pieces))])
	}
	return b.String()
}

// formatsEach is how many headers one answer has.
const formatsEach = 50

// formatBootstrap is an Envoy that answers with the values as headers.
func formatBootstrap(t *testing.T, port int, values []string) []byte {
	t.Helper()
	type object = map[string]any
	var routes []object
	for i := 0; i < len(values); i += formatsEach {
		var add []object
		for j, v := range values[i:min(i+formatsEach, len(values))] {
			add = append(add, object{"header": object{"key": fmt.Sprintf("x-%d", j), "value": v}, "keep_empty_value": true})
		}
		routes = append(routes, object{
			"match": object{"path": fmt.Sprintf("/%d", i/formatsEach)}, "direct_response": object{"status": 200}, "response_headers_to_add": add,
		})
	}
	hcm := object{
		"@type":        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix":  "formats",
		"route_config": object{"virtual_hosts": []object{{"name": "all", "domains": []string{"*"}, "routes": routes}}},
		"http_filters": []object{{"name": "router", "typed_config": object{"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}},
	}
	b, err := json.Marshal(object{
		"admin": json.RawMessage(envoytest.AdminJSON),
		"static_resources": object{"listeners": []object{{
			"name": "formats", "address": object{"socket_address": object{"address": "127.0.0.1", "port_value": port}},
			"filter_chains": []object{{"filters": []object{{"name": "hcm", "typed_config": hcm}}}},
		}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
