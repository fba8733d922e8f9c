package view

import (
	"cmp"
	"fmt"

	"github.com/fairlead/fairlead/registry/mesh"
)

// gatewaysOf are the Gateways for a proxy with some labels, in order of precedence.
func (x *Index) gatewaysOf(ns string, labels map[string]string) []*mesh.Gateway {
	var out []*mesh.Gateway
	for _, g := range x.s.Gateways {
		if mesh.Selects(g.Spec.GetSelector(), labels) && (g.Namespace == ns || !x.s.Bound(g.Namespace)) {
			out = append(out, g)
		}
	}
	return out
}

// rejected warns of servers that are left out.
func rejected(list []mesh.RejectedServer) []Warning {
	var out []Warning
	for _, r := range list {
		out = append(out, Warning{
			Key: r.Server.Gateway.Key, Origin: r.Server.Gateway.Origin,
			Message: fmt.Sprintf("the server %q on port %d is left out: %s (%s)",
				cmp.Or(r.Server.GetName(), r.Server.GetPort().GetName()), r.Server.ListensAt, r.Reason, r.Kept.Gateway.Key),
			found: !losesNothing(r),
		})
	}
	return out
}

// leftOut are the same servers as findings.
func leftOut(list []mesh.RejectedServer) []Finding {
	var out []Finding
	for _, r := range list {
		if losesNothing(r) {
			continue
		}
		f := leftOutServer(r.Server, r.Reason)
		f.Other = r.Kept.Gateway.Key
		out = append(out, f)
	}
	return out
}

func leftOutServer(s *mesh.GatewayServer, reason string) Finding {
	return Finding{
		Kind: LeftOutServer, Object: s.Gateway.Key, Reason: reason,
		Server: cmp.Or(s.GetName(), s.GetPort().GetName()), ListensAt: s.ListensAt,
	}
}
