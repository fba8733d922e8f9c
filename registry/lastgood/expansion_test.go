package lastgood_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// entryOf is the text of a ServiceEntry with many of everything.
func entryOf(name string, hosts, ports, endpoints int) []byte {
	var s strings.Builder
	s.WriteString("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: " + name + ", namespace: evil}\nspec:\n  resolution: STATIC\n")
	for _, list := range []struct {
		field, item string
		count       int
	}{
		{"hosts", "  - h%[1]d." + name + ".evil.test\n", hosts},
		{"ports", "  - {name: p%[1]d, number: 1%[1]d, protocol: HTTP}\n", ports},
		{"endpoints", "  - {address: \"2001:db8::%x\"}\n", endpoints},
	} {
		s.WriteString("  " + list.field + ":\n")
		for i := range list.count {
			fmt.Fprintf(&s, list.item, i)
		}
	}
	return []byte(s.String())
}

// TestSavedCopyIsLimited revives a text from the state directory of an earlier release, which
// did not limit what an object makes after expansion: nothing of it is in force.
func TestSavedCopyIsLimited(t *testing.T) {
	t.Parallel()
	key := mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "evil", Name: "large"}
	decode := func(b *lastgood.Blob) lastgood.Decoded {
		return lastgood.Manifests(manifest.Options{}, "a.yaml", b.Content)
	}
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	entry := lastgood.Entry{
		Root: "/x", Rel: "a.yaml", Contents: [][]byte{entryOf("large", 20, 20, 4096), entryOf("large", 20, 20, 4000)},
		Kept: []lastgood.EntryKept{{Key: key, Content: 1}},
	}
	if v := entry.Revive(decode, now); !v.Empty() || v.Fragment(key) != nil {
		t.Errorf("%d objects in force, %d kept", v.Live(), v.Kept())
	}
	entry.Contents[1] = entryOf("large", 2, 2, 2)
	v := entry.Revive(decode, now)
	if f := v.Fragment(key); f == nil || len(f.Services) != 2 {
		t.Errorf("the last good version, which is small, is not in force: %v", v.Faults())
	}
}
