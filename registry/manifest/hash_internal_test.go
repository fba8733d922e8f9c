package manifest

import (
	"encoding/hex"
	"testing"
	"time"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestHash: a release that hashes the same content otherwise has every host be
// sent everything again.
func TestHash(t *testing.T) {
	t.Parallel()
	spec := &networking.WorkloadEntry{
		Address: "10.0.0.1", Labels: map[string]string{"b": "2", "a": "1"}, Ports: map[string]uint32{"http": 80}, Weight: 3,
	}
	for name, c := range map[string]struct {
		meta mesh.Meta
		want string
	}{
		"short": {mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "n", Name: "w"}}, "cf6095323f72459bc44391625bf19c322e9b7b8930fb688e369471054bf3f9cc"},
		"long": {mesh.Meta{
			Key:    mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "n", Name: "w"},
			Labels: map[string]string{"z": "", "y": "1"}, Annotations: map[string]string{"k": "v"},
			Created: time.Date(2026, 1, 31, 12, 0, 0, 5, time.UTC),
		}, "3a656a85d80910caa9dd410ef384e6cf515ba3a8b68d2ac80af1fdf1beadf0cb"},
	} {
		h := hashOf(&c.meta, spec)
		if got := hex.EncodeToString(h[:]); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
