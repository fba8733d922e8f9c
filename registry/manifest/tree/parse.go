package tree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// The limits that keep a hostile document cheap.
const (
	// MaxDepth is how deep values may nest.
	MaxDepth = 128
	// MaxNodes is how many values a file may have, aliases expanded.
	MaxNodes = 1_000_000
	// Aliases may stand for this many values, and for so many times what is
	// written: reading a text costs no more than its length lets one expect.
	maxExpanded, maxTimes = 10_000, 10
)

// Code says what sort of problem a Problem is.
type Code uint8

// The sorts of problems.
const (
	// Syntax means that the text is not YAML.
	Syntax Code = iota
	// DuplicateKey means that a map has a key twice.
	DuplicateKey
	// Value means that a key or scalar cannot be represented.
	Value
	// Limit means that the document is larger than anyone could mean.
	Limit
)

// Problem is something wrong with a document as YAML.
type Problem struct {
	Code    Code
	Pos     Position
	Path    string
	Message string
}

// Document is one document of a stream.
type Document struct {
	// Root is nil if the document is not YAML at all; see Problems.
	Root     *Node
	Problems []Problem
}

// Parse reads a stream of documents. Documents that are empty or only comments
// are left out. One that cannot be parsed does not hide those behind it.
func Parse(content []byte) []Document { return slices.Collect(Documents(content)) }

// Documents are those of Parse, each read when it is asked for.
func Documents(content []byte) iter.Seq[Document] {
	return func(yield func(Document) bool) {
		content := bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
		if pos, ok := invalidUTF8(content); !ok {
			yield(Document{Problems: []Problem{{Code: Syntax, Pos: pos, Message: "this byte is not valid UTF-8; save the file as UTF-8"}}})
			return
		}
		budget := budget{values: MaxNodes, expanded: maxExpanded}
		for _, c := range split(content) {
			for _, doc := range parseChunk(c, &budget) {
				if !yield(doc) {
					return
				}
			}
		}
	}
}

func invalidUTF8(content []byte) (Position, bool) {
	if utf8.Valid(content) {
		return Position{}, true
	}
	pos := Position{Line: 1, Column: 1}
	for len(content) > 0 {
		r, size := utf8.DecodeRune(content)
		if r == utf8.RuneError && size <= 1 {
			break
		}
		pos.Column++
		if r == '\n' {
			pos.Line, pos.Column = pos.Line+1, 1
		}
		content = content[size:]
	}
	return pos, false
}

// chunk is a part of a stream that starts with a document's separator.
type chunk struct {
	text []byte
	line int // lines before it
}

// split cuts a stream before each line that starts with "---", so that each
// document is parsed by itself. Directives stay with the document they precede.
func split(content []byte) []chunk {
	var chunks []chunk
	start, startLine, line := 0, 0, 0
	onlyDirectives, sawDirective := true, false
	for at := 0; at < len(content); line++ {
		end := len(content)
		if i := bytes.IndexByte(content[at:], '\n'); i >= 0 {
			end = at + i + 1
		}
		text := bytes.TrimRight(content[at:end], "\r\n")
		if isSeparator(text) && at > start && (!onlyDirectives || !sawDirective) {
			chunks = append(chunks, chunk{content[start:at], startLine})
			start, startLine = at, line
			onlyDirectives, sawDirective = true, false
		}
		switch {
		case bytes.HasPrefix(text, []byte("%")):
			sawDirective = true
		case len(bytes.TrimSpace(text)) > 0 && text[0] != '#':
			onlyDirectives = false
		}
		at = end
	}
	return append(chunks, chunk{content[start:], startLine})
}

// DocumentAt is the text of the document that has a line, with those that are not separated from it by "---", and how
// many lines are before it.
func DocumentAt(content []byte, line int) (text []byte, before int) {
	for _, c := range split(bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))) {
		if c.line >= line {
			break
		}
		text, before = c.text, c.line
	}
	return text, before
}

func isSeparator(line []byte) bool {
	rest, ok := bytes.CutPrefix(line, []byte("---"))
	return ok && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t')
}

// budget is what a file may still have of values, and of those by aliases.
type budget struct{ values, expanded int }

// written counts the values that are written, aliases not expanded.
func written(n *yaml.Node) int {
	sum := 1
	for _, x := range n.Content {
		sum += written(x)
	}
	return sum
}

