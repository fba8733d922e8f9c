package profile

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// The control plane's own service account. It is reserved.
const (
	controlPlaneNamespace = "istio-system"
	controlPlaneAccount   = "fairlead"
)

// Bounds on names. Namespaces and host names are file names and path segments,
// so they are short and lower case.
const (
	maxHostName       = 128
	maxNamespace      = 63
	maxServiceAccount = 253
)

// ErrReserved says that a name belongs to the control plane and is given to
// nobody.
var ErrReserved = errors.New("reserved for the control plane")

// Pair is a namespace and a service account: what a workload identity names.
type Pair struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"service_account"`
}

// ParsePair reads NAMESPACE/SERVICE-ACCOUNT and checks it.
func ParsePair(s string) (Pair, error) {
	ns, sa, ok := strings.Cut(s, "/")
	if !ok {
		return Pair{}, fmt.Errorf("workload %q: want NAMESPACE/SERVICE-ACCOUNT", clip(s))
	}
	p := Pair{Namespace: ns, ServiceAccount: sa}
	return p, p.Check()
}

// String is NAMESPACE/SERVICE-ACCOUNT.
func (p Pair) String() string { return p.Namespace + "/" + p.ServiceAccount }

// Compare orders pairs by namespace, then service account.
func (p Pair) Compare(q Pair) int {
	return strings.Compare(p.Namespace+"/"+p.ServiceAccount, q.Namespace+"/"+q.ServiceAccount)
}

// Check says what is wrong with the pair, ErrReserved included.
func (p Pair) Check() error {
	if err := checkName(p.Namespace, maxNamespace, false); err != nil {
		return fmt.Errorf("namespace %q: %w", clip(p.Namespace), err)
	}
	if err := checkName(p.ServiceAccount, maxServiceAccount, true); err != nil {
		return fmt.Errorf("service account %q: %w", clip(p.ServiceAccount), err)
	}
	if p == controlPlanePair() {
		return fmt.Errorf("workload %s: %w", p, ErrReserved)
	}
	return nil
}

// CheckHostName says what is wrong with the name of a host.
func CheckHostName(name string) error {
	if err := checkName(name, maxHostName, true); err != nil {
		return fmt.Errorf("host name %q: %w", clip(name), err)
	}
	return nil
}

func controlPlanePair() Pair {
	return Pair{Namespace: controlPlaneNamespace, ServiceAccount: controlPlaneAccount}
}

// checkName is the rule of DNS names as Kubernetes has it: lower-case letters,
// digits and hyphens, and where dots are allowed each label between them by the
// same rule.
func checkName(s string, limit int, dots bool) error {
	if s == "" {
		return errors.New("empty")
	}
	if len(s) > limit {
		return fmt.Errorf("longer than %d characters", limit)
	}
	for label := range strings.SplitSeq(s, ".") {
		if !dots && len(label) != len(s) {
			return errors.New("may not contain a dot")
		}
		if label == "" || label[0] == '-' || label[len(label)-1] == '-' {
			return errors.New("each part must begin and end with a letter or digit")
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
				return errors.New("only lower-case letters, digits, '-' and between parts '.' are allowed")
			}
		}
	}
	return nil
}

// HostID is the identity of the host called name.
func HostID(td spiffeid.TrustDomain, name string) (spiffeid.ID, error) {
	if err := CheckHostName(name); err != nil {
		return spiffeid.ID{}, err
	}
	return spiffeid.FromSegments(td, "fairlead", "host", name)
}

// WorkloadID is the identity of workloads that run as pair.
func WorkloadID(td spiffeid.TrustDomain, pair Pair) (spiffeid.ID, error) {
	if err := pair.Check(); err != nil {
		return spiffeid.ID{}, err
	}
	return spiffeid.FromSegments(td, "ns", pair.Namespace, "sa", pair.ServiceAccount)
}

// ControlPlaneID is the one identity of the control plane.
func ControlPlaneID(td spiffeid.TrustDomain) (spiffeid.ID, error) {
	return spiffeid.FromSegments(td, "ns", controlPlaneNamespace, "sa", controlPlaneAccount)
}

// ParseID reads who an identity names. Binding stays zero, and the kind of a
// workload's identity is Impersonated, the one that may do least: the name alone
// cannot tell more. Any path but the three forms of this package is an error.
func ParseID(id spiffeid.ID) (Subject, error) {
	seg := strings.Split(strings.TrimPrefix(id.Path(), "/"), "/")
	switch {
	case len(seg) == 3 && seg[0] == "fairlead" && seg[1] == "host":
		if err := CheckHostName(seg[2]); err != nil {
			return Subject{}, err
		}
		return Subject{Kind: Host, ID: id, Host: seg[2]}, nil
	case len(seg) == 4 && seg[0] == "ns" && seg[2] == "sa":
		pair := Pair{Namespace: seg[1], ServiceAccount: seg[3]}
		if pair == controlPlanePair() {
			return Subject{Kind: ControlPlane, ID: id, Pair: pair}, nil
		}
		if err := pair.Check(); err != nil {
			return Subject{}, err
		}
		return Subject{Kind: Impersonated, ID: id, Pair: pair}, nil
	case seg[0] == "fairlead":
		return Subject{}, fmt.Errorf("identity %q: %w", clip(id.String()), ErrReserved)
	default:
		return Subject{}, fmt.Errorf("identity %q: neither a host's nor a workload's", clip(id.String()))
	}
}

// clip bounds outside text in an error.
func clip(s string) string {
	const limit = 200
	if len(s) > limit {
		return s[:limit] + "..."
	}
	return s
}
