package lastgood_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
)

// putText puts a text into a set, as it was accepted after the one before.
func putText(set *lastgood.Set, path string, content []byte) {
	var old *lastgood.Version
	if t := set.Text(path); t != nil {
		old = t.V
	}
	b := lastgood.NewBlob(content)
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	v := lastgood.NextVersion(old, b, lastgood.Manifests(manifest.Options{}, path, content), now)
	set.Put(&lastgood.Text{Path: path, Root: "/x", Rel: path, V: v})
}

func limited(limit int) *lastgood.Set {
	set := lastgood.NewSet("files", lastgood.Words{Text: "file", Name: "path"})
	set.LimitExpansion(limit)
	return set
}

func entryKeys(a lastgood.Assembly) string {
	var names []string
	for _, svc := range a.Fragment.Services {
		if n := len(names); n == 0 || names[n-1] != svc.Name {
			names = append(names, svc.Name)
		}
	}
	return strings.Join(names, " ")
}

// TestSourceOverItsLimit fills a bound source over its limit: the largest objects are refused, with
// the figures at their positions, and are in force again when there is room.
func TestSourceOverItsLimit(t *testing.T) {
	t.Parallel()
	set := limited(100)
	for name, hosts := range map[string]int{"a": 10, "b": 20, "c": 30, "d": 5} {
		putText(set, name+".yaml", entryOf(name, hosts, 1, 2))
	}
	a := set.Assemble() // 20 + 40 + 60 + 10
	if got := entryKeys(a); got != "a b d" {
		t.Errorf("in force are %q; want all but the largest", got)
	}
	if len(a.Faults) != 1 || a.Faults[0].Code != lastgood.CodeExcess || a.Faults[0].Severity != manifest.Error || a.Faults[0].Origin.String() != "c.yaml:1:1" ||
		!strings.Contains(a.Faults[0].Message, "makes 130 after expansion") || !strings.Contains(a.Faults[0].Message, "may make 100") || !strings.Contains(a.Faults[0].Message, "this one makes 60") {
		t.Errorf("faults are %v", a.Faults)
	}
	set.Drop(set.Text("b.yaml"))
	if a = set.Assemble(); entryKeys(a) != "a c d" || len(a.Faults) != 0 {
		t.Errorf("in force are %q with %v; want all that is left", entryKeys(a), a.Faults)
	}
	putText(set, "d.yaml", entryOf("d", 41, 1, 2))
	if a = set.Assemble(); entryKeys(a) != "a c" || len(a.Faults) != 1 {
		t.Errorf("in force are %q with %v; want the largest refused, and no earlier version of it", entryKeys(a), a.Faults)
	}
}

// TestRefusedPolicyDenies fills a source with policies: they are refused last, and what such a
// policy selects denies.
func TestRefusedPolicyDenies(t *testing.T) {
	t.Parallel()
	set := limited(10)
	policy := "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: evil}\nspec:\n  rules:\n  - to:\n    - operation:\n        paths:\n"
	policy += "        - /a\n        - /b\n        - /c\n        - /d\n        - /e\n        - /f\n        - /g\n        - /h\n        - /i\n"
	putText(set, "p.yaml", []byte(policy))
	putText(set, "s.yaml", entryOf("s", 2, 1, 1))
	if a := set.Assemble(); len(a.Fragment.AuthorizationPolicies) != 1 || entryKeys(a) != "" {
		t.Errorf("%d policies, entries %q; want the policy, although it is the largest", len(a.Fragment.AuthorizationPolicies), entryKeys(a))
	}
	policy += "        - /j\n        - /k\n        - /l\n"
	putText(set, "p.yaml", []byte(policy))
	a := set.Assemble()
	if len(a.Fragment.AuthorizationPolicies) != 0 || len(a.Fragment.Unenforced) != 1 {
		t.Errorf("%d policies, %d that deny; want one that denies", len(a.Fragment.AuthorizationPolicies), len(a.Fragment.Unenforced))
	}
	set.Drop(set.Text("p.yaml"))
	if a = set.Assemble(); len(a.Fragment.Unenforced) != 0 || entryKeys(a) != "s" {
		t.Errorf("%d that deny, entries %q after the policy is deleted", len(a.Fragment.Unenforced), entryKeys(a))
	}
}

// TestSelectedWorkloadsCount counts the workloads that a service selects.
func TestSelectedWorkloadsCount(t *testing.T) {
	t.Parallel()
	set := limited(40)
	for i := range 20 {
		putText(set, fmt.Sprintf("w%02d.yaml", i), fmt.Appendf(nil,
			"apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: w%02d, namespace: evil}\nspec: {address: 10.0.0.%d, labels: {app: a, half: h%d}}\n", i, i+1, i%2))
	}
	selecting := func(name, selector string) {
		putText(set, name+".yaml", fmt.Appendf(nil, "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: %s, namespace: evil}\n"+
			"spec: {hosts: [%s.evil.test], ports: [{name: http, number: 80, protocol: HTTP}], resolution: STATIC, workloadSelector: {labels: %s}}\n", name, name, selector))
	}
	selecting("half", "{app: a, half: h1}") // 20 workloads, and 10 that it selects
	if a := set.Assemble(); entryKeys(a) != "half" {
		t.Errorf("in force are %q with %v", entryKeys(a), a.Faults)
	}
	selecting("whole", "{app: a}")
	if a := set.Assemble(); entryKeys(a) != "half" || len(a.Faults) != 1 || !strings.Contains(a.Faults[0].Message, "this one makes 20") {
		t.Errorf("in force are %q with %v", entryKeys(a), a.Faults)
	}
}

// TestLimitIsTheSameOnEveryServer edits texts at random: what is in force, and what is wrong,
// equals what a server has that reads the texts for the first time.
func TestLimitIsTheSameOnEveryServer(t *testing.T) {
	t.Parallel()
	ignore := cmp.Comparer(func(a, b lastgood.Kept) bool { return a.Key == b.Key })
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		set, now := limited(60), map[string][]byte{}
		refused := 0
		for range 30 {
			name := string(rune('a' + random.IntN(8)))
			if random.IntN(5) == 0 {
				if text := set.Text(name + ".yaml"); text != nil {
					set.Drop(text)
					delete(now, name)
				}
			} else {
				now[name] = entryOf(name, 1+random.IntN(5), 1+random.IntN(2), 1+random.IntN(3))
				putText(set, name+".yaml", now[name])
			}
			got := set.Assemble()
			fresh := limited(60)
			for name, content := range now {
				putText(fresh, name+".yaml", content)
			}
			want := fresh.Assemble()
			if diff := cmp.Diff(want, got, ignore); diff != "" {
				t.Fatalf("seed %d (-fresh +edited):\n%s", seed, diff)
			}
			refused += len(got.Faults)
		}
		if refused == 0 {
			t.Errorf("seed %d: nothing was refused", seed)
		}
	}
}
