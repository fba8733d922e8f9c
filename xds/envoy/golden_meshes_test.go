package envoy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestEnvoysAcceptWhatIsInForce has real Envoys check what is made of the meshes that are
// compared with istiod. They use everything that is in force.
func TestEnvoysAcceptWhatIsInForce(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("real Envoys check some thirty configurations")
	}
	const meshes = "../../internal/istiod/testdata/*/mesh.yaml"
	paths, err := filepath.Glob(meshes)
	fatalIf(t, err, "listing %q", meshes)
	if len(paths) == 0 {
		t.Fatalf("there is no %s", meshes)
	}
	for _, path := range paths {
		dir := filepath.Dir(path)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel()
			manifests, err := os.ReadFile(path)
			fatalIf(t, err, "reading %q", path)
			settings, err := os.ReadFile(filepath.Join(dir, "meshconfig.yaml"))
			if !os.IsNotExist(err) {
				fatalIf(t, err, "reading settings")
			}
			list, err := os.ReadFile(filepath.Join(dir, "proxies.yaml"))
			fatalIf(t, err, "reading proxies")
			var proxies []struct {
				Namespace      string            `yaml:"namespace"`
				ServiceAccount string            `yaml:"serviceAccount"`
				Labels         map[string]string `yaml:"labels"`
				Addresses      []string          `yaml:"addresses"`
				Interception   string            `yaml:"interception"`
				Locality       string            `yaml:"locality"`
			}
			fatalIf(t, yaml.Unmarshal(list, &proxies), "decoding proxies")
			// Envoy reads a list of revoked certificates itself, and there is none here. Envoys
			// before 1.39 ignore budgetInterval over xDS, and refuse it in a file. The recorded
			// istiod has no error codes of outlier detection.
			edit := strings.NewReplacer(", caCrl: /etc/crl.pem", "", ", budgetInterval: 1s", "",
				"consecutiveErrors: 7,", "consecutiveErrors: 7, outlierDetectionHttpErrorCodes: [500, 502],")
			// Envoy opens the files of access logs.
			s := snapshotOf(t, edit.Replace(string(manifests)), strings.ReplaceAll(string(settings), "/var/log/envoy/", t.TempDir()+"/"))
			for _, p := range proxies {
				check(t, buildAll(view.Build(s, view.Proxy{
					ID: "sidecar~" + p.Addresses[0] + "~vm." + p.Namespace + "~" + p.Namespace + ".svc.cluster.local", Type: view.Sidecar,
					ServiceAccount: mesh.ServiceAccount{Namespace: p.Namespace, Name: p.ServiceAccount}, Addresses: p.Addresses, Labels: p.Labels,
					Interception: view.Interception(p.Interception), Locality: mesh.ParseLocality(p.Locality), FileSecrets: true,
				})))
			}
		})
	}
}
