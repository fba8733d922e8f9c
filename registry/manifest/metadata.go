package manifest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// The limits and forms that Kubernetes gives names, labels and annotations
// (k8s.io/apimachinery, pkg/api/validation and pkg/util/validation).
const (
	maxLabel       = 63
	maxSubdomain   = 253
	maxAnnotations = 256 << 10
)

// form is what a name must look like.
type form struct {
	pattern *regexp.Regexp
	longest int
	words   string
}

//nolint:gochecknoglobals // compiled constants
var (
	dnsLabel = form{
		regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`), maxLabel,
		"lower case letters, digits and '-', beginning and ending with a letter or digit",
	}
	dnsSubdomain = form{
		regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`), maxSubdomain,
		"lower case letters, digits, '-' and '.', each part beginning and ending with a letter or digit",
	}
	qualifiedName = form{
		regexp.MustCompile(`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`), maxLabel,
		"letters, digits, '-', '_' and '.', beginning and ending with a letter or digit",
	}
	labelValue = form{regexp.MustCompile(`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`), maxLabel, qualifiedName.words}
)

// metadata reads the metadata of an object and judges it as Kubernetes would.
func metadata(root *tree.Node, opts *Options, r *reporter) mesh.Meta {
	meta := mesh.Meta{Key: mesh.Key{Kind: r.key.Kind, Namespace: opts.namespace()}, Origin: r.origin(root.Pos)}
	n := root.Get("metadata")
	if n == nil || n.Kind != tree.Map {
		if n == nil || n.Kind == tree.Null {
			r.add(CodeMetadata, root.Nearest("metadata"), "metadata.name", "metadata.name is required")
		} else {
			r.add(CodeMetadata, n.Pos, "metadata", fmt.Sprintf("must be an object, not %s", n.Kind))
		}
		return meta
	}
	m := metaReader{n: n, r: r}
	meta.Name = m.name()
	if ns := m.str("namespace"); ns != "" {
		meta.Namespace = ns
		m.checkForm("metadata.namespace", n.Nearest("namespace"), ns, dnsLabel)
	}
	r.key = meta.Key
	meta.Labels = m.labels()
	meta.Annotations = m.annotations()
	meta.Created = m.created()
	m.rest()
	return meta
}

type metaReader struct {
	n *tree.Node
	r *reporter
}

// str reads an optional text.
func (m *metaReader) str(name string) string {
	v := m.n.Get(name)
	if v == nil || v.Kind == tree.Null {
		return ""
	}
	if v.Kind != tree.String {
		message := fmt.Sprintf("must be a string, not %s", v.Kind)
		if v.Text != "" {
			message += fmt.Sprintf("; write %q", v.Text)
		}
		m.r.add(CodeMetadata, v.Pos, "metadata."+name, message)
		return ""
	}
	return v.Text
}

func (m *metaReader) name() string {
	before := len(m.r.faults)
	name := m.str("name")
	switch {
	case len(m.r.faults) > before:
	case name == "" && m.str("generateName") != "":
		m.r.add(CodeMetadata, m.n.Nearest("generateName"), "metadata.generateName", "names are not generated here; write metadata.name")
	case name == "":
		m.r.add(CodeMetadata, m.n.Nearest("name"), "metadata.name", "metadata.name is required")
	default:
		m.checkForm("metadata.name", m.n.Nearest("name"), name, dnsSubdomain)
	}
	if prefix := m.str("generateName"); name != "" && prefix != "" {
		m.checkForm("metadata.generateName", m.n.Nearest("generateName"), strings.TrimSuffix(prefix, "-"), dnsSubdomain)
	}
	return name
}

func (m *metaReader) checkForm(field string, pos tree.Position, value string, want form) {
	switch {
	case len(value) > want.longest:
		m.r.add(CodeMetadata, pos, field, fmt.Sprintf("has %d characters; at most %d are allowed", len(value), want.longest))
	case !isPlain(value) && !want.pattern.MatchString(value):
		m.r.add(CodeMetadata, pos, field, fmt.Sprintf("%q is not allowed; use only %s", value, want.words))
	}
}

