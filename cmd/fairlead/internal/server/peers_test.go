package server

import (
	"testing"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestHostsAreReserved has the names that the authority gives to hosts, and what
// the mesh welcomes as traffic, be of one mind.
func TestHostsAreReserved(t *testing.T) {
	t.Parallel()
	td := spiffeid.RequireTrustDomainFromString("mesh.test")
	host, err := profile.HostID(td, "web-1")
	if err != nil {
		t.Fatal(err)
	}
	own, err := profile.ControlPlaneID(td)
	if err != nil {
		t.Fatal(err)
	}
	if !mesh.IsReservedIdentity(host.String()) {
		t.Errorf("%s is welcome as traffic", host)
	}
	for _, id := range []string{own.String(), "spiffe://mesh.test/ns/shop/sa/web", "spiffe://mesh.test/fairleader/x", "https://mesh.test/fairlead/x", "fairlead/x"} {
		if mesh.IsReservedIdentity(id) {
			t.Errorf("%s is reserved", id)
		}
	}
}
