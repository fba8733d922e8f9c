package view

import (
	"slices"
	"testing"
)

// TestOwnPortIsNoWarning: without capture, the application keeps Envoy from listening at its port. Of its
// own service that is no warning: a call is answered, as without the mesh. Another service is not reached there,
// nor is a port of its own service that leads to another one.
func TestOwnPortIsNoWarning(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for name, address := range map[string]string{"web": "10.0.0.7", "orders": "10.0.0.8", "moved": "10.0.0.7"} {
		w.service("shop", name+".mesh", 8000).Inline[0].Address = address
	}
	for _, s := range w.f.Services {
		if s.Hostname == "moved.mesh" {
			s.Inline[0].Ports = map[string]uint32{"http": 8001}
		}
	}
	w.service("shop", "other.mesh", 8001).Inline[0].Address = "10.0.0.8"
	x := NewIndex(w.snapshot())
	for address, want := range map[string][]string{
		"10.0.0.7": {"moved.mesh", "orders.mesh", "other.mesh"},
		"10.0.0.8": {"moved.mesh", "web.mesh"},
		"10.0.0.6": nil,
	} {
		p := proxyIn("shop", nil)
		p.Interception, p.Addresses = InterceptNone, []string{address}
		v := x.Build(p)
		var got []string
		for _, warning := range v.OwnWarnings() {
			got = append(got, warning.Key.Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("at %s: warnings of %v, want %v: %+v", address, got, want, v.Warnings)
		}
	}
	w.sidecar("shop", "default", `{"egress":[{"port":{"number":8000,"name":"http","protocol":"HTTP"},"hosts":["*/*"]}]}`)
	p := proxyIn("shop", nil)
	p.Interception, p.Addresses = InterceptNone, []string{"10.0.0.7"}
	var told bool
	for _, warning := range NewIndex(w.snapshot()).Build(p).OwnWarnings() {
		told = told || warning.Key.Name == "web.mesh"
	}
	if !told {
		t.Error("a Sidecar asks for a listener at the port, and nothing says that there is none")
	}
}
