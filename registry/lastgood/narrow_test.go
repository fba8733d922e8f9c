package lastgood

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestKeptObjectsHaveTheirOwnTextOnly breaks one object of a large text after the other: what memory and disk have
// of it does not grow with the number of versions.
func TestKeptObjectsHaveTheirOwnTextOnly(t *testing.T) {
	t.Parallel()
	const objects, padding = 20, 1000
	decode := func(b *Blob) Decoded {
		return Manifests(manifest.Options{Source: "s", Namespaces: []string{"shop"}, Namespace: "shop"}, "/r/a.yaml", b.Content)
	}
	object := func(i, broken int) string {
		port := "80"
		if i < broken {
			port = "99999"
		}
		return fmt.Sprintf("{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: o%d}, spec: {hosts: [o%[1]d.b], ports: [{number: %s, name: a, protocol: HTTP}]}}\n", i, port)
	}
	for name, form := range map[string]struct{ head, before string }{
		"documents": {"", "---\n"},
		"list":      {"apiVersion: v1\nkind: List\nitems:\n", "- "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var v *Version
			for broken := range objects + 1 {
				var text strings.Builder
				text.WriteString(form.head)
				for i := range objects {
					text.WriteString(form.before + object(i, broken))
				}
				text.WriteString(strings.Repeat(fmt.Sprintf("# version %d\n", broken), padding))
				b := NewBlob([]byte(text.String()))
				v = NextVersion(v, b, decode(b), time.Unix(int64(broken), 0))
			}
			if v.Kept() != objects || v.Live() != 0 {
				t.Fatalf("%d objects are kept, %d live", v.Kept(), v.Live())
			}
			entry, size := (&Text{Root: "/r", Rel: "a.yaml", V: v}).entry(), 0
			for _, c := range entry.Contents {
				size += len(c)
			}
			if most := 2 * len(v.blob.Content); size > most {
				t.Errorf("%d bytes are kept of a text of %d", size, len(v.blob.Content))
			}
			back := entry.Revive(decode, time.Time{})
			for key, k := range v.kept {
				was := back.kept[key].good
				if was == nil || was.Hash != k.Hash || was.Origin.Line != k.Origin.Line {
					t.Errorf("%s came back as %+v", key, was)
				}
			}
		})
	}
}

// TestDeniedPoliciesHaveTheirOwnDocumentOnly has another broken policy in each version of a large text, which is no YAML: so
// those of earlier versions stay.
func TestDeniedPoliciesHaveTheirOwnDocumentOnly(t *testing.T) {
	t.Parallel()
	const policies, padding = 20, 1000
	decode := func(b *Blob) Decoded {
		d := Manifests(manifest.Options{Source: "s", Namespaces: []string{"shop"}, Namespace: "shop"}, "/r/a.yaml", b.Content)
		d.Unparsable = false // so that the policies of the version itself count, too
		d.Open = true
		return d
	}
	var v *Version
	for i := range policies {
		text := strings.Repeat(fmt.Sprintf("# version %d\n", i), padding) +
			fmt.Sprintf("---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: o%d}\nspec: {action: NONE, action: DENY}\n", i)
		b := NewBlob([]byte(text))
		v = NextVersion(v, b, decode(b), time.Unix(int64(i), 0))
	}
	if len(v.denied) != policies {
		t.Fatalf("%d policies deny", len(v.denied))
	}
	entry, size := (&Text{Root: "/r", Rel: "a.yaml", V: v}).entry(), 0
	for _, c := range entry.Contents {
		size += len(c)
	}
	if most := 3 * len(v.blob.Content); size > most {
		t.Errorf("%d bytes are kept of a text of %d", size, len(v.blob.Content))
	}
	if back := entry.Revive(decode, time.Time{}); len(back.denied) != policies {
		t.Errorf("%d of %d policies deny after a restart", len(back.denied), policies)
	}
}
