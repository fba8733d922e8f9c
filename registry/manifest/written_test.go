package manifest_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	gatewayHead = "apiVersion: networking.istio.io/v1\nkind: Gateway\n"
	gatewaySpec = "spec: {servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]}\n"
	dateLine    = `creationTimestamp: "2026-01-31T12:00:00Z"`
)

func datesOf(names ...string) map[mesh.Key]time.Time {
	out := map[mesh.Key]time.Time{}
	for _, name := range names {
		out[mesh.Key{Kind: mesh.KindGateway, Namespace: "shop", Name: name}] = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	}
	return out
}

// TestDatesOfGateways has texts with @ where the date is to be written; a text without @ stays as it is.
func TestDatesOfGateways(t *testing.T) {
	t.Parallel()
	other := "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a, namespace: shop}\nspec: {}\n"
	for name, text := range map[string]string{
		"block":                  gatewayHead + "metadata:\n@L2@  name: a\n  namespace: shop\n" + gatewaySpec,
		"comments":               gatewayHead + "metadata: # of the shop\n@L2@  # its name\n  name: a # x\n\n  namespace: shop\n# spec\n" + gatewaySpec,
		"indent_of_four":         gatewayHead + "metadata:\n@L4@    name: a\n    namespace: shop\n" + gatewaySpec,
		"CRLF":                   strings.ReplaceAll(gatewayHead+"metadata:\n@C2@  name: a\n  namespace: shop\n"+gatewaySpec, "\n", "\r\n"),
		"flow":                   gatewayHead + "metadata: {@F@name: a, namespace: shop}\n" + gatewaySpec,
		"flow_of_several_lines":  gatewayHead + "metadata: {\n  @F@name: a,\n  namespace: shop }\n" + gatewaySpec,
		"JSON":                   `{"apiVersion": "networking.istio.io/v1", "kind": "Gateway", "metadata": {@J@"name": "a", "namespace": "shop"}, "spec": {"servers": [{"port": {"number": 80, "name": "ö", "protocol": "HTTP"}, "hosts": ["*"]}]}}`,
		"null":                   gatewayHead + "metadata:\n  creationTimestamp: @N null@\n  name: a\n  namespace: shop\n" + gatewaySpec,
		"second_document":        other + "---\n" + gatewayHead + "metadata:\n@L2@  name: a\n  namespace: shop\n" + gatewaySpec + "---\n" + gatewayHead + "metadata: {@F@name: b, namespace: shop}\n" + gatewaySpec + "...\n",
		"List":                   "apiVersion: v1\nkind: List\nitems:\n- apiVersion: networking.istio.io/v1\n  kind: Gateway\n  metadata:\n@L4@    name: a\n    namespace: shop\n  " + gatewaySpec,
		"characters_before":      "# ö\n" + `{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {labels: {a: "b"}, namespace: shop, name: none}, ` + strings.TrimSuffix(gatewaySpec, "\n") + "}\n",
		"dated":                  gatewayHead + "metadata:\n  creationTimestamp: 2020-01-01T00:00:00Z\n  name: a\n  namespace: shop\n" + gatewaySpec,
		"of_another_name":        gatewayHead + "metadata:\n  name: other\n  namespace: shop\n" + gatewaySpec,
		"of_another_kind":        other,
		"not_valid":              gatewayHead + "metadata:\n  name: a\n  namespace: shop\nspec: {servers: 1}\n",
		"not_YAML":               gatewayHead + "metadata: {name: a\n" + gatewaySpec,
		"anchor_that_others_use": gatewayHead + "metadata: &m\n  name: a\n  namespace: shop\n" + gatewaySpec + "---\n" + other,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "anchor_that_others_use" { // a date that is written is written for this object
				text = strings.Replace(text, "&m\n", "&m\n@L2@", 1)
			}
			author := strings.NewReplacer("@L2@", "", "@L4@", "", "@C2@", "", "@F@", "", "@J@", "", "@N null@", "null").Replace(text)
			want := strings.NewReplacer("@L2@", "  "+dateLine+"\n", "@L4@", "    "+dateLine+"\n", "@C2@", "  "+dateLine+"\r\n", "@F@", dateLine+", ",
				"@J@", `"creationTimestamp": "2026-01-31T12:00:00Z", `, "@N null@", `"2026-01-31T12:00:00Z"`).Replace(text)
			got := manifest.WithGatewayDates(manifest.Options{}, []byte(author), datesOf("a", "b"))
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Fatal(diff)
			}
			if again := manifest.AsStored(manifest.Options{}, []byte(author), got); string(again) != string(got) {
				t.Errorf("what was written is a difference: %s", again)
			}
			if want == author {
				return
			}
			if edited := manifest.AsStored(manifest.Options{}, []byte(strings.ReplaceAll(author, "80", "81")), got); string(edited) == string(got) {
				t.Error("an edit of the author is no difference")
			} else if strings.Count(string(edited), "2026-01-31") != strings.Count(want, "2026-01-31") {
				t.Errorf("an edit loses the date: %s", edited)
			}
			for i, line := range strings.Split(author, "\n") { // each line of the author is found again
				for j, written := range strings.Split(string(got), "\n") {
					if written == line && manifest.AuthorLine([]byte(author), got, j+1) == i+1 {
						line = ""
						break
					}
				}
				if line != "" && !strings.Contains(line, "name") && !strings.Contains(line, "creationTimestamp") {
					t.Errorf("line %d, %q, is not found again", i+1, line)
				}
			}
		})
	}
}

// TestAliasesAreNotEdited: a line more in what two objects share would be in both.
func TestAliasesAreNotEdited(t *testing.T) {
	t.Parallel()
	text := "apiVersion: v1\nkind: List\nitems:\n- apiVersion: networking.istio.io/v1\n  kind: Sidecar\n  metadata: &m\n    name: a\n    namespace: shop\n  spec: {}\n" +
		"- apiVersion: networking.istio.io/v1\n  kind: Gateway\n  metadata: *m\n  " + gatewaySpec
	if got := manifest.WithGatewayDates(manifest.Options{}, []byte(text), datesOf("a")); string(got) != text {
		t.Errorf("it became %s", got)
	}
}
