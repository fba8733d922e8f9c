package mapping

import "testing"

// TestCatalogNamesNoUnixSocket holds for the one place where an address of the
// catalog is judged.
func TestCatalogNamesNoUnixSocket(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"unix:///run/a.sock", "unix:/run/a.sock", "unix://@a", "UNIX:///run/a.sock", "/run/a.sock", "@a"} {
		for _, loopback := range []bool{false, true} {
			if address, wrong := usable(text, loopback); wrong == "" {
				t.Errorf("%q is used as %q", text, address)
			}
		}
	}
}
