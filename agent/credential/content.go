package credential

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"
)

// State is how a credential stands.
type State string

// The states of a credential. All but Ready, Expired and Early leave the content that Envoy had
// before in use.
const (
	Ready      State = "ready"
	Missing    State = "missing"    // no folder, or not the files
	Unreadable State = "unreadable" // permission, no regular file, too large
	Broken     State = "broken"     // not what the files should have
	Mismatch   State = "mismatch"   // certificate and key do not belong together: a rotation may be half written
	Expired    State = "expired"
	Early      State = "early"    // not valid yet
	Rejected   State = "rejected" // Envoy rejects it
)

// Error is why a credential cannot be used.
type Error struct {
	State State
	Err   error
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func stateOf(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &Error{Missing, err}
	}
	return &Error{Unreadable, err}
}

// StateOf is the state that an error says.
func StateOf(err error) State {
	if err == nil {
		return Ready
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.State
	}
	return Unreadable
}

// Content is a credential that an Envoy accepts. Immutable. Chain and Key are of a certificate,
// CA and Revoked of authorities; all are PEM without anything else.
type Content struct {
	Chain, Key  []byte
	CA, Revoked []byte
	// NotBefore and NotAfter are those of the certificate; of authorities, the whole time in
	// which at least one is valid.
	NotBefore, NotAfter time.Time
	// ListEnds is when the first of the lists of revoked certificates is to be replaced; zero if
	// there is none.
	ListEnds time.Time
	// Warnings are what a person should change in the files although the content is used.
	Warnings []string
}

// String hides the key.
func (c *Content) String() string { return "credential until " + c.NotAfter.Format(time.RFC3339) }

// GoString hides the key.
func (c *Content) GoString() string { return c.String() }

// State is how the content stands at a time, and why it is not ready.
func (c *Content) State(now time.Time) (State, string) {
	switch {
	case now.Before(c.NotBefore):
		return Early, "it is not valid before " + c.NotBefore.UTC().Format(time.RFC3339)
	case now.After(c.NotAfter):
		return Expired, "it expired at " + c.NotAfter.UTC().Format(time.RFC3339)
	case !c.ListEnds.IsZero() && now.After(c.ListEnds):
		return Expired, fmt.Sprintf("its list of revoked certificates expired at %s, and Envoy then refuses every certificate", c.ListEnds.UTC().Format(time.RFC3339))
	}
	return Ready, ""
}

// WarningsAt are what a person should change at a time although the content is used: Warnings, and that it
// ends soon.
func (c *Content) WarningsAt(now time.Time) []string {
	const soon = 7 * 24 * time.Hour
	left := c.NotAfter.Sub(now)
	if _, why := c.State(now); why != "" || left >= soon || left >= c.NotAfter.Sub(c.NotBefore)/10 {
		return c.Warnings
	}
	return append(slices.Clone(c.Warnings), "it expires at "+c.NotAfter.UTC().Format(time.RFC3339))
}

const (
	certificateBlock = "CERTIFICATE"
	revokedBlock     = "X509 CRL"
	// minRSA is the shortest RSA key that Envoy accepts.
	minRSA = 2048
)

// ReadPair checks a certificate with its key, in files of these names. No error has anything of the
// key.
func ReadPair(certFile string, chain []byte, keyFile string, key []byte) (*Content, error) {
	return readPair(files{cert: certFile, key: keyFile}, chain, key)
}

// readPair checks a certificate with its key.
func readPair(k files, chain, key []byte) (*Content, error) {
	chain, certs, err := certificates(k.cert, chain)
	if err != nil {
		return nil, err
	}
	key, err = privateKey(k.key, key)
	if err != nil {
		return nil, err
	}
	leaf := certs[0]
	if err := fitForEnvoy(k.cert, leaf); err != nil {
		return nil, err
	}
	// The files are not replaced at one moment: between, they do not fit.
	if _, err := tls.X509KeyPair(chain, key); err != nil {
		state := Broken
		switch n := belongs(certs, key); {
		case n > 0:
			err = fmt.Errorf("%s: the certificate of the key in %s is number %d; write it first, and the chain to its authority behind it", k.cert, k.key, n+1)
		case strings.Contains(err.Error(), "does not match"):
			state = Mismatch
			err = fmt.Errorf("%s and %s do not belong together; if a rotation is under way, the other file follows", k.cert, k.key)
		default:
			err = fmt.Errorf("%s and %s cannot be used: %w", k.cert, k.key, err)
		}
		return nil, &Error{state, err}
	}
	return &Content{Chain: chain, Key: key, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter}, nil
}

