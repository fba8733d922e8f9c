package view

import (
	"fmt"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// nameOwners are the servers whose chains have a server name at a listener, by the name. Names that differ in the
// namespaces of VirtualServices, or in upper and lower case, are one to Envoy, and two to the merge of Gateways.
type nameOwners map[string]*mesh.GatewayServer

// sniOf are the server names of a chain; "*" if it takes connections with any.
func sniOf(c *FilterChain) []string {
	if names := serverNames(&c.Match); len(names) > 0 {
		return lowerAll(names)
	}
	return []string{"*"}
}

// add notes which names a server has, of those that its chain asked for, and returns a finding if another server
// has some of them first. got is the chain as it is in the listener; nil if it is not.
func (o nameOwners) add(s *mesh.GatewayServer, asked, got *FilterChain) (Finding, bool) {
	var have, lost []string
	if got != nil {
		have = sniOf(got)
	}
	var by *mesh.GatewayServer
	for _, n := range sniOf(asked) {
		if slices.Contains(have, n) {
			if o[n] == nil {
				o[n] = s
			}
		} else if kept := o[n]; kept != nil && kept != s && (!passesByName(s) || !passesByName(kept)) {
			lost = append(lost, n)
			if by == nil {
				by = kept
			}
		}
	}
	if by == nil {
		return Finding{}, false
	}
	slices.Sort(lost)
	f := leftOutServer(s, fmt.Sprintf("a server there has the server name %q first", strings.Join(slices.Compact(lost), `", "`)))
	f.Other = by.Gateway.Key
	if got != nil {
		f.Lost = strings.Join(slices.Compact(lost), " ")
	}
	return f, true
}

// passesByName reports whether a server passes mTLS of the mesh to where its server name says, whichever server of
// that kind takes it.
func passesByName(s *mesh.GatewayServer) bool {
	return s.GetTls().GetMode() == networking.ServerTLSSettings_AUTO_PASSTHROUGH
}

// losesNothing reports whether what is meant for a server that is left out is served by the other one in the same way.
func losesNothing(r mesh.RejectedServer) bool {
	if !passesByName(r.Server) || !passesByName(r.Kept) {
		return false
	}
	kept := r.Kept.SNIHosts()
	return !slices.ContainsFunc(r.Server.SNIHosts(), func(h string) bool {
		return !slices.ContainsFunc(kept, func(k string) bool { return mesh.Hostname(k).Covers(mesh.Hostname(h)) })
	})
}
