package envoy

import (
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/protobuf/encoding/protojson"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/xds/view"
)

// TestRevocationListsShareNoSecret: Envoy judges a list of revoked certificates together with
// the roots, and rejects a secret for all clusters that use it.
func TestRevocationListsShareNoSecret(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"", "system", "/srv/ca.pem"} {
		for _, crl := range []string{"", "/srv/crl.pem"} {
			b := &clusterBuilder{p: &view.Cluster{FileSecrets: true}, c: &clusterv3.Cluster{}}
			ctx := b.originateTLS(&networking.ClientTLSSettings{Mode: networking.ClientTLSSettings_SIMPLE, CaCertificates: file, CaCrl: crl})
			text, err := protojson.Marshal(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Contains(string(text), "file-root:"); got != (crl == "") {
				t.Errorf("roots %q, list %q: by secret %v", file, crl, got)
			}
			if got := strings.Contains(string(text), "/srv/crl.pem"); got != (crl != "") {
				t.Errorf("roots %q, list %q: the list is there: %v", file, crl, got)
			}
		}
	}
}
