package profile_test

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/profile"
)

// A root signs leaves: an authority below it is nobody's, also where somebody got
// the root to sign one. Roots of earlier versions have no path length, and go on.
func TestRootSignsNoFurtherAuthority(t *testing.T) {
	t.Parallel()
	for _, old := range []bool{false, true} {
		now, rootKey, midKey, key := time.Now(), newKey(t), newKey(t), newKey(t)
		template, err := profile.Root(td(), now)
		if err != nil {
			t.Fatal(err)
		}
		if old {
			template.MaxPathLen, template.MaxPathLenZero = -1, false
		}
		root := sign(t, template, template, rootKey.Public(), rootKey)
		if _, err := profile.CheckRoot(root); err != nil {
			t.Errorf("root, old %v: %v", old, err)
		}
		wanted, err := leaf(t, key.Public()).Template(now)
		if err != nil {
			t.Fatal(err)
		}
		verify := profile.Verification{Bundle: []*x509.Certificate{root}, TrustDomain: td(), Now: now}
		if _, err := verify.Verify([]*x509.Certificate{sign(t, wanted, root, key.Public(), rootKey)}); err != nil {
			t.Errorf("leaf of the root, old %v: %v", old, err)
		}
		below, err := profile.Root(td(), now)
		if err != nil {
			t.Fatal(err)
		}
		mid := sign(t, below, root, midKey.Public(), rootKey)
		if _, err := verify.Verify([]*x509.Certificate{sign(t, wanted, mid, key.Public(), midKey), mid}); (err == nil) != old {
			t.Errorf("leaf of an authority below the root, old %v: %v", old, err)
		}
	}
}
