package view

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestCaptureDetectionTimeout: a captured connection waits for the client's first bytes as
// long as the settings say, if the application could be the one that speaks first.
func TestCaptureDetectionTimeout(t *testing.T) {
	t.Parallel()
	const strict = `{"mtls":{"mode":"STRICT"}}`
	for name, c := range map[string]struct {
		peer           string
		mesh, settings time.Duration
		protocol       mesh.Protocol
		want           time.Duration
	}{
		"permissive":         {want: DefaultCaptureDetectionTimeout, protocol: mesh.TCP},
		"permissive_http":    {want: DefaultCaptureDetectionTimeout, protocol: mesh.HTTP}, // undeclared ports are in the same listener
		"settings":           {settings: 3 * time.Second, want: 3 * time.Second, protocol: mesh.TCP},
		"mesh_config":        {mesh: 200 * time.Millisecond, settings: 3 * time.Second, want: 200 * time.Millisecond, protocol: mesh.TCP},
		"mesh_config_at_15s": {mesh: defaultInspectTimeout, want: defaultInspectTimeout, protocol: mesh.TCP},
		"strict":             {peer: strict, settings: 3 * time.Second, want: defaultInspectTimeout, protocol: mesh.TCP},
		"disable":            {peer: `{"mtls":{"mode":"DISABLE"}}`, want: DefaultCaptureDetectionTimeout, protocol: mesh.TCP},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			svc := w.service("shop", "web.mesh", 80)
			svc.Ports[0].Protocol, svc.Inline[0].Address = c.protocol, "10.0.0.1"
			if c.peer != "" {
				w.peer("shop", "default", c.peer)
			}
			w.mc.ProtocolDetectionTimeout = durationpb.New(c.mesh)
			v := Settings{CaptureDetectionTimeout: c.settings}.NewIndex(w.snapshot()).Build(proxyIn("shop", nil))
			l := findPart(t, v, func(l *Listener) bool { return l.Name == "virtualInbound" })
			if l.InspectTimeout != c.want {
				t.Errorf("a client has %s for its first bytes, want %s", l.InspectTimeout, c.want)
			}
		})
	}
}
