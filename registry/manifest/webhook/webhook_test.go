package webhook

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"gopkg.in/yaml.v3"
	extensions "istio.io/api/extensions/v1alpha1"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	"istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// caseGroup is a set of specs that differ from a base in one place.
type caseGroup struct {
	Kind string
	Name string
	// Base is the spec, or nil; At is the place in it that each case is laid over.
	Base any
	At   []any
	// Annotations and Labels are the object's.
	Annotations, Labels map[string]string
	// Valid and Invalid are the cases by name; null removes a field.
	Valid, Invalid map[string]any
}

func message(t *testing.T, kind string) proto.Message {
	t.Helper()
	all := map[string]proto.Message{
		"AuthorizationPolicy": &security.AuthorizationPolicy{}, "DestinationRule": &networking.DestinationRule{},
		"EnvoyFilter": &networking.EnvoyFilter{}, "Gateway": &networking.Gateway{}, "MeshConfig": &meshconfig.MeshConfig{},
		"PeerAuthentication": &security.PeerAuthentication{}, "ProxyConfig": &v1beta1.ProxyConfig{},
		"RequestAuthentication": &security.RequestAuthentication{}, "ServiceEntry": &networking.ServiceEntry{},
		"Sidecar": &networking.Sidecar{}, "Telemetry": &telemetryv1alpha1.Telemetry{},
		"TrafficExtension": &extensions.TrafficExtension{}, "VirtualService": &networking.VirtualService{},
		"WasmPlugin": &extensions.WasmPlugin{}, "WorkloadEntry": &networking.WorkloadEntry{}, "WorkloadGroup": &networking.WorkloadGroup{},
	}
	m := all[kind]
	if m == nil {
		t.Fatalf("unknown kind %q", kind)
	}
	return m
}

// overlay returns a copy of base in which the place at has the fields of change.
func overlay(t *testing.T, base any, at []any, change any) any {
	t.Helper()
	if len(at) > 0 {
		switch key := at[0].(type) {
		case int:
			list, ok := base.([]any)
			if !ok || key >= len(list) {
				t.Fatalf("no list with item %d in %v", key, base)
			}
			list = slices.Clone(list)
			list[key] = overlay(t, list[key], at[1:], change)
			return list
		case string:
			m, ok := base.(map[string]any)
			if !ok {
				m = map[string]any{}
			}
			m = maps.Clone(m)
			m[key] = overlay(t, m[key], at[1:], change)
			return m
		}
	}
	over, ok := change.(map[string]any)
	under, both := base.(map[string]any)
	if !ok || !both {
		return change
	}
	under = maps.Clone(under)
	for k, v := range over {
		if v == nil {
			delete(under, k)
			continue
		}
		under[k] = v
	}
	return under
}

func judge(t *testing.T, g caseGroup, change any) []Fault {
	t.Helper()
	text, err := json.Marshal(overlay(t, g.Base, g.At, change))
	if err != nil {
		t.Fatal(err)
	}
	m := message(t, g.Kind)
	if err := json.Unmarshal(text, m); err != nil {
		t.Fatalf("decoding %s: %v", text, err)
	}
	if mc, ok := m.(*meshconfig.MeshConfig); ok {
		return MeshConfig(mc)
	}
	name := g.Name
	if name == "" {
		name = "thing"
	}
	return Validate(Object{Kind: g.Kind, Name: name, Labels: g.Labels, Annotations: g.Annotations, Spec: m})
}

// TestRules judges the cases of testdata: the verdict stands beside the case, and
// the golden file has what is said about it.
func TestRules(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var groups []caseGroup
			if err := yaml.Unmarshal(text, &groups); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, g := range groups {
				for _, name := range sorted(g.Valid) {
					judgeCase(t, &got, g, name, true)
				}
				for _, name := range sorted(g.Invalid) {
					judgeCase(t, &got, g, name, false)
				}
			}
			compareGolden(t, strings.TrimSuffix(file, ".yaml")+".golden", got.String())
		})
	}
}

func judgeCase(t *testing.T, out *strings.Builder, g caseGroup, name string, valid bool) {
	t.Helper()
	change := g.Invalid[name]
	if valid {
		change = g.Valid[name]
	}
	faults := judge(t, g, change)
	isWrong := func(f Fault) bool { return !f.Warning }
	if slices.ContainsFunc(faults, isWrong) == valid {
		t.Errorf("%s %s: valid is %t, want %t: %v", g.Kind, name, !valid, valid, faults)
	}
	if len(faults) == 0 {
		return
	}
	fmt.Fprintf(out, "%s %s\n", g.Kind, name)
	for _, f := range faults {
		severity := "error"
		if f.Warning {
			severity = "warning"
		}
		fmt.Fprintf(out, "    %s %s: %s\n", severity, f.Path, f.Message)
	}
}

func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s differs (-want +got); run go test -update if it should:\n%s", file, diff)
	}
}
