package view

import (
	"testing"
)

// TestIngressWithoutBindLeavesLoopbackAlone: without capture, an ingress listener without a
// bind listens at the host's first address that others can reach, so that one port serves
// both directions. On loopback hosts it keeps all addresses.
func TestIngressWithoutBindLeavesLoopbackAlone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		addresses []string
		mode      Interception
		ingress   string
		bind      string
		outbound  bool // the egress listener of the same port exists
	}{
		{"private", []string{"10.0.0.1"}, InterceptNone, `{}`, "10.0.0.1", true},
		{"v6", []string{"fe80::1", "2001:db8::1"}, InterceptNone, `{}`, "2001:db8::1", true},
		{"loopback_first", []string{"127.0.0.9", "10.0.0.1"}, InterceptNone, `{}`, "10.0.0.1", true},
		{"loopback_host", []string{"127.0.0.11"}, InterceptNone, `{}`, wildcard, false},
		{"explicit", []string{"10.0.0.1"}, InterceptNone, `{"bind":"0.0.0.0"}`, wildcard, false},
		{"not_captured", []string{"10.0.0.1"}, InterceptRedirect, `{"captureMode":"NONE"}`, "10.0.0.1", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			w.service("shop", "other.test", 8080)
			w.sidecar("shop", "default", `{
				"ingress":[{"port":{"number":8080,"protocol":"HTTP"},"defaultEndpoint":"127.0.0.1:9080"`+comma(c.ingress)+`}],
				"egress":[{"hosts":["./*"],"captureMode":"NONE"}]}`)
			p := proxyIn("shop", nil)
			p.Addresses, p.Interception = c.addresses, c.mode
			v := Build(w.snapshot(), p)
			in := findPart(t, v, func(l *Listener) bool { return l.Inbound && l.Port == 8080 })
			if in.Addresses[0] != c.bind || in.Name != listenerName(c.bind, 8080) {
				t.Errorf("the inbound listener %q is at %q, want %q", in.Name, in.Addresses, c.bind)
			}
			out := false
			for part := range v.Parts() {
				if l, ok := part.(*Listener); ok && !l.Inbound && l.Name == listenerName(localhost, 8080) {
					out = true
				}
			}
			if out != c.outbound {
				t.Errorf("there is an outbound listener for the same port: %v, want %v", out, c.outbound)
			}
		})
	}
}

// comma continues one JSON object with the members of another one.
func comma(object string) string {
	if members := object[1 : len(object)-1]; members != "" {
		return "," + members
	}
	return ""
}
