package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/xds/stream"
)

// TestRemarksOfRelay: on the host, one command says that no control plane is there, and why, and
// what Envoy rejects; not during a restart of the control plane.
func TestRemarksOfRelay(t *testing.T) {
	t.Parallel()
	now := time.Now()
	up := func(server, err string, since time.Duration) *relay.Status {
		return &relay.Status{Upstream: relay.UpstreamStatus{Server: server, LastError: err, Since: now.Add(-since)}}
	}
	rejects := up("cp:15012", "", time.Hour)
	rejects.Rejected = []relay.Rejection{{Type: stream.ListenerType, Name: "15006", Reason: "cannot bind"}}
	for name, c := range map[string]struct {
		s    *relay.Status
		want string
	}{
		"connected": {up("cp:15012", "it was away before", time.Hour), ""},
		"restart":   {up("", "connection refused", cutOffAfter/2), ""},
		"starting":  {up("", "", time.Hour), ""},
		"cut_off":   {up("", "connection refused", 2*cutOffAfter), "no control plane is connected since "},
		"rejects":   {rejects, "Envoy rejects resources (1), the first is Listener 15006: cannot bind"},
	} {
		got := strings.Join(relayRemarks(c.s, now), "\n")
		if !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") || !strings.HasSuffix(got, c.s.Upstream.LastError) && name == "cut_off" {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
