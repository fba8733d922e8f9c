package manifest

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	inForcePage  = "../../docs/reference-fields.md"
	inForceBegin = "<!-- made by: go test ./registry/manifest -run InForcePage -update -->\n"
	inForceEnd   = "<!-- end -->\n"
)

// TestInForcePage holds the user's page against the table that decides.
func TestInForcePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(inForcePage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), inForceBegin)
	_, tail, ended := strings.Cut(rest, inForceEnd)
	if !ok || !ended {
		t.Fatalf("%s has no part between %q and %q", inForcePage, inForceBegin, inForceEnd)
	}
	want := []byte(head + inForceBegin + inForceTable(t) + inForceEnd + tail)
	if bytes.Equal(page, want) {
		return
	}
	if f := flag.Lookup("update"); f == nil || f.Value.String() != "true" {
		t.Fatalf("%s does not say what is in force: go test ./registry/manifest -run InForcePage -update", inForcePage)
	}
	if err := os.WriteFile(inForcePage, want, 0o600); err != nil {
		t.Fatal(err)
	}
}

func inForceTable(t *testing.T) string {
	t.Helper()
	specs := map[mesh.Kind]proto.Message{
		mesh.KindAuthorizationPolicy:   &security.AuthorizationPolicy{},
		mesh.KindDestinationRule:       &networking.DestinationRule{},
		mesh.KindGateway:               &networking.Gateway{},
		mesh.KindPeerAuthentication:    &security.PeerAuthentication{},
		mesh.KindProxyConfig:           &networkingbeta.ProxyConfig{},
		mesh.KindRequestAuthentication: &security.RequestAuthentication{},
		mesh.KindTelemetry:             &telemetry.Telemetry{},
		mesh.KindServiceEntry:          &networking.ServiceEntry{},
		mesh.KindSidecar:               &networking.Sidecar{},
		mesh.KindVirtualService:        &networking.VirtualService{},
		mesh.KindWorkloadEntry:         &networking.WorkloadEntry{},
		mesh.KindWorkloadGroup:         &networking.WorkloadGroup{},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Nothing is in force of these kinds: %s.\n\n", strings.Join(kindsNotInForce(t), ", "))
	b.WriteString("In the lists below, a path includes everything under it. All apiVersions that Istio serves for a kind are equal.\n\n")
	for _, kind := range slices.Sorted(maps.Keys(inForce)) {
		if kind == mesh.KindMeshConfig {
			b.WriteString(meshTable())
			continue
		}
		m, ok := specs[kind]
		if !ok {
			t.Fatalf("%s is in force and this test does not know its message", kind)
		}
		rules, same := foldSubsets(inForce[kind])
		var in, out []string
		for _, rule := range rules {
			path, values, limited := strings.Cut(strings.TrimPrefix(rule, "!"), "=")
			values = strings.ReplaceAll(values, ",", "`, `")
			switch {
			case strings.HasPrefix(rule, "!") && limited:
				out = append(out, fmt.Sprintf("`%s`: `%s`", path, values))
			case strings.HasPrefix(rule, "!"):
			case limited:
				in = append(in, fmt.Sprintf("`%s` (only `%s`)", path, values))
			default:
				in = append(in, "`"+path+"`")
			}
		}
		if same {
			in = append(in, "`subsets.trafficPolicy` as `trafficPolicy`")
		}
		c := &forceCheck{rules: rules}
		out = append(out, c.missing(m.ProtoReflect().Descriptor(), "", same)...)
		var nothing []string
		for _, f := range noEffect[kind] {
			path := "`" + f.path + "`"
			in = slices.DeleteFunc(in, func(p string) bool { return p == path })
			nothing = append(nothing, path)
		}
		slices.Sort(in)
		slices.Sort(out)
		if len(out) == 0 {
			out = []string{"–"}
		}
		fmt.Fprintf(&b, "**%s**\n\n- in force: %s\n- not in force: %s\n", kind, strings.Join(in, ", "), strings.Join(out, ", "))
		if len(nothing) > 0 {
			fmt.Fprintf(&b, "- no effect, as in Istio: %s\n", strings.Join(nothing, ", "))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// meshTable is the part of the page about MeshConfig.
func meshTable() string {
	list := func(want func(f meshField) bool) string {
		var out []string
		for _, f := range meshFields {
			if !want(f) {
				continue
			}
			name := "`" + f.path + "`"
			if f.values != "" {
				name += " (only `" + strings.ReplaceAll(f.values, ",", "`, `") + "`)"
			}
			out = append(out, name)
		}
		return strings.Join(out, ", ")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "**MeshConfig**\n\n- in force: %s\n", list(func(f meshField) bool { return f.verdict == fieldInForce }))
	fmt.Fprintf(&b, "- with a value that is invalid or not in force, these keep the whole file out: %s\n\n",
		list(func(f meshField) bool { return f.restricts && (f.values == "" || f.verdict != fieldInForce) }))
	b.WriteString("| Field | Here | Why |\n|---|---|---|\n")
	words := map[fieldVerdict]string{fieldNotBuilt: "not in force", fieldKept: "checked, no effect yet", fieldNoEffect: "no effect"}
	for _, f := range meshFields {
		if f.verdict == fieldInForce || f.why == "" {
			continue
		}
		name := "`" + f.path + "`"
		switch rows := meshRows()[f.path]; {
		case f.values != "":
			name += " `" + strings.ReplaceAll(f.values, ",", "`, `") + "`"
		case len(rows) > 1:
			name += ", other values"
		}
		here := words[f.verdict]
		if f.restricts && f.verdict == fieldNotBuilt {
			here += "; keeps the file out"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, here, f.why)
	}
	return b.String() + "\n"
}

// kindsNotInForce are the kinds of Istio's API of which nothing is in force, sorted.
func kindsNotInForce(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, gvk := range istioKinds(t) {
		if _, ok := inForce[mesh.Kind(gvk.Kind)]; !ok {
			out = append(out, gvk.Kind)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func istioKinds(t *testing.T) []schema.GVK {
	t.Helper()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	return set.Kinds()
}

// TestPagesNameKindsNotInForce reads the pages that say of kinds, by name, that they are not in
// force. The list of all of them is on inForcePage; a page that names some links to it or says
// what they do instead.
func TestPagesNameKindsNotInForce(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 5 {
		t.Fatalf("pages: %v, %v", pages, err)
	}
	pages = append(pages, "../../README.md")
	says := regexp.MustCompile(`not in force|not implemented|does not implement|deny every request|Nothing is in force`)
	word := regexp.MustCompile(`[A-Za-z]+`)
	known := map[string]bool{}
	for _, gvk := range istioKinds(t) {
		known[gvk.Kind] = true
	}
	without := kindsNotInForce(t)
	found := 0
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(content), "\n") {
			if !says.MatchString(line) {
				continue
			}
			for _, name := range word.FindAllString(line, -1) {
				if !known[name] {
					continue
				}
				found++
				if !slices.Contains(without, name) {
					t.Errorf("%s:%d says that %s is not in force: %s", page, n+1, name, line)
				}
			}
		}
	}
	if found < len(without) {
		t.Errorf("found %d names of kinds: this test looks for them in the wrong way", found)
	}
}

// foldSubsets leaves out what is said of a subset's traffic policy where it is
// the same as of the rule's own.
func foldSubsets(rules []string) (folded []string, same bool) {
	const prefix = "subsets."
	var own, subset []string
	for _, rule := range rules {
		bang := rule[:len(rule)-len(strings.TrimPrefix(rule, "!"))]
		path := strings.TrimPrefix(rule, "!")
		switch {
		case strings.HasPrefix(path, prefix+"trafficPolicy."):
			subset = append(subset, bang+strings.TrimPrefix(path, prefix))
			continue
		case strings.HasPrefix(path, "trafficPolicy."):
			own = append(own, rule)
		}
		folded = append(folded, rule)
	}
	slices.Sort(own)
	slices.Sort(subset)
	if len(subset) == 0 || !slices.Equal(own, subset) {
		return rules, false
	}
	return folded, true
}

// missing are the fields of a message that are not in force.
func (c *forceCheck) missing(d protoreflect.MessageDescriptor, pattern string, foldedSubsets bool) []string {
	var out []string
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		path := join(pattern, fd.JSONName())
		if foldedSubsets && path == "subsets.trafficPolicy" {
			continue
		}
		switch c.lookUp(path) {
		case ruleNone:
			out = append(out, "`"+path+"`")
		case ruleSome:
			if fd.Message() != nil {
				out = append(out, c.missing(fd.Message(), path, foldedSubsets)...)
			}
		case ruleAll:
		}
	}
	return out
}

// TestKindsInForceGiveSomething takes an object of each kind of the table. One that is
// said to be in force and that nothing converts would be accepted and do nothing; of a
// security policy that would be an open door.
func TestKindsInForceGiveSomething(t *testing.T) {
	t.Parallel()
	for kind := range InForce() {
		if kind == mesh.KindMeshConfig {
			continue // it has a way of its own
		}
		o := &Object{Valid: true, Meta: mesh.Meta{Key: mesh.Key{Kind: kind, Namespace: "shop", Name: "x"}}, Spec: NewSpec(kind)}
		if f := o.Fragment(); f == nil || len(f.Unenforced) > 0 {
			t.Errorf("%s is in force, and gives %+v", kind, f)
		}
	}
	for _, kind := range []mesh.Kind{"AuthorizationPolicy", "RequestAuthentication"} {
		o := &Object{Valid: true, Meta: mesh.Meta{Key: mesh.Key{Kind: kind, Namespace: "shop", Name: "x"}}, Spec: NewSpec(kind)}
		if f := o.Fragment(); InForce()[kind] == nil && (f == nil || len(f.Unenforced) != 1) {
			t.Errorf("%s is not in force, has nothing that says so, and gives %+v", kind, f)
		}
	}
}
