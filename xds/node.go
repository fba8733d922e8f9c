package xds

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// errUnknownWorkload is wrapped where no workload of the mesh fits a node.
var errUnknownWorkload = errors.New("no workload of the mesh fits")

// claim is a node that was held against its peer: what of it may be believed
// whatever the mesh looks like.
type claim struct {
	node    *bootstrap.Node
	account mesh.ServiceAccount
	pairs   []mesh.ServiceAccount
	// others reports whether a workload is of another host; or nil.
	others func(w *mesh.Workload) bool
}

// checkClaim holds what a peer says of its proxy against what it may say.
func checkClaim(p Peer, n *bootstrap.Node) (*claim, error) {
	types := p.Types
	if p.Anonymous {
		types = []view.ProxyType{view.Sidecar, view.Router}
	}
	if len(types) == 0 {
		types = []view.ProxyType{view.Sidecar}
	}
	if !slices.Contains(types, view.ProxyType(n.Type)) {
		return nil, fmt.Errorf("the node claims to be a %s, and this identity may only be %v: make a token with --type %s", n.Type, types, n.Type)
	}
	account := mesh.ServiceAccount{Namespace: n.Namespace, Name: n.ServiceAccount}
	if p.Anonymous {
		return &claim{node: n, account: account, pairs: []mesh.ServiceAccount{account}}, nil
	}
	if account.Name == "" {
		var err error
		if account, err = onlyPair(p, n.Namespace); err != nil {
			return nil, err
		}
	}
	if !slices.Contains(p.Pairs, account) {
		return nil, fmt.Errorf("the node claims service account %q, and this identity is entitled to %s", account, pairList(p.Pairs))
	}
	return &claim{node: n, account: account, pairs: p.Pairs}, nil
}

// onlyPair is the account of a node that names none.
func onlyPair(p Peer, namespace string) (mesh.ServiceAccount, error) {
	var found []mesh.ServiceAccount
	for _, a := range p.Pairs {
		if a.Namespace == namespace {
			found = append(found, a)
		}
	}
	if len(found) != 1 {
		return mesh.ServiceAccount{}, fmt.Errorf("the node names no service account, and this identity has %d in namespace %q", len(found), namespace)
	}
	return found[0], nil
}

func pairList(pairs []mesh.ServiceAccount) string {
	words := make([]string, len(pairs))
	for i, p := range pairs {
		words[i] = p.String()
	}
	return strings.Join(words, ", ")
}

// workload finds what the mesh knows of the node: only what has the claimed
// identity and the claimed address.
func (c *claim) workload(s *mesh.Snapshot) (*mesh.Workload, error) {
	address := c.node.Address.String()
	var found *mesh.Workload
	others := 0
	at := s.WorkloadsAt(address)
	network := c.network(at)
	for _, w := range at {
		if !c.is(w) || network != "" && w.Network != network {
			others++
			continue
		}
		// One host may run several workloads of an identity: the node says which.
		if found == nil || named(w, c.node.WorkloadName) || (named(w, c.node.Name) && !named(found, c.node.WorkloadName)) {
			found = w
		}
	}
	switch {
	case found != nil:
		return found, nil
	case others > 0:
		return nil, fmt.Errorf("%w: address %s is in the mesh, but not with service account %q", errUnknownWorkload, address, c.account)
	default:
		return nil, fmt.Errorf("%w: no WorkloadEntry, and no instance of a catalog, has address %s; add one with serviceAccount %q in namespace %q",
			errUnknownWorkload, address, c.account.Name, c.account.Namespace)
	}
}

// is reports whether a workload has the claimed identity.
func (c *claim) is(w *mesh.Workload) bool {
	return w.Namespace == c.account.Namespace && w.ServiceAccount == c.account.Name
}

// entitledTo reports whether the peer may be a workload: who writes objects of another
// namespace does not decide what an address proves.
func (c *claim) entitledTo(w *mesh.Workload) bool {
	return slices.Contains(c.pairs, mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount})
}

// network is the one that the node names, where several networks have the address
// and that is one of them; else empty.
func (c *claim) network(at []*mesh.Workload) string {
	if slices.ContainsFunc(at, func(w *mesh.Workload) bool { return c.is(w) && w.Network == c.node.Network }) {
		return c.node.Network
	}
	return ""
}

// of is what the host claims by being served as a workload of the mesh.
func (c *claim) of(p Peer, s *mesh.Snapshot, w *mesh.Workload) mesh.Claim {
	out := mesh.Claim{
		Host: p.Host, Binding: p.Binding, Network: w.Network, Address: w.Address, ServiceAccount: c.account, Workload: w.Name, Owner: w.Owner(),
		Source: p.Source.Unmap().WithZone(""),
	}
	// A link-local address is another machine's on each link.
	out.SourceProves = out.Source.IsValid() && out.Source == c.node.Address.Unmap() && !out.Source.IsLinkLocalUnicast()
	several := false // networks have the address
	for _, o := range s.WorkloadsAt(w.Address) {
		switch {
		case o.Network == w.Network && c.is(o):
			out.Present = append(out.Present, o.Name)
		case o.Network != w.Network && (o.Namespace == w.Namespace || c.entitledTo(o)): // it may as well be that one's
			out.SourceProves, several = false, true
		}
	}
	out.Proof = c.byToken(p, w, several)
	return out
}

// byToken is what the peer's join token proves of the address of a workload, which
// several networks may have.
func (c *claim) byToken(p Peer, w *mesh.Workload, several bool) mesh.Proof {
	proof := mesh.Unproven
	for _, a := range p.Addresses {
		switch {
		case a.IP.Unmap() != c.node.Address.Unmap():
		case a.InNetwork && a.Network == w.Network, !a.InNetwork && !several:
			return mesh.ByToken
		case !a.InNetwork:
			proof = mesh.ByAnyNetwork
		}
	}
	return proof
}

// named reports whether a workload has that name, or is a catalog's instance of
// which that is the ID.
func named(w *mesh.Workload, name string) bool {
	if _, instance := w.Labels[mesh.LabelConsulService]; !instance || w.Name == name {
		return w.Name == name
	}
	id, err := url.PathUnescape(w.Name[strings.LastIndexByte(w.Name, '/')+1:])
	return err == nil && id == name
}

// proxy is the client of xDS: identity as proven, labels as the mesh has them.
func (c *claim) proxy(s *mesh.Snapshot, w *mesh.Workload) view.Proxy {
	n := c.node
	p := view.Proxy{
		ID:             n.ID(),
		Type:           view.ProxyType(n.Type),
		ServiceAccount: c.account,
		Addresses:      []string{n.Address.String()},
		Labels:         w.Labels,
		Locality:       w.Locality,
		Network:        w.Network,
		Interception:   view.Interception(n.Interception),
		EnvoyVersion:   view.Version(n.EnvoyVersion),
	}
	if p.Interception == "" {
		p.Interception = view.InterceptRedirect
	}
	if p.Locality == (mesh.Locality{}) {
		p.Locality = mesh.Locality(n.Locality)
	}
	for _, a := range n.Addresses {
		if a != n.Address && c.owns(s, a) {
			p.Addresses = append(p.Addresses, a.String())
		}
	}
	return p
}

// owns reports whether a further address is the node's.
func (c *claim) owns(s *mesh.Snapshot, a netip.Addr) bool {
	return slices.ContainsFunc(s.WorkloadsAt(a.String()), func(w *mesh.Workload) bool {
		return c.entitledTo(w) && (c.others == nil || !c.others(w))
	})
}