// belongs is the index of the certificate of a key; -1 if it is none of the first of these.
func belongs(certs []*x509.Certificate, key []byte) int {
	const most = 16 // each costs a check of the key
	return slices.IndexFunc(certs[:min(len(certs), most)], func(c *x509.Certificate) bool {
		_, err := tls.X509KeyPair(pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: c.Raw}), key)
		return err == nil
	})
}

// certificates are those of a file, in PEM and parsed.
func certificates(file string, b []byte) ([]byte, []*x509.Certificate, error) {
	var out bytes.Buffer
	var list []*x509.Certificate
	for block := range blocks(b) {
		if block.Type != certificateBlock {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, &Error{Broken, fmt.Errorf("%s: the certificate number %d cannot be parsed: %w", file, len(list)+1, err)}
		}
		list = append(list, c)
		_ = pem.Encode(&out, &pem.Block{Type: certificateBlock, Bytes: block.Bytes})
	}
	if n := bytes.Count(b, []byte("-----BEGIN CERTIFICATE-----")); n != len(list) || n == 0 {
		return nil, nil, &Error{Broken, fmt.Errorf("%s: it has no certificate in PEM, or one that is not complete", file)}
	}
	return out.Bytes(), list, nil
}

// privateKey is the first private key of a file, and nothing else of it.
func privateKey(file string, b []byte) ([]byte, error) {
	for block := range blocks(b) {
		switch {
		case block.Type == "ENCRYPTED PRIVATE KEY", block.Headers["DEK-Info"] != "":
			return nil, &Error{Broken, fmt.Errorf("%s: the key is encrypted, and nobody is there to type its password; write it without one", file)}
		case block.Type == "PRIVATE KEY", strings.HasSuffix(block.Type, " PRIVATE KEY"):
			return pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}), nil
		}
	}
	return nil, &Error{Broken, fmt.Errorf("%s: it has no private key in PEM, or one that is not complete", file)}
}

// mustStaple is the TLS feature that requires an answer of the authority in each handshake.
//
//nolint:gochecknoglobals // a constant
var mustStaple = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 24}

// fitForEnvoy reports why Envoy would reject a certificate.
func fitForEnvoy(file string, c *x509.Certificate) error {
	bad := func(format string, args ...any) error {
		return &Error{Broken, fmt.Errorf("%s: "+format, append([]any{file}, args...)...)}
	}
	switch key := c.PublicKey.(type) {
	case *rsa.PublicKey:
		if n := key.N.BitLen(); n < minRSA {
			return bad("the RSA key has %d bits, and Envoy takes no less than %d", n, minRSA)
		}
	case *ecdsa.PublicKey:
		if !slices.Contains([]elliptic.Curve{elliptic.P256(), elliptic.P384(), elliptic.P521()}, key.Curve) {
			return bad("the curve of the key is %s, and Envoy takes P-256, P-384 and P-521", key.Curve.Params().Name)
		}
	default:
		return bad("Envoy takes RSA and ECDSA keys, and this is another one (%s)", c.PublicKeyAlgorithm)
	}
	if slices.ContainsFunc(c.Extensions, func(e pkix.Extension) bool { return e.Id.Equal(mustStaple) }) {
		return bad("the certificate requires an OCSP response in each handshake (must-staple), which is not supported; request one without")
	}
	return nil
}