// withoutEnd is a text without the lines "..." that end it. The parser refuses them where they end
// nothing, such as behind a comment.
func withoutEnd(text []byte) []byte {
	for {
		trimmed := bytes.TrimRight(text, " \t\r\n")
		at := bytes.LastIndexByte(trimmed, '\n') + 1
		if string(trimmed[at:]) != "..." {
			return text
		}
		text = text[:at]
	}
}

func parseChunk(c chunk, budget *budget) []Document {
	c.text = withoutEnd(c.text)
	// JSON may be indented with tabs, which YAML does not take. Inside of
	// JSON's strings there are none.
	if bytes.HasPrefix(bytes.TrimSpace(c.text), []byte("{")) && bytes.IndexByte(c.text, '\t') >= 0 && json.Valid(c.text) {
		c.text = bytes.ReplaceAll(c.text, []byte("\t"), []byte(" "))
	}
	var docs []Document
	decoder := yaml.NewDecoder(bytes.NewReader(c.text))
	for {
		var root yaml.Node
		err := decodeNode(decoder, &root)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			return append(docs, Document{Problems: []Problem{syntaxProblem(c, err)}})
		}
		budget.expanded += maxTimes * written(&root)
		b := builder{line: c.line, budget: budget, open: map[*yaml.Node]bool{}}
		node := b.build(&root)
		if node == nil || node.Kind == Null && len(b.problems) == 0 {
			continue
		}
		docs = append(docs, Document{Root: node, Problems: b.problems})
	}
}

// decodeNode turns a panic of the parser, which bad input has been seen to
// cause, into an error.
func decodeNode(d *yaml.Decoder, into *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	return d.Decode(into)
}

var errorLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func syntaxProblem(c chunk, err error) Problem {
	p := Problem{Code: Syntax, Pos: Position{Line: c.line + 1, Column: 1}, Message: "not YAML: " + err.Error()}
	m := errorLine.FindStringSubmatch(err.Error())
	if m == nil {
		return p
	}
	p.Message = "not YAML: " + m[2]
	n, convErr := strconv.Atoi(m[1])
	if convErr != nil {
		return p
	}
	p.Pos.Line = c.line + n
	lines := strings.Split(string(c.text), "\n")
	if n < 1 || n > len(lines) {
		return p
	}
	line := lines[n-1]
	trimmed := strings.TrimLeft(line, " ")
	p.Pos.Column = len(line) - len(trimmed) + 1
	if strings.HasPrefix(trimmed, "\t") {
		p.Message = "not YAML: a tab in the indentation; write spaces"
	}
	return p
}

// builder turns the parser's nodes into ours.
type builder struct {
	line   int
	budget *budget
	// at is the path of what is being built. Only a problem makes text of it.
	at       Trail
	depth    int
	aliases  int                 // that are being expanded
	open     map[*yaml.Node]bool // anchors being expanded
	problems []Problem
}

func (b *builder) pos(n *yaml.Node) Position {
	return Position{Line: n.Line + b.line, Column: n.Column}
}

func (b *builder) problem(code Code, n *yaml.Node, format string, args ...any) {
	b.problems = append(b.problems, Problem{Code: code, Pos: b.pos(n), Path: b.at.String(), Message: fmt.Sprintf(format, args...)})
}

func (b *builder) build(n *yaml.Node) *Node {
	if n.Kind == yaml.DocumentNode {
		if len(n.Content) == 0 {
			return nil
		}
		return b.build(n.Content[0])
	}
	if n.Kind == 0 {
		return nil
	}
	out := &Node{Pos: b.pos(n)}
	b.budget.values--
	if b.aliases > 0 {
		b.budget.expanded--
	}
	if b.budget.values < 0 || b.aliases > 0 && b.budget.expanded < 0 || b.depth >= MaxDepth {
		b.limit(n)
		return out
	}
	b.depth++
	defer func() { b.depth-- }()
	switch n.Kind {
	case yaml.AliasNode:
		return b.alias(n)
	case yaml.SequenceNode:
		out.Kind = List
		b.enter(n)
		if len(n.Content) > 0 {
			out.Items = make([]*Node, 0, len(n.Content))
		}
		for i, item := range n.Content {
			b.at.Item(i)
			out.Items = append(out.Items, b.build(item))
			b.at.Up()
		}
		b.leave(n)
	case yaml.MappingNode:
		out.Kind = Map
		b.enter(n)
		b.fields(n, out)
		b.leave(n)
	case yaml.ScalarNode:
		b.scalar(n, out)
		b.finite(n, out)
	case yaml.DocumentNode:
	}
	return out
}

