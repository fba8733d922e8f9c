package kv

import (
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestKeysNameNoHostPaths unless a setting says so, bound to namespaces or not.
func TestKeysNameNoHostPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Namespaces: []string{"shop"}}} {
		sockets, files := c, c
		sockets.UnixSockets, files.Files = true, true
		for _, o := range []struct {
			got           manifest.Options
			sockets, file bool
		}{{c.options(), true, true}, {sockets.options(), false, true}, {files.options(), true, false}} {
			if o.got.NoUnixSockets != o.sockets || o.got.NoFiles != o.file {
				t.Errorf("%+v: %+v", c, o)
			}
		}
	}
}
