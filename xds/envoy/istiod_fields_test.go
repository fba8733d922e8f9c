package envoy_test

import (
	"bufio"
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/view"
)

// istiodFields lists the fields of Envoy's messages that we set or istiod sets.
const istiodFields = "testdata/istiod-fields.txt"

// TestFieldsAreThoseOfIstiod compares the fields that are set in the golden meshes with a
// table of those that istiod sets: a field that only one of the two sets is a difference, and
// needs a reason in the table. A field that is set for the first time is not in the table.
func TestFieldsAreThoseOfIstiod(t *testing.T) {
	t.Parallel()
	ours := fieldsOfGoldens(t)
	text, err := os.ReadFile(istiodFields)
	fatalIf(t, err, "reading the table")
	listed := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	last := ""
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.SplitN(line, " ", 3)
		if len(cells) < 2 {
			t.Errorf("%s:%d: %q is not FIELD WHO REASON", istiodFields, n, line)
			continue
		}
		field, who := cells[0], cells[1]
		reason := ""
		if len(cells) == 3 {
			reason = strings.TrimSpace(cells[2])
		}
		if field <= last {
			t.Errorf("%s:%d: %s is not in order, or twice", istiodFields, n, field)
		}
		last, listed[field] = field, true
		switch who {
		case "both":
			if !ours[field] {
				t.Errorf("%s:%d: %s is not set any more in any golden mesh: istiod sets it", istiodFields, n, field)
			}
		case "ours":
			if !ours[field] {
				t.Errorf("%s:%d: %s is not set any more in any golden mesh: take the line out", istiodFields, n, field)
			}
			if reason == "" {
				t.Errorf("%s:%d: istiod does not set %s: say why we do", istiodFields, n, field)
			}
		case "istiod":
			if ours[field] {
				t.Errorf("%s:%d: %s is set now: write both", istiodFields, n, field)
			}
			if reason == "" {
				t.Errorf("%s:%d: istiod sets %s: say why we do not", istiodFields, n, field)
			}
		default:
			t.Errorf("%s:%d: %q is not both, ours or istiod", istiodFields, n, who)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(ours)) {
		if !listed[field] {
			t.Errorf("%s is set, and not in %s: look whether istiod sets it, and add the line", field, istiodFields)
		}
	}
}

// fieldsOfGoldens are the fields that are set in the golden meshes, for proxies with and
// without an agent, as MESSAGE.FIELD.
func fieldsOfGoldens(t *testing.T) map[string]bool {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	fatalIf(t, err, "listing testdata")
	out := map[string]bool{}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		fatalIf(t, err, "reading %q", path)
		var pf proxyFile
		fatalIf(t, yaml.Unmarshal([]byte(file(a, "proxy.yaml")), &pf), "reading proxy.yaml")
		s := snapshotOf(t, file(a, "mesh.yaml"), file(a, "meshconfig.yaml"))
		for _, agent := range []bool{false, true} {
			p := pf.proxy()
			p.FileSecrets = agent
			for _, r := range buildAll(view.Build(s, p)) {
				m, err := envoy.Decode(r)
				fatalIf(t, err, "decoding")
				addFields(t, out, m.ProtoReflect())
			}
		}
	}
	return out
}

func addFields(t *testing.T, to map[string]bool, m protoreflect.Message) {
	t.Helper()
	if a, ok := m.Interface().(*anypb.Any); ok {
		inner, err := a.UnmarshalNew()
		fatalIf(t, err, "decoding %s", a.GetTypeUrl())
		addFields(t, to, inner.ProtoReflect())
		return
	}
	name := string(m.Descriptor().FullName())
	if strings.HasPrefix(name, "google.protobuf.") {
		return
	}
	short := strings.TrimPrefix(strings.TrimPrefix(name, "envoy."), "extensions.")
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		to[short+"."+string(fd.Name())] = true
		switch {
		case fd.IsMap():
			if fd.MapValue().Message() != nil {
				v.Map().Range(func(_ protoreflect.MapKey, x protoreflect.Value) bool {
					addFields(t, to, x.Message())
					return true
				})
			}
		case fd.Message() == nil:
		case fd.IsList():
			for i := range v.List().Len() {
				addFields(t, to, v.List().Get(i).Message())
			}
		default:
			addFields(t, to, v.Message())
		}
		return true
	})
}
