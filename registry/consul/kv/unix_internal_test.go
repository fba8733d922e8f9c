package kv

import (
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestKeysNameNoHostPaths unless a setting says so, bound to namespaces or not.
func TestKeysNameNoHostPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Namespaces: []string{"shop"}}} {
		sockets, files, local := c, c, c
		sockets.UnixSockets, files.Files, local.LocalAddresses = true, true, true
		for _, o := range []struct {
			got                  manifest.Options
			sockets, file, local bool
		}{{c.options(), true, true, true}, {sockets.options(), false, true, true}, {files.options(), true, false, true}, {local.options(), true, true, false}} {
			if o.got.NoUnixSockets != o.sockets || o.got.NoFiles != o.file || o.got.NoLocalAddresses != o.local {
				t.Errorf("%+v: %+v", c, o)
			}
		}
	}
}
