package mesh

import (
	"net/netip"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// AnnotationHost is the annotation of a WorkloadEntry that names the host which
// may speak for it. No other host may, whatever it proves.
const AnnotationHost = metakeys.Host

// Proof says how a host has shown that a workload is its own. The greater counts.
type Proof uint8

// The proofs, the weakest first.
const (
	// Unproven: the host has said so, and nobody else has shown otherwise.
	Unproven Proof = iota
	// ByAnyNetwork: the host's join token names the address and no network, and
	// several networks have it: it may as well mean another machine.
	ByAnyNetwork
	// BySource: the host's connection comes from the address.
	BySource
	// ByToken: the host's join token names the address, with its network where
	// several have it.
	ByToken
	// ByAnnotation: the workload names the host, see [AnnotationHost].
	ByAnnotation
)

// Proofs are all of them.
func Proofs() []Proof { return []Proof{Unproven, ByAnyNetwork, BySource, ByToken, ByAnnotation} }

// String is the form for people and files.
func (p Proof) String() string {
	switch p {
	case ByAnyNetwork:
		return "token-without-network"
	case BySource:
		return "source"
	case ByToken:
		return "token"
	case ByAnnotation:
		return "annotation"
	default:
		return "unproven"
	}
}

// ParseProof reads what String gives; anything else is Unproven.
func ParseProof(s string) Proof {
	for _, p := range Proofs() {
		if p.String() == s {
			return p
		}
	}
	return Unproven
}

// Claim is a host's word that a workload of the mesh is its own: the host that
// holds the claim is served as the workload, and reports its health.
type Claim struct {
	// Host is who claims, as authenticated, and Binding tells one machine that has
	// the name from the next one.
	Host, Binding string
	// Network, Address and ServiceAccount say where the workload is and who, and
	// Workload is its name, which tells several of them apart.
	Network, Address string
	ServiceAccount   ServiceAccount
	Workload         string
	// Present are the names of all workloads there, this one among them.
	Present []string
	// Owner is the host that the workload names, or empty.
	Owner string
	// Proof is the best that the host has shown, but for its source address.
	Proof Proof
	// Source is where the host connects from, and SourceProves that it is the
	// address of this workload and of no other network's.
	Source       netip.Addr
	SourceProves bool
}

// Owner is the only host that may report for the workload, or empty.
func (w *Workload) Owner() string { return w.Annotations[AnnotationHost] }
