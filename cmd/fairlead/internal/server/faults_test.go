package server

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestOneSourceDoesNotFillTheStatus has 100,000 warnings and 1,000 long errors in one source.
func TestOneSourceDoesNotFillTheStatus(t *testing.T) {
	t.Parallel()
	var st files.Status
	for i := range 101_000 {
		f := manifest.Fault{Origin: &mesh.Origin{Path: "a.yaml", Line: i + 1}, Severity: manifest.Warning, Message: "w"}
		if i >= 100_000 {
			f.Severity, f.Message = manifest.Error, strings.Repeat("x", 10*maxFault)
		}
		st.Faults = append(st.Faults, f)
	}
	shortenFaults(&st)
	if len(st.Faults) != maxFaults || st.MoreErrors != 1000-maxFaults {
		t.Errorf("%d faults, %d more errors", len(st.Faults), st.MoreErrors)
	}
	for _, f := range st.Faults {
		if f.Severity != manifest.Error || len(f.Message) > maxFault {
			t.Fatalf("it has %.100s", f)
		}
	}
}
