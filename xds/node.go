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

// errUnknownWorkload is wrapped if no workload of the mesh matches a node.
var errUnknownWorkload = errors.New("no workload of the mesh fits")

// verifiedNode is a node that was checked against its authenticated peer. It does not
// depend on the mesh.
type verifiedNode struct {
	reported *bootstrap.Node
	account  mesh.ServiceAccount
	entitled []mesh.ServiceAccount
	// heldByOther reports whether a workload belongs to another host; or nil.
	heldByOther func(w *mesh.Workload) bool
}

// verifyNode checks the node that a peer sent against what the peer is entitled to.
func verifyNode(p Peer, n *bootstrap.Node) (*verifiedNode, error) {
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
		return &verifiedNode{reported: n, account: account, entitled: []mesh.ServiceAccount{account}}, nil
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
	return &verifiedNode{reported: n, account: account, entitled: p.Pairs}, nil
}

// onlyPair is the service account of a node that names none.
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
	names := make([]string, len(pairs))
	for i, p := range pairs {
		names[i] = p.String()
	}
	return strings.Join(names, ", ")
}

// workload finds the workload of the node in the mesh: it must have the claimed identity
// and the claimed address.
func (v *verifiedNode) workload(s *mesh.Snapshot) (*mesh.Workload, error) {
	address := v.reported.Address.String()
	var found *mesh.Workload
	others := 0
	at := s.WorkloadsAt(address)
	network := v.network(at)
	for _, w := range at {
		if !v.is(w) || network != "" && w.Network != network {
			others++
			continue
		}
		// One host may run several workloads of an identity: the node says which.
		if found == nil || named(w, v.reported.WorkloadName) || (named(w, v.reported.Name) && !named(found, v.reported.WorkloadName)) {
			found = w
		}
	}
	if found != nil {
		return found, nil
	}
	err := fmt.Errorf("%w: no WorkloadEntry, and no instance of a catalog, has address %s; add one with serviceAccount %q in namespace %q",
		errUnknownWorkload, address, v.account.Name, v.account.Namespace)
	if others > 0 {
		err = fmt.Errorf("%w: address %s is in the mesh, but not with service account %q", errUnknownWorkload, address, v.account)
	}
	// The host is not told whether the address is another's.
	return nil, &toldError{err, fmt.Sprintf("%v: no WorkloadEntry, and no instance of a catalog, has address %s with serviceAccount %q in namespace %q",
		errUnknownWorkload, address, v.account.Name, v.account.Namespace)}
}

// lost says why none fits any more: what became of the workload that the host had, or what is at its
// address instead.
func (v *verifiedNode) lost(s *mesh.Snapshot, had *mesh.Workload) string {
	address := v.reported.Address.String()
	var at *mesh.Workload
	for _, w := range s.WorkloadsAt(address) {
		if at == nil || had != nil && w.Key == had.Key {
			at = w
		}
	}
	is := func(w *mesh.Workload) bool { return had != nil && w.Key == had.Key }
	switch {
	case at != nil && !v.is(at):
		return fmt.Sprintf("workload %s/%s at its address %s has service account %q, and the host is %q", at.Namespace, at.Name, address,
			mesh.ServiceAccount{Namespace: at.Namespace, Name: at.ServiceAccount}, v.account)
	case at != nil:
		return fmt.Sprintf("workload %s/%s at its address %s is in network %q, and the host is in %q", at.Namespace, at.Name, address, at.Network, v.reported.Network)
	}
	if i := slices.IndexFunc(s.Workloads, is); i >= 0 {
		return fmt.Sprintf("its workload %s/%s has address %s, and the host has %s", had.Namespace, had.Name, s.Workloads[i].Address, address)
	}
	return "its workload is no longer in the mesh"
}

// is reports whether a workload has the claimed identity.
func (v *verifiedNode) is(w *mesh.Workload) bool {
	return w.Namespace == v.account.Namespace && w.ServiceAccount == v.account.Name
}

// entitledTo reports whether the peer is entitled to the identity of a workload. Objects
// of other namespaces must not affect what an address proves.
func (v *verifiedNode) entitledTo(w *mesh.Workload) bool {
	return slices.Contains(v.entitled, mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount})
}

