package view

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// namesOf are the names that a view has, with their addresses and ports.
func namesOf(v *View) map[string]string {
	out := map[string]string{}
	for p := range v.Parts() {
		if n, ok := p.(*Name); ok {
			words := slices.Clone(n.Addresses)
			for _, port := range n.Ports {
				words = append(words, "_"+port.Service)
			}
			out[string(n.Host)] = strings.Join(words, " ")
		}
	}
	return out
}

// TestNames: a host has the addresses that the proxy uses for it, and none that lead nowhere.
func TestNames(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	own := w.service("shop", "own.lab", 80)
	own.Addresses = []string{"10.9.0.0/16", "10.1.0.1", "2001:db8::1"}
	given := w.service("shop", "given.lab", 80, 81)
	given.Allocated = mesh.AllocatedAddresses{"240.240.0.7", "2001:2::7"}
	given.Ports[0].Name, given.Ports[0].Protocol, given.Ports[1].Name, given.Ports[1].Protocol = "", mesh.TCP, "dns", mesh.UDP
	w.service("shop", "*.wild.lab", 80).Addresses = []string{"10.1.0.2"}
	w.service("shop", "*", 80).Addresses = []string{"10.1.0.3"}
	w.service("shop", "block.lab", 80).Addresses = []string{"10.2.0.0/16"}
	w.service("shop", "nothing.lab", 80)
	headless := w.service("shop", "headless.lab", 80)
	headless.Resolution = mesh.ResolutionNone
	headless.Inline = []*mesh.Workload{{Address: "10.3.0.2"}, {Address: "10.3.0.1"}, {Address: "10.3.0.3", Health: mesh.Unhealthy}, {Address: "a.example"}}
	w.service("private", "hidden.lab", 80).ExportTo = []string{"."}
	w.f.Services[len(w.f.Services)-1].Addresses = []string{"10.1.0.9"}
	x := NewIndex(w.snapshot())
	common := map[string]string{".": "", "*.wild.lab": "10.1.0.2 _http", "headless.lab": "10.3.0.1 10.3.0.2 _http"}
	for name, c := range map[string]struct {
		mode      Interception
		addresses []string
		want      map[string]string
	}{
		"captured_ipv4": {InterceptRedirect, []string{"10.0.0.1"}, map[string]string{"own.lab": "10.1.0.1 _http", "given.lab": "240.240.0.7 _tcp _dns"}},
		"captured_both": {InterceptRedirect, []string{"10.0.0.1", "2001:db8::9"}, map[string]string{"own.lab": "10.1.0.1 2001:db8::1 _http", "given.lab": "240.240.0.7 2001:2::7 _tcp _dns"}},
		"loopback":      {InterceptNone, []string{"10.0.0.2"}, map[string]string{"own.lab": "10.1.0.1 _http", "given.lab": "127.240.0.7 _tcp _dns"}},
		"not_captured":  {InterceptNone, []string{"10.0.0.1"}, map[string]string{"own.lab": "10.1.0.1 _http"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := proxyIn("shop", nil)
			p.Interception, p.Addresses, p.Loopback = c.mode, c.addresses, c.addresses[0] == "10.0.0.2"
			if got := namesOf(x.Build(p)); len(got) > 0 {
				t.Errorf("a proxy that asks for no names has %v", got)
			}
			p.Names = true
			got := namesOf(x.Build(p))
			for host, text := range common {
				if got[host] != text {
					t.Errorf("%s has %q, want %q", host, got[host], text)
				}
			}
			for host, text := range c.want {
				if got[host] != text {
					t.Errorf("%s has %q, want %q", host, got[host], text)
				}
			}
			if len(got) != len(common)+len(c.want) {
				t.Errorf("names %v", got)
			}
		})
	}
}

// TestNamesChangeAlone: a change of one host makes one name again, and a change of endpoints none.
func TestNamesChangeAlone(t *testing.T) {
	t.Parallel()
	w := newMeshFixture(t)
	for _, host := range []string{"a.lab", "b.lab", "c.lab"} {
		w.service("shop", host, 80).Addresses = []string{"10.1.0.1"}
	}
	p := proxyIn("shop", nil)
	p.Names = true
	config := &mesh.MeshConfig{Spec: w.mc}
	snapshot := func(prev *mesh.Snapshot) *mesh.Snapshot {
		return mesh.NewSnapshot(prev, config, []*mesh.Fragment{&w.f})
	}
	s := snapshot(nil)
	first := NewIndex(s)
	was := first.Build(p)
	layer := func(v *View) *Layer {
		i := slices.IndexFunc(v.Layers, func(l *Layer) bool { return l.Name == NamesLayer })
		return v.Layers[i]
	}
	change := func(edit func(s *mesh.Service)) {
		next := *w.f.Services[1]
		edit(&next)
		w.f.Services = slices.Clone(w.f.Services)
		w.f.Services[1] = &next
	}
	change(func(s *mesh.Service) { s.Inline = []*mesh.Workload{{Address: "10.0.0.77"}}; s.Hash[0]++ })
	s = snapshot(s)
	second := first.Next(s)
	now := second.Rebuild(was, p)
	if layer(now) != layer(was) {
		t.Error("an endpoint makes the names again")
	}
	change(func(s *mesh.Service) { s.Addresses = []string{"10.1.0.2"}; s.Hash[0]++ })
	made := second.names.made.Load()
	next := second.Next(snapshot(s)).Rebuild(now, p)
	if n := second.names.made.Load() - made; n > 2 { // the table's own, and the host
		t.Errorf("a change of one host makes %d names", n)
	}
	same := 0
	for i, part := range layer(next).Parts {
		if part == layer(was).Parts[i] {
			same++
		}
	}
	if same != 3 || namesOf(next)["b.lab"] != "10.1.0.2 _http" {
		t.Errorf("%d parts are the same, names %v", same, namesOf(next))
	}
}
