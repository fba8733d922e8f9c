package xds

import (
	"testing"

	"github.com/fairlead/fairlead/registry/mesh"
)

// TestOnlyHealth keeps the files out of the log that nobody has written.
func TestOnlyHealth(t *testing.T) {
	t.Parallel()
	health, config := mesh.Change{Reach: mesh.ReachHealth}, mesh.Change{Reach: mesh.ReachConfig}
	if !onlyHealth([]mesh.Change{health}) || onlyHealth([]mesh.Change{health, config}) || onlyHealth(nil) {
		t.Error("a change of health is not told from one of configuration")
	}
}
