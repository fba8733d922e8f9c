package issue

import (
	"crypto/x509"

	"github.com/fairlead/fairlead/internal/wallclock"
)

// Identify says whom a client certificate proves to the control plane: a host of
// the mesh or a direct client that is on record, also where the certificate has
// ended and may be renewed. It is for those who bound what peers may take before
// they call; each call is authenticated by itself.
func (s *Service) Identify(chain []*x509.Certificate) (identity string, ok bool) {
	if len(chain) == 0 || len(chain[0].URIs) != 1 {
		return "", false
	}
	c := call{chain: chain, id: chain[0].URIs[0].String()}
	if _, _, err := s.byCertificate(c, wallclock.Now()); err != nil {
		return "", false
	}
	return c.id, true
}