// network is the network that the node names, if workloads in that network have the
// address and the identity; else empty.
func (v *verifiedNode) network(at []*mesh.Workload) string {
	if slices.ContainsFunc(at, func(w *mesh.Workload) bool { return v.is(w) && w.Network == v.reported.Network }) {
		return v.reported.Network
	}
	return ""
}

// claimOf is the claim that the host makes by connecting as a workload.
func (v *verifiedNode) claimOf(p Peer, s *mesh.Snapshot, w *mesh.Workload) mesh.Claim {
	out := mesh.Claim{
		Host: p.Host, Binding: p.Binding, Network: w.Network, Address: w.Address, ServiceAccount: v.account, Workload: w.Name, Owner: w.Owner(),
		Source: p.Source.Unmap().WithZone(""),
	}
	// A link-local address is another machine's on each link.
	out.SourceProves = out.Source.IsValid() && out.Source == v.reported.Address.Unmap() && !out.Source.IsLinkLocalUnicast()
	several := false // networks have the address
	for _, o := range s.WorkloadsAt(w.Address) {
		switch {
		case o.Network == w.Network && v.is(o):
			out.Present = append(out.Present, o.Name)
		case o.Network != w.Network && (o.Namespace == w.Namespace || v.entitledTo(o)): // the address may belong to that one
			out.SourceProves, several = false, true
		}
	}
	out.Proof = v.byToken(p, w, several)
	return out
}

// byToken is what the peer's join token proves about the address of a workload; several
// means that several networks have the address.
func (v *verifiedNode) byToken(p Peer, w *mesh.Workload, several bool) mesh.Proof {
	proof := mesh.Unproven
	for _, a := range p.Addresses {
		switch {
		case a.IP.Unmap() != v.reported.Address.Unmap():
		case a.InNetwork && a.Network == w.Network, !a.InNetwork && !several:
			return mesh.ByToken
		case !a.InNetwork:
			proof = mesh.ByAnyNetwork
		}
	}
	return proof
}

// named reports whether a workload has that name, or is an instance in a catalog with that
// ID.
func named(w *mesh.Workload, name string) bool {
	if _, instance := w.Labels[mesh.LabelConsulService]; !instance || w.Name == name {
		return w.Name == name
	}
	id, err := url.PathUnescape(w.Name[strings.LastIndexByte(w.Name, '/')+1:])
	return err == nil && id == name
}

// proxy is the input of the view: the identity as authenticated, the labels as in the
// mesh.
func (v *verifiedNode) proxy(s *mesh.Snapshot, w *mesh.Workload) view.Proxy {
	n := v.reported
	p := view.Proxy{
		ID:             n.ID(),
		Type:           view.ProxyType(n.Type),
		ServiceAccount: v.account,
		Addresses:      []string{n.Address.String()},
		Labels:         w.Labels,
		Locality:       view.LocalityFromLabels(w.Locality, w.Labels),
		Network:        w.Network,
		Interception:   view.Interception(n.Interception),
		EnvoyVersion:   view.Version(n.EnvoyVersion),
		FileSecrets:    n.FileSecrets,
		FileLists:      n.FileLists,

		AccessLogService: n.AccessLogService,
		Names:            n.Names,
		Tracing:          s.TracingOf(w),
		Headers:          s.HeadersOf(w),
		Topology:         s.TopologyOf(w),
		HTTPProxyPort:    uint32(n.HTTPProxyPort),
		Loopback:         n.Loopback,
		IPv6:             n.IPv6,
		FirstPort:        uint32(n.FirstPort),
	}
	if p.Interception == "" {
		p.Interception = view.InterceptRedirect
	}
	if p.Locality == (mesh.Locality{}) {
		p.Locality = mesh.Locality(n.Locality)
	}
	for _, a := range n.Addresses {
		if a != n.Address && v.owns(s, a) {
			p.Addresses = append(p.Addresses, a.String())
		}
	}
	return p
}

// owns reports whether a further address is the node's.
func (v *verifiedNode) owns(s *mesh.Snapshot, a netip.Addr) bool {
	return slices.ContainsFunc(s.WorkloadsAt(a.String()), func(w *mesh.Workload) bool {
		return v.entitledTo(w) && (v.heldByOther == nil || !v.heldByOther(w))
	})
}
