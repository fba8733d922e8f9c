package authzcheck

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// settings are those of MeshConfig's pathNormalization, from none to all.
func settings() map[string]*hcmv3.HttpConnectionManager {
	return map[string]*hcmv3.HttpConnectionManager{
		"NONE": {}, "BASE": {NormalizePath: wrapperspb.Bool(true)},
		"MERGE_SLASHES": {NormalizePath: wrapperspb.Bool(true), MergeSlashes: true},
		"DECODE_AND_MERGE_SLASHES": {
			NormalizePath: wrapperspb.Bool(true), MergeSlashes: true,
			PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD,
		},
	}
}

// paths have all that normalization changes, alone and together.
func paths() []string {
	out := []string{
		"/", "/a", "/a/", "//", "///a//b", "/./", "/a/.", "/a/..", "/a/../", "/..", "/../..", "/a/b/../../../c", "/.a", "/a..", "/...",
		"/a?b=//../c", "/a/../b?x#y", "/a#b", "/%61", "/a%20b", "/caf%c3%a9", "/a;b=c/..;/d", "/a,b", "/a:b@c", "/a//../b", "/a/..;x/b", "/a/.;x/b", "/a/.;", "/a/..;", "/;/a", "/a/b;c/d", "///", "//a", "//?x", "/%7Ea%2Db%5f", "/%5A%7a%30%39%5B%40%60%7b%2f",
		"/%4", "/%zz", "/a/%2e%2e;/b", "/a/..%3b/b", "/a/./../b//",
	}
	for _, slash := range []string{"/", "%2f", "%2F", `\`, "%5c", "%5C", "//"} {
		for _, dots := range []string{"..", "%2e%2e", ".%2E", "%2e", "."} {
			out = append(out, "/a"+slash+dots+slash+"b", "/a/b"+slash+dots, "/"+dots+slash+"c")
		}
	}
	return out
}

// TestNormalizeAgreesWithEnvoy asks a real Envoy what it makes of each path.
func TestNormalizeAgreesWithEnvoy(t *testing.T) {
	t.Parallel()
	for name, m := range settings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := envoytest.FreePorts(t, 1)[0]
			extra := ""
			if m.GetNormalizePath().GetValue() {
				extra += `"normalize_path": true,`
			}
			if m.GetMergeSlashes() {
				extra += `"merge_slashes": true,`
			}
			extra += fmt.Sprintf(`"path_with_escaped_slashes_action": %d,`, max(m.GetPathWithEscapedSlashesAction(), hcmv3.HttpConnectionManager_KEEP_UNCHANGED))
			envoytest.Start(t, envoytest.Config{Bootstrap: []byte(fmt.Sprintf(echoBootstrap, port, extra))})
			envoytest.Eventually(t, envoytest.Patience, func() error { _, err := seen(t, port, "/"); return err })
			for _, path := range paths() {
				want, err := seen(t, port, path)
				if err != nil {
					t.Fatal(err)
				}
				got, err := normalize(path, m)
				if want == "" { // Envoy refuses the request
					continue
				}
				if err != nil || got != want {
					t.Errorf("%s: %q, %v; Envoy sees %q", path, got, err, want)
				}
			}
		})
	}
}

// echoBootstrap is an Envoy that answers with the path that its filters see.
const echoBootstrap = `{
 "admin": ` + envoytest.AdminJSON + `,
 "static_resources": {"listeners": [{
  "name": "in", "address": {"socket_address": {"address": "127.0.0.1", "port_value": %d}},
  "filter_chains": [{"filters": [{
   "name": "envoy.filters.network.http_connection_manager",
   "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "in", %s
    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [{
     "match": {"prefix": ""}, "direct_response": {"status": 200},
     "response_headers_to_add": [{"header": {"key": "x-path", "value": "%%REQ(:PATH)%%"}}]
    }]}]},
    "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]
   }
  }]}]
 }]}
}`

// seen sends a path as it is, which net/http's client would not, and returns what Envoy's
// filters see of it; empty if Envoy refuses the request.
func seen(t *testing.T, port int, path string) (string, error) {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	return strings.TrimSpace(res.Header.Get("X-Path")), nil
}
