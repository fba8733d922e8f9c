package manifest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/manifest/webhook"
	"github.com/fairlead/fairlead/registry/mesh"
)

// MaxFileSize is how large a file may be.
const MaxFileSize = 16 << 20

// Options say how a file is read. The zero value is that of `fairlead validate`.
type Options struct {
	// Source is the name of the registry source, for origins; may be empty.
	Source string
	// Namespace is where objects are that name no namespace; empty means
	// "default".
	Namespace string
	// Namespaces are the only ones that objects may be in; empty means any.
	Namespaces []string
	// NoUnixSockets keeps out what names a unix socket: for sources that somebody
	// else may write to than who runs the hosts.
	NoUnixSockets bool
	// NoFiles keeps out, for the same sources, what names a file of the host's.
	NoFiles bool
	// NoLocalAddresses keeps out, for the same sources, endpoints that each Envoy would look for on its
	// own host.
	NoLocalAddresses bool
	// Unquoted leaves out of faults what a text says, unless it is an object of
	// Istio's: for directories in which somebody may link to what only the server reads.
	Unquoted bool
	// Domain is the suffix of short host names, which stand for
	// NAME.NAMESPACE.svc.DOMAIN; empty means "cluster.local".
	Domain string
	// CreateIndex is the index of Consul's key-value store at which the key of the text was created; zero
	// if it is in no key, or the index is not known.
	CreateIndex uint64
}

func (o *Options) namespace() string {
	if o.Namespace == "" {
		return "default"
	}
	return o.Namespace
}

func (o *Options) domain() string {
	if o.Domain == "" {
		return "cluster.local"
	}
	return o.Domain
}

// File is what a file of manifests says.
type File struct {
	Path string
	// Objects are all that could be told apart, valid or not, in the order of
	// the file.
	Objects []*Object
	// Unparsable reports that some of the text is not YAML, or that there is nothing in
	// it, so that nobody can tell which objects it holds.
	Unparsable bool
	// Open reports that an error leaves open which objects the text holds: a document that
	// is no object, or an error in the last document, behind which more may be missing.
	// Objects that the text held before may still be meant to exist.
	Open bool
}

// Object is one object of a file.
type Object struct {
	// Meta has as much as could be read; its Hash is set if Valid.
	Meta mesh.Meta
	// APIVersion is as written, such as "networking.istio.io/v1".
	APIVersion string
	// Spec is the message of istio.io/api as written: nothing resolved, no
	// defaults. It is nil if the object is not Valid.
	Spec proto.Message
	// Valid means that Istio would take the object.
	Valid bool
	// Faults are what is wrong with it, and warnings.
	Faults []Fault
	// NotInForce are the parts of a valid object that this build does not
	// implement. If there are any the object must be kept out whole.
	NotInForce []Fault
	// Foreign means that it is complete, and of another project's API, such as a Deployment.
	Foreign bool

	source string
	domain string
	root   *tree.Node
	denial *mesh.Unenforced
	// createIndex is the age of a Gateway without a date; see [mesh.CompareGateways].
	createIndex uint64
	// proxyConfig is what annotations say of proxies; or nil.
	proxyConfig *meshconfig.ProxyConfig
}

// Origin is where the field of a path such as "spec.http[0].route" is written,
// or the nearest part of that path that is.
func (o *Object) Origin(field string) *mesh.Origin {
	pos := o.root.Nearest(field)
	return &mesh.Origin{Source: o.source, Path: o.Meta.Origin.Path, Line: pos.Line, Column: pos.Column}
}

// InForce reports whether the object takes part in the mesh.
func (o *Object) InForce() bool { return o.Valid && len(o.NotInForce) == 0 }

// Unbuilt reports whether the object is valid, and of a kind of which this build has nothing in force.
func (o *Object) Unbuilt() bool {
	_, built := inForce[o.Meta.Kind]
	return o.Valid && !built
}

// schemas is the table of schemas. It is embedded, so reading it cannot fail in
// a program that passes its tests.
//
//nolint:gochecknoglobals // a read-only table, read once
var schemas = sync.OnceValue(func() *schema.Set {
	set, err := schema.New()
	if err != nil {
		panic(err)
	}
	return set
})

// Decode reads a file of manifests: YAML documents, JSON, lists. The faults are
// those of the file and of all its objects, without NotInForce, by position.
func Decode(opts Options, path string, content []byte) (*File, []Fault) {
	file := &File{Path: path}
	d := decoder{opts: &opts, path: path, file: file}
	if len(content) > MaxFileSize {
		file.Unparsable = true
		r := d.reporter()
		r.add(CodeLimit, tree.Position{}, "", fmt.Sprintf("the file has %d bytes; at most %d are read", len(content), MaxFileSize))
		return file, r.finish()
	}
	if Blank(content) {
		file.Unparsable = true
		r := d.reporter()
		r.add(CodeBlank, tree.Position{Line: 1, Column: 1}, "", "there is nothing in it; if it is to have no objects, delete it, or write a comment into it (and below the line `...`, if it had that)")
		return file, r.finish()
	}
	for doc := range tree.Documents(content) {
		if d.full {
			break
		}
		if doc.Root == nil {
			file.Unparsable = true
			d.stray(&tree.Node{Pos: tree.Position{Line: 1, Column: 1}})
			r := d.reporter()
			r.problems(d.unquoted(doc.Problems))
			d.faults = append(d.faults, r.finish()...)
			continue
		}
		d.document(doc.Root, doc.Problems)
	}
	if n := len(file.Objects); n > 0 {
		last := file.Objects[n-1]
		file.Open = file.Open || !last.Valid && !last.Foreign
	}
	sortFaults(d.faults)
	return file, d.faults
}

