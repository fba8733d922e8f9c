package profile

import (
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"
)

// ErrExpired says that a certificate is in order but for its time.
var ErrExpired = errors.New("certificate has expired")

// Verification is what a chain is held against.
type Verification struct {
	// Bundle are the trusted roots.
	Bundle      []*x509.Certificate
	TrustDomain spiffeid.TrustDomain
	Now         time.Time
	// AcceptEarly takes a leaf that has not begun at Now. The authority signed it,
	// so one of two clocks is wrong, and the certificate is genuine either way:
	// between a host and its control plane a clock that was set back must not
	// lock out those who were certified before. The end counts as ever.
	AcceptEarly bool
}

// Verify says whom the chain proves, leaf first. A leaf whose only fault is that
// its time is over gives its Subject and an error that is ErrExpired, for the
// one caller who may renew it.
func (v Verification) Verify(chain []*x509.Certificate) (Subject, error) {
	if len(chain) == 0 {
		return Subject{}, errors.New("no certificate")
	}
	leaf := chain[0]
	s, err := Check(leaf)
	if err != nil {
		return Subject{}, err
	}
	if !s.ID.MemberOf(v.TrustDomain) {
		return Subject{}, fmt.Errorf("certificate of %s: not of trust domain %q", s.ID, v.TrustDomain.Name())
	}
	at, expired := v.Now, v.Now.After(leaf.NotAfter)
	switch {
	case expired:
		at = leaf.NotAfter
	case v.AcceptEarly && at.Before(leaf.NotBefore):
		at = leaf.NotBefore
	}
	roots, middle := x509.NewCertPool(), x509.NewCertPool()
	for _, c := range v.Bundle {
		roots.AddCert(c)
	}
	for _, c := range chain[1:] {
		middle.AddCert(c)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: middle, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return Subject{}, fmt.Errorf("certificate of %s: %w", s.ID, err)
	}
	if expired {
		return s, fmt.Errorf("certificate of %s: %w at %s", s.ID, ErrExpired, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return s, nil
}
