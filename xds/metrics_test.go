package xds

import (
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
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
