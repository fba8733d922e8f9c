package profile

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// Bounds on the life of a leaf.
const (
	// DefaultTTL is the life of a leaf when nobody asks for another.
	DefaultTTL = 24 * time.Hour
	// MinTTL is the shortest life that leaves time to renew.
	MinTTL = 10 * time.Second
	// MaxTTL is more than any setting may allow.
	MaxTTL = 90 * 24 * time.Hour
	// RootTTL is the life of a self-signed root.
	RootTTL = 10 * 365 * 24 * time.Hour
)

// Leaves begin a little before they are issued, for clocks that are behind: a
// tenth of the life, a minute at most.
const (
	backdateMax   = time.Minute
	backdateShare = 10
	// rootBackdate is how long before it is made a root begins: a young mesh, too,
	// goes on when the server's clock is set back.
	rootBackdate = 7 * 24 * time.Hour
)

// IstiodName is the DNS name that Istio's own clients expect of the control
// plane.
const IstiodName = "istiod.istio-system.svc"

// Leaf is a certificate to be made.
type Leaf struct {
	Subject   Subject
	PublicKey crypto.PublicKey
	// ServerNames are DNS names and IP addresses besides; for ControlPlane only.
	ServerNames []string
	// Workload is who the workload is in metrics; the zero value is nobody. What does not fit is
	// left out.
	Workload WorkloadName
	// TTL is how long from now on.
	TTL time.Duration
}

// Template is the certificate to sign. It is refused when Check would refuse it.
func (l Leaf) Template(now time.Time) (*x509.Certificate, error) {
	if err := l.check(); err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	ext, err := l.Subject.extension()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		NotBefore:             now.Add(-Backdate(l.TTL)).UTC(),
		NotAfter:              now.Add(l.TTL).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{l.Subject.ID.URL()},
		ExtraExtensions:       []pkix.Extension{ext},
		Subject:               l.Workload.subject(),
	}
	for _, n := range l.ServerNames {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
			continue
		}
		t.DNSNames = append(t.DNSNames, n)
	}
	return t, nil
}

func (l Leaf) check() error {
	want, err := ParseID(l.Subject.ID)
	if err != nil {
		return err
	}
	if err := l.Subject.matches(want); err != nil {
		return err
	}
	if l.TTL < MinTTL || l.TTL > MaxTTL {
		return fmt.Errorf("life of %s: must be between %s and %s", l.TTL, MinTTL, MaxTTL)
	}
	if len(l.ServerNames) > 0 && l.Subject.Kind != ControlPlane {
		return fmt.Errorf("certificate of kind %s: has no server names", l.Subject.Kind)
	}
	if l.Workload != (WorkloadName{}) && l.Subject.Kind != Impersonated && l.Subject.Kind != Direct {
		return fmt.Errorf("certificate of kind %s: is no workload's, and has no name of one", l.Subject.Kind)
	}
	return CheckKey(l.PublicKey)
}

// matches checks what a subject claims against what its identity says.
func (s Subject) matches(id Subject) error {
	kind := id.Kind
	if kind == Impersonated && s.Kind == Direct {
		kind = Direct
	}
	if s.Kind != kind {
		return fmt.Errorf("identity %s: cannot be of kind %s", id.ID, s.Kind)
	}
	if s.Host != id.Host || s.Pair != id.Pair {
		return fmt.Errorf("identity %s: names another host or workload than was asked for", id.ID)
	}
	if (s.Binding == Binding{}) != (s.Kind == ControlPlane) {
		return fmt.Errorf("identity %s: binding does not go with kind %s", id.ID, s.Kind)
	}
	return nil
}

