package agent

import (
	"strings"
	"testing"
)

// TestCureOf: the cure is that of what keeps Envoy from its listener.
func TestCureOf(t *testing.T) {
	t.Parallel()
	const bind = "Error adding/updating listener(s) inbound: cannot bind '10.0.0.1:80': "
	for reason, want := range map[string]string{
		bind + "Address already in use":                             "stop the process that has the port",
		bind + "Cannot assign requested address":                    "give this host the address",
		bind + "Permission denied":                                  "a port of 1024 or above, or have the agent and its Envoy run with CAP_NET_BIND_SERVICE",
		bind + "Invalid argument":                                   "repair what keeps Envoy from the address and port",
		"unable to open file '/gone/access.log': Permission denied": "make the directory of that file, writable for Envoy's user",
		"no such filter":                                            "`fairlead proxy-status`",
	} {
		if got := cureOf(reason); !strings.Contains(got, want) {
			t.Errorf("the cure of %q is %q, want %q", reason, got, want)
		}
	}
}
