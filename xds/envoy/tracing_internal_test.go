package envoy

import (
	"strings"
	"testing"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

// TestAgentsSetTheVariablesOfTags: each variable that a tag of spans reads is one that agents set,
// and the other way round.
func TestAgentsSetTheVariablesOfTags(t *testing.T) {
	t.Parallel()
	who := bootstrap.Workload{Name: "a", Namespace: "b", CanonicalName: "c", CanonicalRevision: "d", App: "e", Cluster: "f"}
	set := map[string]bool{}
	for _, kv := range who.TraceEnviron("mesh", "") {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "FAIRLEAD_") {
			set[name] = true
		}
	}
	for _, tag := range istioTags() {
		if !set[tag.variable] {
			t.Errorf("no agent sets %s, which the tag %s reads", tag.variable, tag.tag)
		}
		delete(set, tag.variable)
	}
	for name := range set {
		t.Errorf("agents set %s, and no tag reads it", name)
	}
}