// isPlain reports whether a text is lower case letters, digits and inner hyphens.
// That fits every form, and nearly every name is so.
func isPlain(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// texts reads a map of texts.
func (m *metaReader) texts(name string, each func(f tree.Field, at string)) map[string]string {
	v := m.n.Get(name)
	if v == nil || v.Kind == tree.Null {
		return nil
	}
	if v.Kind != tree.Map {
		m.r.add(CodeMetadata, v.Pos, "metadata."+name, fmt.Sprintf("must be an object, not %s", v.Kind))
		return nil
	}
	out := make(map[string]string, len(v.Fields))
	for _, f := range v.Fields {
		at := tree.Join("metadata."+name, f.Key)
		switch f.Value.Kind {
		case tree.String, tree.Null: // null is the empty text in Kubernetes
		case tree.Bool, tree.Int, tree.Float, tree.List, tree.Map:
			message := fmt.Sprintf("must be a string, not %s", f.Value.Kind)
			if f.Value.Text != "" {
				message += fmt.Sprintf("; write %q", f.Value.Text)
			}
			m.r.add(CodeMetadata, f.Value.Pos, at, message)
			continue
		}
		value := f.Value.Text
		if f.Value.Kind == tree.Null {
			value = ""
		}
		out[f.Key] = value
		each(f, at)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

func (m *metaReader) labels() map[string]string {
	return m.texts("labels", func(f tree.Field, at string) {
		m.qualified(f.Key, at, f.KeyPos)
		if f.Value.Kind == tree.String {
			m.checkForm(at, f.Value.Pos, f.Value.Text, labelValue)
		}
	})
}

func (m *metaReader) annotations() map[string]string {
	size := 0
	out := m.texts("annotations", func(f tree.Field, at string) {
		m.qualified(strings.ToLower(f.Key), at, f.KeyPos)
		size += len(f.Key) + len(f.Value.Text)
		if f.Key == mesh.AnnotationHost {
			m.checkForm(at, f.Value.Pos, f.Value.Text, dnsSubdomain)
		}
	})
	if size > maxAnnotations {
		m.r.add(CodeMetadata, m.n.Nearest("annotations"), "metadata.annotations", fmt.Sprintf("have %d bytes together; at most %d are allowed", size, maxAnnotations))
	}
	return out
}

// qualified judges the key of a label or annotation: a name, or a DNS name, a
// slash and a name.
func (m *metaReader) qualified(key, at string, pos tree.Position) {
	prefix, name, found := strings.Cut(key, "/")
	switch {
	case !found:
		name = key
	case strings.Contains(name, "/") || prefix == "":
		m.r.add(CodeMetadata, pos, at, fmt.Sprintf("the key %q must be a name, or a DNS name, one '/' and a name", key))
		return
	default:
		m.checkForm(at, pos, prefix, dnsSubdomain)
	}
	m.checkForm(at, pos, name, qualifiedName)
}

func (m *metaReader) created() time.Time {
	text := m.str("creationTimestamp")
	if text == "" {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		m.r.add(CodeMetadata, m.n.Nearest("creationTimestamp"), "metadata.creationTimestamp", fmt.Sprintf("%q is not a time; write one such as 2026-01-31T12:00:00Z", text))
		return time.Time{}
	}
	return at.UTC()
}

// rest judges what Fairlead has no use for but Kubernetes would refuse.
func (m *metaReader) rest() {
	for _, name := range []string{"resourceVersion", "uid", "selfLink"} {
		m.str(name)
	}
	if g := m.n.Get("generation"); g != nil && g.Kind != tree.Null && (g.Kind != tree.Int || g.Int < 0) {
		m.r.add(CodeMetadata, g.Pos, "metadata.generation", "must be an integer that is not negative")
	}
	if l := m.list("finalizers"); l != nil {
		for i, item := range l.Items {
			at := fmt.Sprintf("metadata.finalizers[%d]", i)
			if item.Kind != tree.String {
				m.r.add(CodeMetadata, item.Pos, at, fmt.Sprintf("must be a string, not %s", item.Kind))
				continue
			}
			m.qualified(item.Text, at, item.Pos)
		}
	}
	if l := m.list("ownerReferences"); l != nil {
		for i, item := range l.Items {
			for _, name := range []string{"apiVersion", "kind", "name", "uid"} {
				if item.Str(name) == "" {
					at := fmt.Sprintf("metadata.ownerReferences[%d].%s", i, name)
					m.r.add(CodeMetadata, item.Nearest(name), at, name+" is required")
				}
			}
		}
	}
	m.list("managedFields")
	m.unknown()
}

// unknown warns of fields that metadata does not have. Kubernetes drops them
// silently, and a misspelt namespace puts an object somewhere else.
func (m *metaReader) unknown() {
	names := []string{
		"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
		"generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
		"resourceVersion", "selfLink", "uid",
	}
	for _, f := range m.n.Fields {
		if slices.Contains(names, f.Key) {
			continue
		}
		message := fmt.Sprintf("metadata has no field %q, so it is ignored", f.Key)
		if near := schema.Near(f.Key, names); near != "" {
			message += fmt.Sprintf("; did you mean %q?", near)
		}
		m.r.add(CodeUnknownField, f.KeyPos, tree.Join("metadata", f.Key), message)
		m.r.faults[len(m.r.faults)-1].Severity = Warning
	}
}

func (m *metaReader) list(name string) *tree.Node {
	v := m.n.Get(name)
	if v == nil || v.Kind == tree.Null {
		return nil
	}
	if v.Kind != tree.List {
		m.r.add(CodeMetadata, v.Pos, "metadata."+name, fmt.Sprintf("must be a list, not %s", v.Kind))
		return nil
	}
	return v
}
