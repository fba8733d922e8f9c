package server

import (
	"context"

	"github.com/fairlead/fairlead/pki/issue"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// admission says who is at the other end of an xDS stream.
type admission struct{ service *issue.Service }

// Admit implements [xds.Admission].
func (a admission) Admit(ctx context.Context) (xds.Peer, error) {
	p, err := a.service.Authenticate(ctx)
	if err != nil {
		return xds.Peer{Host: p.Host}, err
	}
	peer := xds.Peer{Host: p.Host, ID: p.ID, Until: p.NotAfter, Revoked: p.Revoked}
	for _, pair := range p.Pairs {
		peer.Pairs = append(peer.Pairs, mesh.ServiceAccount{Namespace: pair.Namespace, Name: pair.ServiceAccount})
	}
	for _, t := range p.Types {
		peer.Types = append(peer.Types, view.ProxyType(t))
	}
	return peer, nil
}
