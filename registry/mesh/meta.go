package mesh

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

// Hash identifies content: equal content has an equal Hash, on every machine
// and after every restart. It is the SHA-256 of a canonical encoding.
type Hash [sha256.Size]byte

// String is the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero reports whether h was never computed.
func (h Hash) IsZero() bool { return h == Hash{} }

// Origin says where a person wrote something. Origins are for messages only:
// they never enter equality, hashes or wire bytes, so that a comment added to a
// file pushes nothing. They are shared by pointer.
type Origin struct {
	// Source is the name of the registry source, such as "files".
	Source string
	// Path is the file's path, or the key in a catalog.
	Path string
	// Line and Column count from 1; 0 means unknown.
	Line, Column int
}

// String is path:line:column, as far as they are known.
func (o *Origin) String() string {
	switch {
	case o == nil:
		return "(unknown origin)"
	case o.Line == 0:
		return o.Path
	default:
		return fmt.Sprintf("%s:%d:%d", o.Path, o.Line, o.Column)
	}
}

// Kind is the kind of an object as its manifest writes it, such as
// "VirtualService".
type Kind string

// The kinds that take part in a mesh.
const (
	KindAuthorizationPolicy   Kind = "AuthorizationPolicy"
	KindDestinationRule       Kind = "DestinationRule"
	KindEnvoyFilter           Kind = "EnvoyFilter"
	KindGateway               Kind = "Gateway"
	KindMeshConfig            Kind = "MeshConfig"
	KindMeshNetworks          Kind = "MeshNetworks"
	KindPeerAuthentication    Kind = "PeerAuthentication"
	KindProxyConfig           Kind = "ProxyConfig"
	KindRequestAuthentication Kind = "RequestAuthentication"
	KindServiceEntry          Kind = "ServiceEntry"
	KindSidecar               Kind = "Sidecar"
	KindTelemetry             Kind = "Telemetry"
	KindTrafficExtension      Kind = "TrafficExtension"
	KindVirtualService        Kind = "VirtualService"
	KindWasmPlugin            Kind = "WasmPlugin"
	KindWorkloadEntry         Kind = "WorkloadEntry"
	KindWorkloadGroup         Kind = "WorkloadGroup"
)

// Key names one object of the mesh.
type Key struct {
	Kind      Kind
	Namespace string
	Name      string
}

// String is "Kind namespace/name".
func (k Key) String() string {
	if k.Namespace == "" && k.Name == "" {
		return string(k.Kind) // there is one of it
	}
	return string(k.Kind) + " " + k.Namespace + "/" + k.Name
}

// Compare orders keys by kind, namespace and name.
func (k Key) Compare(o Key) int {
	if c := cmp.Compare(k.Kind, o.Kind); c != 0 {
		return c
	}
	if c := cmp.Compare(k.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(k.Name, o.Name)
}

// Meta is what every object has besides its specification.
type Meta struct {
	Key
	Labels      map[string]string // or nil
	Annotations map[string]string // or nil
	// Created is metadata.creationTimestamp, or zero. Where two objects
	// conflict, the older one wins, as in Istio; see [Meta.Before].
	Created time.Time
	// Hash covers everything but Origin.
	Hash Hash
	// Origin is where the object was written; never nil.
	Origin *Origin
}

// Before reports whether m comes before o where order decides between
// conflicting objects: older first, then by name, then by namespace (Istio's
// sortConfigByCreationTime in pilot/pkg/model/config.go). Gateways have an order of their own:
// [CompareGateways].
func (m *Meta) Before(o *Meta) bool {
	if !m.Created.Equal(o.Created) {
		return m.Created.Before(o.Created)
	}
	return cmp.Or(strings.Compare(m.Name, o.Name), strings.Compare(m.Namespace, o.Namespace)) < 0
}
