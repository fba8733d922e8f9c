package kv

import "testing"

// TestKeysNameNoUnixSockets unless a setting says so, bound to namespaces or not.
func TestKeysNameNoUnixSockets(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{}, {Namespaces: []string{"shop"}}} {
		refused := c.options().NoUnixSockets
		c.UnixSockets = true
		if !refused || c.options().NoUnixSockets {
			t.Errorf("%+v: refused %t, and %t where it is allowed", c, refused, c.options().NoUnixSockets)
		}
	}
}
