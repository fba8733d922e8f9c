package envoy

import (
	"cmp"
	"net/url"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

// TestRevocationListsShareNoSecret: Envoy judges a list of revoked certificates together with
// the roots, and rejects a secret for all clusters that use it. An agent that checks lists has a
// secret for each pair of both.
func TestRevocationListsShareNoSecret(t *testing.T) {
	t.Parallel()
	for i := range 12 {
		file, crl, lists := []string{"", "system", "/srv/ca.pem"}[i%3], []string{"", "/srv/crl.pem"}[i/3%2], i >= 6
		b := &clusterBuilder{p: &view.Cluster{FileSecrets: true, FileLists: lists}, c: &clusterv3.Cluster{}}
		ctx := b.originateTLS(&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: file, CaCrl: crl})
		text, err := protojson.Marshal(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(text), "file-root:"); got != (crl == "") {
			t.Errorf("roots %q, list %q: by secret %v", file, crl, got)
		}
		if got := strings.Contains(string(text), "/srv/crl.pem"); got != (crl != "" && !lists) {
			t.Errorf("roots %q, list %q: Envoy reads the list: %v", file, crl, got)
		}
		if got := strings.Contains(string(text), "files:ca="+url.QueryEscape(cmp.Or(file, "system"))+"&crl=%2Fsrv%2Fcrl.pem"); got != (crl != "" && lists) {
			t.Errorf("roots %q, list %q: the agent reads the list: %v", file, crl, got)
		}
	}
}
