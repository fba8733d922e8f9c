package analysis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// hostAddresses tells of hosts whose address another host has, and warns of ports that take
// connections to hosts that are not of the mesh.
func hostAddresses(w *meshIndex, r *report) {
	all := &mesh.Fragment{Source: "files"}
	written := map[mesh.NamespacedHost]*manifest.Object{}
	for o := range specs[*networking.ServiceEntry](w) {
		piece := o.Fragment()
		if piece == nil {
			continue
		}
		all.Append(piece)
		for _, svc := range piece.Services {
			written[svc.NamespacedHost()] = cmp.Or(written[svc.NamespacedHost()], o)
			r.under(CodeTakesStrangers, func(r *report) { takesStrangers(r, o, svc) })
		}
	}
	of, fields := addresses.Of(addresses.Default(), append([]*mesh.Fragment{all}, w.in.Catalogs...), nil), hostFields{}
	for h, a := range of.All {
		if o := written[h]; o != nil && a.Moved && !a.Full {
			r.add(place{o, fields.of(w, o, h.Host)}, Info, fmt.Sprintf("the address that stands for %s, %s, also stands for another host, and which of them gets it depends on who comes first: "+
				"with several servers, write addresses: [%s, %s]%s", h.Host, addresses.Hashed(addresses.Default(), h), a.IPv4, a.IPv6, ofItsOwn(o)))
		}
	}
}

// ofItsOwn is what else is to be done if the ServiceEntry has other hosts, which would get the
// same addresses.
func ofItsOwn(o *manifest.Object) string {
	if spec, ok := o.Spec.(*networking.ServiceEntry); ok && len(spec.GetHosts()) > 1 {
		return " in a ServiceEntry for this host only"
	}
	return ""
}

// takesStrangers warns of ports without an address, by which a proxy that captures could tell
// connections to the service from others. Where resolution is NONE each goes where it is
// meant to go.
func takesStrangers(r *report, o *manifest.Object, svc *mesh.Service) {
	if len(svc.Addresses) > 0 || svc.Allocatable() || svc.Resolution == mesh.ResolutionNone {
		return
	}
	opaque := slices.IndexFunc(svc.Ports, func(p mesh.Port) bool {
		return !p.Protocol.IsHTTP() && !p.Protocol.IsTLS() && p.Protocol != mesh.UDP
	})
	if opaque < 0 {
		return
	}
	cure := "remove the label networking.istio.io/enable-autoallocate-ip, or write addresses"
	if strings.HasPrefix(string(svc.Hostname), "*") {
		cure = "write addresses, or a ServiceEntry for each name"
	}
	r.warn(place{o, fmt.Sprintf("spec.ports[%d]", opaque)}, "%s has no address: where packets are captured, all connections to port %d go to it, whatever host they are meant for; %s",
		svc.Hostname, svc.Ports[opaque].Number, cure)
}