// Blank reports whether a text has neither a document nor a comment: what a failed write leaves.
func Blank(content []byte) bool {
	for line := range bytes.Lines(bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))) {
		line = bytes.TrimSpace(line)
		switch {
		case len(line) == 0 || line[0] == '%':
		case string(line) == "---" || string(line) == "null" || string(line) == "~": // what a tool prints that found nothing
		default:
			return false
		}
	}
	return true
}

// decoder reads one file.
type decoder struct {
	opts   *Options
	path   string
	file   *File
	faults []Fault
	// strays are documents and items that are none of Istio's objects; full means that there are too many.
	strays int
	full   bool
}

// maxStrays bounds them in a file of a source that is bound to namespaces: each is reported.
const maxStrays = 10_000

// stray counts a document or item that is none of Istio's objects.
func (d *decoder) stray(n *tree.Node) {
	if d.strays++; d.strays <= maxStrays || d.full || len(d.opts.Namespaces) == 0 {
		return
	}
	d.full = true
	r := d.reporter()
	r.add(CodeLimit, n.Pos, "", fmt.Sprintf("the file has more than %d documents or items that are none of Istio's objects; nothing behind them is read", maxStrays))
	d.open(r)
}

func (d *decoder) reporter() *reporter { return &reporter{source: d.opts.Source, path: d.path} }

// problems takes over what is wrong with a document as YAML.
func (r *reporter) problems(problems []tree.Problem) {
	for _, p := range problems {
		r.add(treeCode(p.Code), p.Pos, p.Path, p.Message)
	}
}

func treeCode(c tree.Code) Code {
	switch c {
	case tree.Syntax:
		return CodeSyntax
	case tree.DuplicateKey:
		return CodeDuplicateKey
	case tree.Value:
		return CodeValue
	case tree.Limit:
		return CodeLimit
	default:
		return CodeSyntax
	}
}

// document reads one document, or the items of one that is a list.
func (d *decoder) document(root *tree.Node, problems []tree.Problem) {
	if root.Kind == tree.Map && isList(root) {
		d.list(root, problems)
		return
	}
	r := d.reporter()
	if root.Kind != tree.Map {
		d.stray(root)
		r.problems(d.unquoted(problems))
		r.add(CodeKind, root.Pos, "", fmt.Sprintf("a manifest must be an object with apiVersion, kind, metadata and spec, not %s", root.Kind))
		d.open(r)
		return
	}
	r.problems(problems)
	o := d.object(root, r)
	d.file.Objects = append(d.file.Objects, o)
	d.faults = append(d.faults, o.Faults...)
}

// open takes over the faults of a document that are in none of its objects.
func (d *decoder) open(r *reporter) {
	faults := r.finish()
	d.file.Open = d.file.Open || HasErrors(faults)
	d.faults = append(d.faults, faults...)
}

func (d *decoder) list(root *tree.Node, problems []tree.Problem) {
	items := root.Get("items")
	r := d.reporter()
	if items == nil || items.Kind != tree.List {
		r.problems(d.unquoted(problems))
		r.key.Kind = "List"
		r.add(CodeKind, root.Nearest("items"), "items", "a List needs a list of items")
		d.open(r)
		return
	}
	// A problem belongs to the item it is in; a fault in one item must not
	// keep the others out.
	mine := make([][]tree.Problem, len(items.Items))
	for _, p := range problems {
		i, rest, ok := inItem(p.Path, len(items.Items))
		if !ok {
			r.problems(d.unquoted([]tree.Problem{p}))
			continue
		}
		p.Path = rest
		mine[i] = append(mine[i], p)
	}
	d.open(r)
	for i, item := range items.Items {
		if d.full {
			return
		}
		d.document(item, mine[i])
	}
}

// inItem splits "items[3].spec.hosts" into 3 and "spec.hosts".
func inItem(path string, count int) (index int, rest string, ok bool) {
	path, ok = strings.CutPrefix(path, "items[")
	if !ok {
		return 0, "", false
	}
	number, rest, ok := strings.Cut(path, "]")
	if _, err := fmt.Sscanf(number, "%d", &index); err != nil || !ok || index >= count {
		return 0, "", false
	}
	return index, strings.TrimPrefix(rest, "."), true
}

