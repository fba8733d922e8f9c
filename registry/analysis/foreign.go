package analysis

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// foreignHosts warns of a host that a source which is bound to namespaces names,
// and that is another's.
func foreignHosts(w *meshIndex, r *report) {
	if len(w.in.Foreign) == 0 {
		return
	}
	at := map[*mesh.Origin]*manifest.Object{}
	for _, o := range w.in.Objects {
		at[o.Meta.Origin] = o
	}
	for _, c := range w.in.Foreign {
		if o := at[c.Dropped]; c.Foreign && o != nil {
			r.warn(place{o, w.fieldOf(o, c.Host)}, "%s", c.Reason)
		}
	}
}

// fieldOf is where an object names a host, or an address.
func (w *meshIndex) fieldOf(o *manifest.Object, host mesh.Hostname) string {
	vs, ok := o.Spec.(*networking.VirtualService)
	if !ok {
		se, _ := o.Spec.(*networking.ServiceEntry)
		for i, p := range se.GetPorts() {
			if host == mesh.Hostname(fmt.Sprintf(":%d", p.GetNumber())) {
				return fmt.Sprintf("spec.ports[%d]", i)
			}
		}
		for i, a := range se.GetAddresses() {
			if mesh.SameAddress(mesh.Hostname(a), host) {
				return fmt.Sprintf("spec.addresses[%d]", i)
			}
		}
		return hostField(o, host)
	}
	for i, h := range vs.GetHosts() {
		if w.fqdn(strings.ToLower(h), o.Meta.Namespace) == host {
			return fmt.Sprintf("spec.hosts[%d]", i)
		}
	}
	return "spec.hosts"
}