// ReadRoots reads roots in a file of that name, of which some may be of a kind that this program does not
// know: public ones are many and old. was is what the file had before, or nil; it is the result if
// nothing changed.
func ReadRoots(file string, b []byte, was *Content) (*Content, error) {
	var out bytes.Buffer
	for block := range blocks(b) {
		if block.Type == certificateBlock {
			_ = pem.Encode(&out, &pem.Block{Type: certificateBlock, Bytes: block.Bytes})
		}
	}
	if was != nil && was.Revoked == nil && bytes.Equal(was.CA, out.Bytes()) {
		return was, nil
	}
	c := &Content{CA: out.Bytes()}
	for block := range blocks(c.CA) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			c.extend(cert)
		}
	}
	if c.NotAfter.IsZero() {
		return nil, &Error{Broken, fmt.Errorf("reading %q: it has no certificate in PEM, or none that can be parsed", file)}
	}
	return c, nil
}

// extend has the content of authorities last as long as one of them.
func (c *Content) extend(cert *x509.Certificate) {
	if c.NotAfter.IsZero() || cert.NotBefore.Before(c.NotBefore) {
		c.NotBefore = cert.NotBefore
	}
	if cert.NotAfter.After(c.NotAfter) {
		c.NotAfter = cert.NotAfter
	}
}

// ReadAuthorities checks authorities, and the list of revoked certificates beside them, in files of these
// names.
func ReadAuthorities(file string, ca []byte, listFile string, list []byte) (*Content, error) {
	return readAuthorities(files{ca: file, list: listFile}, ca, list)
}

// readAuthorities checks authorities, and the list of revoked certificates if there is one.
func readAuthorities(k files, ca, list []byte) (*Content, error) {
	ca, certs, err := certificates(k.ca, ca)
	if err != nil {
		return nil, err
	}
	c := &Content{CA: ca}
	for _, cert := range certs {
		c.extend(cert)
	}
	if list == nil {
		return c, nil
	}
	if err := c.revoke(k, list, certs); err != nil {
		return nil, err
	}
	return c, nil
}

// revoke adds the lists of revoked certificates. One that cannot be read is never left out:
// revoked certificates would be accepted.
func (c *Content) revoke(k files, b []byte, authorities []*x509.Certificate) error {
	var out bytes.Buffer
	var issuers []string
	fits := false
	for block := range blocks(b) {
		if block.Type != revokedBlock {
			continue
		}
		list, err := x509.ParseRevocationList(block.Bytes)
		if err != nil {
			return &Error{Broken, fmt.Errorf("%s: the list number %d cannot be parsed: %w", k.list, len(issuers)+1, err)}
		}
		issuers = append(issuers, list.Issuer.String())
		// Those of authorities that clients send with their certificates fit none.
		fits = fits || slices.ContainsFunc(authorities, func(ca *x509.Certificate) bool { return bytes.Equal(ca.RawSubject, list.RawIssuer) })
		if !list.NextUpdate.IsZero() && (c.ListEnds.IsZero() || list.NextUpdate.Before(c.ListEnds)) {
			c.ListEnds = list.NextUpdate
		}
		_ = pem.Encode(&out, &pem.Block{Type: revokedBlock, Bytes: block.Bytes})
	}
	switch n := bytes.Count(b, []byte("-----BEGIN "+revokedBlock+"-----")); {
	case n == 0 || n != len(issuers):
		return &Error{Broken, fmt.Errorf("%s: it has no list of revoked certificates in PEM, or one that is not complete (from DER: openssl crl -inform DER -in FILE -out %s)", k.list, k.list)}
	case !fits:
		return &Error{Mismatch, fmt.Errorf("%s: its issuer %q is none of the authorities in %s; if a rotation is under way, the other file follows", k.list, issuers[0], k.ca)}
	}
	c.Revoked = out.Bytes()
	return nil
}

// blocks are the blocks of PEM.
func blocks(b []byte) func(yield func(*pem.Block) bool) {
	return func(yield func(*pem.Block) bool) {
		for rest := b; ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil || !yield(block) {
				return
			}
		}
	}
}
