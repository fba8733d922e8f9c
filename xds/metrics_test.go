package xds

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/smallmesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

func TestVersionLabelIsBounded(t *testing.T) {
	t.Parallel()
	labels := map[string]bool{}
	for major := range uint32(5) {
		for minor := range uint32(500) {
			labels[versionLabel(bootstrap.Version{Major: major, Minor: minor, Patch: minor})] = true
		}
	}
	if len(labels) > 102 || !labels["1.40"] || !labels["other"] || !labels["unknown"] {
		t.Errorf("%d labels: %v", len(labels), labels)
	}
}

// A rejected virtual host is counted in the metric for alerts.
func TestRejectedVirtualHostIsCounted(t *testing.T) {
	t.Parallel()
	o := smallmesh.Big(25)
	r := newRig(t, o, admitAll(o))
	p := fleet(t, o, 3)[relay]
	p.rejectName = func(url stream.TypeURL, name string) error {
		if url == stream.VirtualHostType && strings.Contains(name, "s0003.mesh") {
			return errRejectedByTest
		}
		return nil
	}
	p.open(r)
	eventually(t, "the rejection is counted", func() bool {
		m, err := r.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range m {
			if f.GetName() == "pilot_xds_vhds_reject" {
				return f.GetMetric()[0].GetGauge().GetValue() == 1
			}
		}
		return false
	})
}
