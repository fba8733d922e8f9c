package cache

import "github.com/fairlead/fairlead/registry/mesh"

// refusedDelegate is a route that a gateway of another namespace includes, and does not follow if its source may not
// route to third namespaces there.
func refusedDelegate() scenario {
	return scenario{
		documents: "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {namespace: other, name: g}\n" +
			"spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n---\n" +
			routes("root", `hosts: [c.mesh], gateways: [other/g], http: [{delegate: {name: part}}]`) +
			routes("part", `http: [{route: [{destination: {host: c.mesh}}]}]`),
		set: func(fragments []*mesh.Fragment, second bool) {
			if !second {
				return
			}
			var part, others mesh.Fragment
			for _, f := range fragments {
				for _, vs := range f.VirtualServices {
					to := &others
					if vs.Name == "part" {
						to = &part
					}
					to.VirtualServices = append(to.VirtualServices, vs)
				}
			}
			bank := &mesh.Fragment{Services: []*mesh.Service{{
				Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "bank", Name: "c"}, Hash: mesh.Hash{1}, Origin: &mesh.Origin{}}, Hostname: "c.mesh",
			}}}
			judged := mesh.Merge(mesh.Input{
				Fallback: fragments[0].MeshConfig, Fragments: []*mesh.Fragment{&others, &part, bank},
				Bindings: []*mesh.Binding{nil, {Namespaces: []string{"shop"}, RoutesOnly: true}, {Namespaces: []string{"bank"}, Hosts: []mesh.Hostname{"c.mesh"}}},
			})
			for _, f := range fragments {
				for i, vs := range f.VirtualServices {
					for _, x := range judged.VirtualServices {
						if x.Key == vs.Key {
							f.VirtualServices[i] = x
						}
					}
				}
			}
		},
	}
}
