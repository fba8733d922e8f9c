package view

import "testing"

// TestCannotCall: only a sidecar without capture and without outbound listeners, although
// there is something to call, and nobody said that it calls nothing.
func TestCannotCall(t *testing.T) {
	t.Parallel()
	const own = `{"ingress":[{"port":{"number":8080,"protocol":"HTTP"},"bind":"0.0.0.0","defaultEndpoint":"127.0.0.1:9080"}]`
	for name, c := range map[string]struct {
		sidecar string
		port    uint32
		change  func(p *Proxy)
		want    bool
	}{
		"other_port":          {own + `}`, 80, nil, false},
		"port_of_the_ingress": {own + `}`, 8080, nil, true},
		"no_sidecar":          {"", 80, nil, false},
		"hosts_without_match": {`{"egress":[{"port":{"number":80,"protocol":"HTTP"},"bind":"127.0.0.1","hosts":["./none.test"]}]}`, 80, nil, true},
		"wants_nothing":       {`{"egress":[{"hosts":["~/*"]}]}`, 80, nil, false},
		"captured":            {own + `}`, 8080, func(p *Proxy) { p.Interception = InterceptRedirect }, false},
		"router":              {own + `}`, 8080, func(p *Proxy) { p.Type = Router }, false},
		"nothing_to_call":     {own + `}`, 0, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newMeshFixture(t)
			if c.port != 0 {
				w.service("shop", "other.test", c.port)
			}
			if c.sidecar != "" {
				w.sidecar("shop", "default", c.sidecar)
			}
			p := proxyIn("shop", nil)
			p.Interception = InterceptNone
			if c.change != nil {
				c.change(&p)
			}
			s := w.snapshot()
			cannot, sidecar := Build(s, p).CannotCall(s)
			if cannot != c.want || cannot && c.sidecar != "" && (sidecar == nil || sidecar.Name != "default") {
				t.Errorf("cannot call: %v by %v, want %v", cannot, sidecar, c.want)
			}
		})
	}
}
