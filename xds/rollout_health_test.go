package xds

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestOnlyHealth: the log names no files if only health has changed.
func TestOnlyHealth(t *testing.T) {
	t.Parallel()
	health, config := mesh.Change{Reach: mesh.ReachHealth}, mesh.Change{Reach: mesh.ReachConfig}
	if !onlyHealth([]mesh.Change{health}) || onlyHealth([]mesh.Change{health, config}) || onlyHealth(nil) {
		t.Error("a change of health is not distinguished from one of configuration")
	}
}

// TestEditWithoutEffectIsLogged: an edited comment, or a rule that affects no proxy, is
// logged; endpoints that change without effect are not.
func TestEditWithoutEffectIsLogged(t *testing.T) {
	t.Parallel()
	at := &mesh.Origin{Path: "a.yaml", Line: 1, Column: 1}
	for reach, want := range map[mesh.Reach]bool{mesh.ReachNone: true, mesh.ReachConfig: true, mesh.ReachEndpoints: false, mesh.ReachHealth: false} {
		if got := written([]mesh.Change{{Reach: reach, Origin: at}}); got != want {
			t.Errorf("reach %v: %v", reach, got)
		}
	}
	if written([]mesh.Change{{Reach: mesh.ReachConfig}}) {
		t.Error("what is written nowhere was written")
	}
	o := smallmesh.Shop()
	r := newRig(t, o, nil)
	r.connect(t, node("web", "127.0.0.11"), nil)
	r.synced(t, "web.shop")
	moved := o.Snapshot(r.mesh.Snapshot())
	moved.Changes = []mesh.Change{{Op: mesh.Updated, Reach: mesh.ReachNone, Origin: at}}
	r.mesh.publish(moved)
	eventually(t, "it is logged that it affects no proxy", func() bool {
		return strings.Contains(r.log.String(), `level=INFO msg="change affects no proxy's configuration" component=xds changed=[a.yaml]`)
	})
}
