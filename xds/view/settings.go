package view

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/mesh"
)

// DefaultCertificateTTL is the lifetime of certificates unless the server has another
// setting.
const DefaultCertificateTTL = 24 * time.Hour

// Settings are the flags of the control plane that apply to every proxy, whatever the mesh
// contains. An Index and all its successors have the same settings. Their effect is in the
// content of parts, so servers with the same settings produce the same versions.
type Settings struct {
	// CertificateTTL is the lifetime of workload certificates; 0 means
	// DefaultCertificateTTL.
	CertificateTTL time.Duration
	// MaxConnectionAge is how long mTLS connections live. 0 means half of the certificate
	// lifetime for HTTP, and no limit for TCP, which cannot be drained.
	MaxConnectionAge time.Duration
	// DualStackDNS connects proxies that have addresses of both families to the IPv4 and
	// IPv6 addresses of a name; otherwise to its IPv4 addresses only.
	DualStackDNS bool
	// CaptureDetectionTimeout is how long a captured inbound connection waits for the client's
	// first bytes where it may be plaintext TCP: the application is reached only then, and some
	// speak first. 0 means DefaultCaptureDetectionTimeout. MeshConfig's protocolDetectionTimeout
	// comes first.
	CaptureDetectionTimeout time.Duration
	// AddressRange is that of the virtual addresses that the server chooses; the zero value means
	// the default.
	AddressRange netip.Prefix
	// QUICListeners has gateways listen for HTTP/3 beside HTTPS.
	QUICListeners bool
}

// LoopbackAddress is an address of 127.0.0.0/8 for a virtual one of the server's range: Linux has all
// of them without being asked, and anybody may listen there. It is the same with 127 in front, so that
// no two addresses of the range have the same one. 127.0.0.0/16 belongs to the host: resolvers and others
// are there.
func (s Settings) LoopbackAddress(virtual string) (string, bool) {
	a, err := netip.ParseAddr(virtual)
	if err != nil || !a.Is4() || !cmp.Or(s.AddressRange, addresses.Default()).Contains(a) {
		return "", false
	}
	b := a.As4()
	if b[1] == 0 {
		return "", false
	}
	b[0] = 127
	return netip.AddrFrom4(b).String(), true
}

// DefaultCaptureDetectionTimeout is long enough for the first bytes of TLS from a slow client:
// later ones would be taken for plaintext.
const DefaultCaptureDetectionTimeout = time.Second

func (s Settings) captureDetectionTimeout() time.Duration {
	return cmp.Or(s.CaptureDetectionTimeout, DefaultCaptureDetectionTimeout)
}

// NewIndex prepares a snapshot for building views with these settings.
func (s Settings) NewIndex(snapshot *mesh.Snapshot) *Index { return newIndex(nil, snapshot, s) }

// lookupFamily is the family of the addresses of DNS names for a proxy (Istio's
// SelectDNSLookupFamily).
func (s Settings) lookupFamily(p *Proxy) LookupFamily {
	v4, v6 := p.families()
	switch {
	case v6 && !v4:
		return LookupV6
	case v6 && s.DualStackDNS:
		return LookupAll
	default:
		return LookupV4
	}
}

// serverAge is the maximum age of a connection at the server's side.
func (s Settings) serverAge(http bool) time.Duration {
	if !http {
		return s.MaxConnectionAge
	}
	return cmp.Or(s.MaxConnectionAge, cmp.Or(s.CertificateTTL, DefaultCertificateTTL)/2)
}

// clientAge is how long a client sends new requests on a connection. It is shorter than
// serverAge, so that no request meets a connection that the server is closing. TCP
// connections are ended by the server alone.
func (s Settings) clientAge(p mesh.Protocol) time.Duration {
	if !p.IsHTTP() && p != mesh.Undeclared {
		return 0
	}
	age := s.serverAge(true)
	return age - age/10
}
