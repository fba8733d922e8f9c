package view

import (
	"slices"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestInboundAt: what a proxy accepts at a port is what its listeners and their chains say.
func TestInboundAt(t *testing.T) {
	t.Parallel()
	const ingress = `{"ingress":[{"port":{"number":8080,"protocol":"HTTP"},"defaultEndpoint":"127.0.0.1:9080"`
	for _, c := range []struct {
		name, sidecar, peer string
		mode                Interception
		address             string
		port                uint32
		want                Inbound
		listens             bool
	}{
		{name: "no_capture_no_sidecar", mode: InterceptNone, port: 8080},
		{name: "egress_only", mode: InterceptNone, sidecar: `{"egress":[{"hosts":["./*"]}]}`, port: 8080},
		{name: "ingress", mode: InterceptNone, sidecar: ingress + `}]}`, port: 8080, want: InboundMTLS, listens: true},
		{name: "another_port", mode: InterceptNone, sidecar: ingress + `}]}`, port: 8081, listens: true},
		{name: "loopback_only", mode: InterceptNone, sidecar: ingress + `,"bind":"127.0.0.1"}]}`, port: 8080, listens: true},
		{name: "loopback_host", mode: InterceptNone, sidecar: ingress + `,"bind":"127.0.0.1"}]}`, address: "127.0.0.1", port: 8080, want: InboundMTLS, listens: true},
		{name: "plaintext", mode: InterceptNone, sidecar: ingress + `}]}`, peer: `{"mtls":{"mode":"DISABLE"}}`, port: 8080, want: InboundPlaintext, listens: true},
		{name: "strict", mode: InterceptNone, sidecar: ingress + `}]}`, peer: `{"mtls":{"mode":"STRICT"}}`, port: 8080, want: InboundMTLS, listens: true},
		{name: "capture", mode: InterceptRedirect, port: 8080, want: InboundMTLS, listens: true},
		{
			name: "capture_of_a_port_without_mtls", mode: InterceptRedirect, port: 8080, want: InboundPlaintext, listens: true,
			peer: `{"selector":{"matchLabels":{"app":"web"}},"mtls":{"mode":"STRICT"},"portLevelMtls":{"8080":{"mode":"DISABLE"}}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("shop", "other.test", 8080)
			if c.sidecar != "" {
				w.sidecar("shop", "default", c.sidecar)
			}
			if c.peer != "" {
				w.peer("shop", "web", c.peer)
			}
			p := proxyIn("shop", map[string]string{"app": "web"})
			p.Interception = c.mode
			if c.address != "" {
				p.Addresses = []string{c.address}
			}
			if got, listens := Build(w.snapshot(), p).InboundAt(p.Addresses[0], c.port); got != c.want || listens != c.listens {
				t.Errorf("%d, listens %v; want %d, %v", got, listens, c.want, c.listens)
			}
		})
	}
}

// TestMTLSTargets: targets are the endpoints that the clusters of a view call by mTLS.
func TestMTLSTargets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rule, peer string
		change           func(*mesh.Workload)
		want             int
	}{
		{name: "account", want: 1},
		{name: "without_account", change: func(w *mesh.Workload) { w.ServiceAccount = "" }},
		{name: "label", change: func(w *mesh.Workload) { w.ServiceAccount, w.Labels = "", map[string]string{tlsModeLabel: "istio"} }, want: 1},
		{name: "label_says_no", change: func(w *mesh.Workload) { w.Labels = map[string]string{tlsModeLabel: "disabled"} }},
		{name: "unhealthy", change: func(w *mesh.Workload) { w.Health = mesh.Unhealthy }},
		{name: "rule_for_plaintext", rule: `{"host":"a.test","trafficPolicy":{"tls":{"mode":"DISABLE"}}}`},
		{name: "rule_for_mtls", rule: `{"host":"a.test","trafficPolicy":{"tls":{"mode":"ISTIO_MUTUAL"}}}`, want: 1, change: func(w *mesh.Workload) { w.ServiceAccount = "" }},
		{name: "policy_for_plaintext", peer: `{"mtls":{"mode":"DISABLE"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			svc := w.service("shop", "a.test", 8080)
			if c.change != nil {
				c.change(svc.Inline[0])
			}
			if c.rule != "" {
				w.rule("shop", "a", c.rule)
			}
			if c.peer != "" {
				w.peer("shop", "all", c.peer)
			}
			var targets MTLSTargets
			v := Build(w.snapshot(), proxyIn("shop", nil))
			targets.Add(v)
			targets.Add(v)
			var got []MTLSTarget
			for target := range targets.All() {
				got = append(got, target)
			}
			want := []MTLSTarget{{"a.test", "10.0.0.9", 8080}}[:c.want]
			if !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
		})
	}
}