// enter notes that a list or map is being built, for aliases within it.
func (b *builder) enter(n *yaml.Node) {
	if n.Anchor != "" {
		b.open[n] = true
	}
}

func (b *builder) leave(n *yaml.Node) {
	if n.Anchor != "" {
		delete(b.open, n)
	}
}

// limit reports the first limit reached; those after it have the same cause.
func (b *builder) limit(n *yaml.Node) {
	for _, p := range b.problems {
		if p.Code == Limit {
			return
		}
	}
	if b.depth >= MaxDepth {
		b.problem(Limit, n, "nested deeper than %d levels", MaxDepth)
		return
	}
	if b.budget.values >= 0 {
		b.problem(Limit, n, "the aliases of the file stand for more than %d values and %d times what is written", maxExpanded, maxTimes)
		return
	}
	b.problem(Limit, n, "the file has more than %d values once its aliases are expanded", MaxNodes)
}

func (b *builder) alias(n *yaml.Node) *Node {
	if n.Alias == nil || b.open[n.Alias] {
		b.problem(Value, n, "the alias *%s is part of what it stands for", n.Value)
		return &Node{Pos: b.pos(n)}
	}
	b.aliases++
	out := b.build(n.Alias)
	b.aliases--
	out.Pos = b.pos(n)
	return out
}

func (b *builder) scalar(n *yaml.Node, out *Node) {
	out.Text = n.Value
	switch {
	case n.Style&yaml.TaggedStyle != 0:
		if !out.resolveTagged(n.Tag) {
			b.problem(Value, n, "%q is not what its tag %s says", n.Value, n.Tag)
		}
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		out.Kind = String
	default:
		out.Plain = true
		out.resolvePlain()
	}
}

// finite reports a number that JSON has no form for. As a key it is only text.
func (b *builder) finite(n *yaml.Node, out *Node) {
	if out.Kind == Float && (math.IsNaN(out.Float) || math.IsInf(out.Float, 0)) {
		b.problem(Value, n, "%s cannot be written in JSON, so it is not a number here", n.Value)
	}
}

func (b *builder) fields(n *yaml.Node, out *Node) {
	into := fieldSet{out: out}
	if len(n.Content) > 0 {
		out.Fields = make([]Field, 0, len(n.Content)/2)
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.ScalarNode && key.Tag == "!!merge" {
			b.merge(value, &into)
			continue
		}
		name, kind, ok := b.key(key)
		if !ok {
			b.problem(Value, key, "a key must be text, not %s", kind)
			continue
		}
		b.at.Field(name)
		v := b.build(value)
		b.at.Up()
		b.add(&into, Field{Key: name, KeyPos: b.pos(key), Value: v})
	}
}

// key is the text of a key, if it has one, and what it is.
func (b *builder) key(n *yaml.Node) (name string, kind Kind, ok bool) {
	if n.Kind != yaml.ScalarNode {
		k := b.build(n)
		name, ok = k.key()
		return name, k.Kind, ok
	}
	k := Node{Pos: b.pos(n)}
	b.scalar(n, &k)
	name, ok = k.key()
	return name, k.Kind, ok
}

// fieldSet is a map that is being filled.
type fieldSet struct{ out *Node }

func (s *fieldSet) add(f Field) {
	out := s.out
	if out.Fields = append(out.Fields, f); out.where != nil {
		out.where.add(f.Key, len(out.Fields)-1)
	} else if len(out.Fields) > fewFields {
		out.SetFields(out.Fields)
	}
}

// add puts a field into a map unless its key is there already.
func (b *builder) add(into *fieldSet, f Field) {
	if first := into.out.Field(f.Key); first != nil {
		b.at.Field(f.Key)
		b.problems = append(b.problems, Problem{
			Code: DuplicateKey, Pos: f.KeyPos, Path: b.at.String(),
			Message: fmt.Sprintf("the key %q is already set on line %d; remove one of them", f.Key, first.KeyPos.Line),
		})
		b.at.Up()
		return
	}
	into.add(f)
}

// merge adds what the key << stands for. As in Istio's strict reader, a merged
// key that is also written out is a duplicate.
func (b *builder) merge(value *yaml.Node, into *fieldSet) {
	from := b.build(value)
	maps := []*Node{from}
	if from.Kind == List {
		maps = from.Items
	}
	for _, m := range maps {
		if m.Kind != Map {
			b.problem(Value, value, "<< needs an object or a list of objects, not %s", m.Kind)
			continue
		}
		for _, f := range m.Fields {
			f.KeyPos = b.pos(value)
			b.add(into, f)
		}
	}
}
