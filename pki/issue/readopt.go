package issue

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// What a call may show of workloads' certificates.
const (
	maxHeld     = svid.MaxPairs
	maxHeldSize = 8 << 10
)

// heldOf are the certificates of its workloads that a host shows in a call's
// metadata, none of them proven.
func heldOf(ctx context.Context) []string {
	md, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return nil
	}
	held := md.Get(svid.HeldCertificate)
	return held[:min(len(held), maxHeld)]
}

// readopt admits a host whose record was lost, where the settings say so, by what
// this authority has certified: its own certificate, whose key the handshake has
// proven, and those of workloads under the same binding, which were given to no
// other host. All must be in force: what was removed for long has none.
func (s *Service) readopt(c call, subject profile.Subject, expired bool, now time.Time) (attest.Host, error) {
	if expired {
		return attest.Host{}, errors.New("certificate has ended")
	}
	key, err := profile.HashKey(c.chain[0].PublicKey)
	if err != nil {
		return attest.Host{}, err
	}
	p := attest.Proven{Name: subject.Host, Binding: subject.Binding, Direct: subject.Kind == profile.Direct, Key: key}
	if p.Direct {
		p.Pairs = []profile.Pair{subject.Pair}
	} else if p.Pairs = s.heldPairs(c, subject.Binding, now); len(p.Pairs) == 0 {
		return attest.Host{}, errors.New("no certificate of a workload of it was shown")
	}
	return s.entitlements.Readopt(p, now)
}

func (s *Service) heldPairs(c call, binding profile.Binding, now time.Time) (pairs []profile.Pair) {
	for _, der := range c.held {
		if len(der) > maxHeldSize {
			continue
		}
		cert, err := x509.ParseCertificate([]byte(der))
		if err != nil {
			continue
		}
		got, err := profile.Verification{Bundle: s.authority.Bundle(), TrustDomain: s.authority.TrustDomain(), Now: now}.Verify([]*x509.Certificate{cert})
		if err == nil && got.Kind == profile.Impersonated && got.Binding == binding && !slices.Contains(pairs, got.Pair) {
			pairs = append(pairs, got.Pair)
		}
	}
	slices.SortFunc(pairs, profile.Pair.Compare)
	return pairs
}

// unknown is why a certificate's host is not known.
func unknown(subject profile.Subject, why error) error {
	err := fmt.Errorf("certificate of %s: its host was removed or replaced; make a join token for it, with --replace if the name is in use", subject.ID)
	if errors.Is(why, attest.ErrNotFound) {
		return err
	}
	return fmt.Errorf("%w; it is not admitted by its certificates (--readopt-until): %w", err, why)
}
