package view

import (
	"fmt"
	"slices"
	"strings"

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
		} else if kept := o[n]; kept != nil && kept != s {
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
	return f, true
}
