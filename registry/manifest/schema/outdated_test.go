//go:build outdated

package schema_test

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/semver"
)

// patience is how long a newer minor release may be there before somebody has to look at it.
const patience = 30 * 24 * time.Hour

// module is what `go list -m -json` says of a version.
type module struct {
	Version string
	Time    time.Time
}

func list(t *testing.T, arguments ...string) []byte {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list", "-m"}, arguments...)...).Output()
	if err != nil {
		t.Fatalf("go list -m %s: %v", strings.Join(arguments, " "), err)
	}
	return out
}

// TestAPIIsNewest: the module proxy has no newer minor release of Istio's API, or not for long.
func TestAPIIsNewest(t *testing.T) {
	var used module
	if err := json.Unmarshal(list(t, "-json", "istio.io/api"), &used); err != nil {
		t.Fatal(err)
	}
	versions := strings.Fields(string(list(t, "-versions", "istio.io/api")))[1:]
	if len(versions) == 0 {
		t.Fatal("the module proxy lists no versions")
	}
	for _, v := range versions {
		if semver.Prerelease(v) != "" || semver.Compare(semver.MajorMinor(v), semver.MajorMinor(used.Version)) <= 0 {
			continue
		}
		var newer module
		if err := json.Unmarshal(list(t, "-json", "istio.io/api@"+v), &newer); err != nil {
			t.Fatal(err)
		}
		if age := time.Since(newer.Time); age > patience {
			t.Errorf("istio.io/api %s is there for %d days, and %s is used: read what is new, update go.mod and docs/reference-fields.md", v, int(age.Hours()/24), used.Version)
		}
	}
}
