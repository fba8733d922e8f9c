package view

import (
	"cmp"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// DefaultCertificateTTL is the life of certificates unless the server is told
// otherwise.
const DefaultCertificateTTL = 24 * time.Hour

// Settings are what the flags of the control plane say about every proxy, whatever
// the mesh does. They are the same for an Index and all that come after it. What
// comes of them is in the content of parts, so that servers with the same settings
// give the same versions.
type Settings struct {
	// CertificateTTL is the life of workloads' certificates; 0 means
	// DefaultCertificateTTL.
	CertificateTTL time.Duration
	// MaxConnectionAge is how long connections with mTLS live. 0 means half of a
	// certificate's life for HTTP, and no limit for TCP, which cannot be drained.
	MaxConnectionAge time.Duration
}

// NewIndex prepares a snapshot for building views with these settings.
func (s Settings) NewIndex(snapshot *mesh.Snapshot) *Index { return newIndex(nil, snapshot, s) }

// serverAge is how long a server lets a connection live.
func (s Settings) serverAge(http bool) time.Duration {
	if !http {
		return s.MaxConnectionAge
	}
	return cmp.Or(s.MaxConnectionAge, cmp.Or(s.CertificateTTL, DefaultCertificateTTL)/2)
}

// clientAge is how long a client sends new requests on a connection. It leaves
// before the server would hang up, so that no request meets a connection that is
// being closed. Connections of TCP are the server's to end.
func (s Settings) clientAge(p mesh.Protocol) time.Duration {
	if !p.IsHTTP() && p != mesh.Undeclared {
		return 0
	}
	age := s.serverAge(true)
	return age - age/10
}
