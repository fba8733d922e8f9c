package server

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/fairlead/fairlead/pki/issue"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/view"
)

// admission authenticates the client of an xDS stream.
type admission struct {
	service *issue.Service
	// hangup breaks the connection from an address.
	hangup func(address string)
	// resume lets all of it be read.
	resume func(address string)
}

// Admit implements [xds.Admission].
func (a admission) Admit(ctx context.Context) (xds.Peer, error) {
	if p, ok := peer.FromContext(ctx); ok && p.AuthInfo != nil && p.AuthInfo.AuthType() == insecure.NewCredentials().Info().SecurityProtocol {
		at := p.Addr.String()
		return xds.Peer{Host: "plaintext", Anonymous: true, Address: at, Hangup: func() { a.hangup(at) }, Resume: func() { a.resume(at) }}, nil
	}
	p, err := a.service.Authenticate(ctx)
	if err != nil {
		return xds.Peer{Host: p.Host, Address: p.Address}, err
	}
	out := xds.Peer{
		Host: p.Host, Direct: p.Direct, Binding: p.Binding.String(), Address: p.Address, Source: sourceOf(ctx), ID: p.ID, Until: p.NotAfter, Revoked: p.Revoked,
		Hangup: func() { a.hangup(p.Address) }, Resume: func() { a.resume(p.Address) },
	}
	for _, a := range p.Addresses {
		out.Addresses = append(out.Addresses, xds.Address(a))
	}
	for _, pair := range p.Pairs {
		out.Pairs = append(out.Pairs, mesh.ServiceAccount{Namespace: pair.Namespace, Name: pair.ServiceAccount})
	}
	for _, t := range p.Types {
		out.Types = append(out.Types, view.ProxyType(t))
	}
	return out, nil
}

// sourceOf is the address that a call comes from, without its port; not valid where
// it has none.
func sourceOf(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(p.Addr.String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// stands reports whether a host is on record, by the machine that has its name.
func (s *Server) stands(host, binding string) bool {
	var b profile.Binding
	if err := b.UnmarshalText([]byte(binding)); err != nil {
		return false
	}
	h, _, ok := s.entitled.Find(b)
	return ok && h.Name == host
}
