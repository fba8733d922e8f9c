package consultest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Version is the release of Consul that Fairlead is tested with; tools/consul
// builds it.
const Version = "1.20.1"

// Binary is the path of the Consul to run: FAIRLEAD_CONSUL, else what `make
// tools` has installed.
func Binary(tb testing.TB) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("runs a real Consul: not in -short")
	}
	if p := os.Getenv("FAIRLEAD_CONSUL"); p != "" {
		return p
	}
	p := filepath.Join(envoytest.ModuleRoot(tb), ".tools", "consul-"+Version, "consul")
	if _, err := os.Stat(p); err != nil {
		envoytest.Missing(tb, "Consul %s is not at %q: run `make tools`", Version, p)
	}
	return p
}