// Check says who a leaf names, or why it is not a leaf of this mesh. It looks at
// the certificate alone, not at its signature or at the time.
func Check(cert *x509.Certificate) (Subject, error) {
	id, err := checkSVID(cert)
	if err != nil {
		return Subject{}, err
	}
	s, err := ParseID(id)
	if err != nil {
		return Subject{}, err
	}
	kind, binding, err := parseExtension(cert)
	if err != nil {
		return Subject{}, fmt.Errorf("certificate of %s: %w", id, err)
	}
	got := s
	got.Kind, got.Binding = kind, binding
	if err := got.matches(s); err != nil {
		return Subject{}, err
	}
	if kind != ControlPlane && len(cert.DNSNames)+len(cert.IPAddresses) > 0 {
		return Subject{}, fmt.Errorf("certificate of %s: has names of a server", id)
	}
	return got, nil
}

// checkSVID holds the certificate against the SPIFFE X509-SVID standard.
func checkSVID(cert *x509.Certificate) (spiffeid.ID, error) {
	switch {
	case len(cert.URIs) != 1:
		return spiffeid.ID{}, fmt.Errorf("certificate with %d URI names: want exactly one, a SPIFFE ID", len(cert.URIs))
	case cert.IsCA:
		return spiffeid.ID{}, errors.New("certificate of an authority where a leaf is wanted")
	case cert.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return spiffeid.ID{}, errors.New("leaf certificate that may not sign")
	case cert.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return spiffeid.ID{}, errors.New("leaf certificate that may sign certificates")
	case len(cert.EmailAddresses) > 0:
		return spiffeid.ID{}, errors.New("certificate with e-mail addresses")
	}
	var client, server bool
	for _, u := range cert.ExtKeyUsage {
		client = client || u == x509.ExtKeyUsageClientAuth
		server = server || u == x509.ExtKeyUsageServerAuth
	}
	if !client || !server {
		return spiffeid.ID{}, errors.New("certificate not for clients and servers both")
	}
	if err := CheckKey(cert.PublicKey); err != nil {
		return spiffeid.ID{}, err
	}
	return spiffeid.FromURI(cert.URIs[0])
}

// Root is the template of a self-signed authority.
func Root(td spiffeid.TrustDomain, now time.Time) (*x509.Certificate, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{Organization: []string{organization}, CommonName: "authority of " + clipTo(td.Name(), 40)},
		NotBefore:             now.Add(-rootBackdate).UTC(),
		NotAfter:              now.Add(RootTTL).UTC(),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		// It signs leaves and no further authority: whoever gets it to sign one more
		// certificate has no second root.
		MaxPathLen:     0,
		MaxPathLenZero: true,
		URIs:           []*url.URL{td.ID().URL()},
	}, nil
}

// CheckRoot says whether cert is an authority's, and of which trust domain.
func CheckRoot(cert *x509.Certificate) (spiffeid.TrustDomain, error) {
	if !cert.IsCA || !cert.BasicConstraintsValid || cert.KeyUsage&x509.KeyUsageCertSign == 0 {
		return spiffeid.TrustDomain{}, errors.New("certificate is not an authority's")
	}
	if len(cert.URIs) != 1 {
		return spiffeid.TrustDomain{}, fmt.Errorf("authority's certificate has %d URI names: want one, its trust domain", len(cert.URIs))
	}
	id, err := spiffeid.FromURI(cert.URIs[0])
	if err != nil {
		return spiffeid.TrustDomain{}, fmt.Errorf("authority's certificate: %w", err)
	}
	if id.Path() != "" {
		return spiffeid.TrustDomain{}, fmt.Errorf("authority's certificate: %q is not a trust domain", clip(id.String()))
	}
	return id.TrustDomain(), nil
}

// Backdate is how long before its issue a leaf of that life begins.
func Backdate(ttl time.Duration) time.Duration { return min(backdateMax, ttl/backdateShare) }

// IssuedAt is the time a leaf with these ends was issued: Backdate undone.
func IssuedAt(notBefore, notAfter time.Time) time.Time {
	total := notAfter.Sub(notBefore)
	return notBefore.Add(min(backdateMax, total/(backdateShare+1)))
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number: %w", err)
	}
	return serial.Add(serial, big.NewInt(1)), nil
}

func clipTo(s string, n int) string {
	if len(s) > n {
		s = strings.TrimRight(s[:n], ".")
	}
	return s
}