// object reads and judges one object.
func (d *decoder) object(root *tree.Node, r *reporter) *Object {
	o := &Object{source: d.opts.Source, domain: d.opts.domain(), root: root, APIVersion: root.Str("apiVersion")}
	gvk, known, foreign := identify(schemas(), root, r)
	o.Foreign = foreign
	if !known {
		d.stray(root)
	}
	if !known && d.opts.Unquoted {
		r.faults, r.key = nil, mesh.Key{}
		r.add(CodeKind, root.Pos, "", "this is none of Istio's objects; what it says is not repeated, as the directory is bound to namespaces")
		o.Meta, o.APIVersion = mesh.Meta{Origin: r.origin(root.Pos)}, ""
		o.Faults = r.finish()
		return o
	}
	o.Meta = metadata(root, d.opts, r)
	d.bound(o, r)
	if known {
		o.prune(schemas().Lookup(gvk), r)
		d.spec(o, gvk, r)
	}
	if known {
		o.annotatedConfig(r)
		o.limitExpansion(r)
		if len(d.opts.Namespaces) > 0 {
			o.limitTables(r)
			o.limitExpressions(r)
		}
	}
	o.Valid = known && !HasErrors(r.faults)
	if o.Valid {
		o.Meta.Hash = hashOf(&o.Meta, o.Spec)
		if _, is := o.Spec.(*networking.Gateway); is && o.Meta.Created.IsZero() && d.opts.CreateIndex > 0 {
			o.createIndex = d.opts.CreateIndex
			o.Meta.Hash = hashOfKey(o.Meta.Hash, o.createIndex)
		}
		o.NotInForce = notInForce(o, d.opts, r)
	} else {
		o.denial = denial(o, r.faults)
		o.Spec = nil
	}
	o.Faults = r.finish()
	return o
}

// unquoted are problems of a text that is perhaps no manifest, without its words if
// the options say so.
func (d *decoder) unquoted(problems []tree.Problem) []tree.Problem {
	if !d.opts.Unquoted {
		return problems
	}
	out := slices.Clone(problems)
	for i := range out {
		out[i].Path, out[i].Message = "", "this cannot be read as YAML; what it says is not repeated, as the directory is bound to namespaces"
	}
	return out
}

// bound refuses an object outside of the namespaces that the options allow.
func (d *decoder) bound(o *Object, r *reporter) {
	if len(d.opts.Namespaces) == 0 || slices.Contains(d.opts.Namespaces, o.Meta.Namespace) {
		return
	}
	r.add(CodeNamespace, o.root.Nearest("metadata.namespace"), "metadata.namespace",
		fmt.Sprintf("the namespace %q is not one that this directory may define; it is bound to %s", o.Meta.Namespace, strings.Join(d.opts.Namespaces, ", ")))
}

// spec judges a document by its schema, fills the message, and asks the
// webhook's rules about what the schema left standing.
func (d *decoder) spec(o *Object, gvk schema.GVK, r *reporter) {
	set := schemas()
	problems := set.Validate(o.root, set.Lookup(gvk))
	unusable := map[string]bool{}
	for _, f := range r.faults {
		if f.Code == CodeValue || f.Code == CodeLimit {
			unusable[f.Field] = true
		}
	}
	for _, p := range problems {
		if unusable[p.Path] {
			continue // it is not readable in the first place
		}
		r.add(schemaCode(p.Code), p.Pos, p.Path, p.Message)
		if p.Unusable {
			unusable[p.Path] = true
		}
	}
	if unusable["spec"] {
		return
	}
	o.Spec = newSpec(mesh.Kind(gvk.Kind))
	if spec := o.root.Get("spec"); spec != nil {
		f := filler{skip: unusable, at: tree.Trail{Base: "spec"}, report: func(code Code, pos tree.Position, field, message string) {
			r.add(code, pos, field, message)
			problems = append(problems, schema.Problem{Path: field, Unusable: true})
		}}
		f.message(o.Spec.ProtoReflect(), spec)
	}
	rules := webhook.Validate(webhook.Object{
		Kind: gvk.Kind, Namespace: o.Meta.Namespace, Name: o.Meta.Name,
		Labels: o.Meta.Labels, Annotations: o.Meta.Annotations, Spec: o.Spec,
	})
	causes := newCauses(problems)
	for _, rule := range rules {
		if causes.of(rule.Path) {
			continue
		}
		r.add(CodeWebhook, o.root.Nearest(rule.Path), rule.Path, rule.Message)
		if rule.Warning {
			r.faults[len(r.faults)-1].Severity = Warning
		}
	}
}

// within reports whether one path is the other or lies in it.
func within(inner, outer string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
}

func schemaCode(c schema.Code) Code {
	switch c {
	case schema.UnknownField:
		return CodeUnknownField
	case schema.WrongType:
		return CodeType
	case schema.Missing:
		return CodeRequired
	case schema.NotAllowed:
		return CodeEnum
	case schema.OutOfBounds:
		return CodeBounds
	case schema.BadFormat:
		return CodeFormat
	case schema.OneOf:
		return CodeOneOf
	case schema.DuplicateItem:
		return CodeDuplicateItem
	case schema.RuleBroken:
		return CodeRule
	default:
		return CodeRule
	}
}
