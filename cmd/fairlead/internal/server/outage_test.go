package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

func TestOutages(t *testing.T) {
	t.Parallel()
	o := outages{filepath.Join(t.TempDir(), "outages.json")}
	if got, err := o.Load(); err != nil || len(got) > 0 {
		t.Errorf("of a new server: %v %v", got, err)
	}
	want := []mesh.HealthReport{{
		ServiceAccount: mesh.ServiceAccount{Namespace: "shop", Name: "web"}, Address: "10.0.0.1", Health: mesh.Unhealthy, Reason: "503", Own: true,
	}}
	if err := o.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := o.Load()
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("loaded %v (-want +got):\n%s", err, diff)
	}
	if err := os.WriteFile(o.path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Load(); err == nil {
		t.Error("a damaged file was taken")
	}
}
