package manifest

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest/tree"
	"github.com/fairlead/fairlead/registry/mesh"
)

// AsStored is a text as its author has it, with what `apply` and `config push` wrote into the version of it that is
// stored: they differ in nothing that the author wrote if the result is the stored text. Whatever these commands
// write into texts of others has to be kept here, so that it is no difference for `config diff`, `config pull` and
// the next `apply`.
func AsStored(opts Options, author, stored []byte) []byte {
	return WrittenIn(opts, stored).Into(opts, author)
}

// Written is what `apply` and `config push` may have written into a stored text besides what its author wrote.
type Written struct {
	stored []byte
	// Dates are those of its Gateways. A Gateway without one has a zero date.
	Dates map[mesh.Key]time.Time
	// End says that the text has an end, as [WithEnd] writes it.
	End bool
}

// WrittenIn is all that may have been written into a stored text.
func WrittenIn(opts Options, stored []byte) Written {
	return Written{
		stored: stored, Dates: GatewayDates(opts, stored),
		End: Ended(stored) || json.Valid(stored) && bytes.HasSuffix(stored, []byte("\n")),
	}
}

// Into is the text of an author with it.
func (w Written) Into(opts Options, author []byte) []byte {
	if bytes.Equal(author, w.stored) {
		return author
	}
	out := WithGatewayDates(opts, author, w.Dates)
	if w.End {
		out = WithEnd(opts, out)
	}
	return out
}

// GatewayDates are the Gateways of a text, each with its creationTimestamp, or zero.
func GatewayDates(opts Options, content []byte) map[mesh.Key]time.Time {
	if !mayHaveGateway(content) {
		return nil
	}
	file, _ := Decode(opts, "", content)
	out := map[mesh.Key]time.Time{}
	for _, o := range file.Objects {
		if o.Meta.Kind == mesh.KindGateway && o.Meta.Name != "" {
			out[o.Meta.Key] = o.Meta.Created
		}
	}
	return out
}

func mayHaveGateway(content []byte) bool { return bytes.Contains(content, []byte(mesh.KindGateway)) }

// WithGatewayDates writes a creationTimestamp into each Gateway of a text that has none, if there is one for it.
// Nothing else of the text changes. It is returned as it is if that is not possible: if an object is not valid, or
// its metadata are written in a way in which a line more would mean something else.
func WithGatewayDates(opts Options, content []byte, dates map[mesh.Key]time.Time) []byte {
	if len(dates) == 0 || !mayHaveGateway(content) {
		return content
	}
	before, _ := Decode(opts, "", content)
	text := newEditedText(content)
	want := map[*Object]time.Time{}
	for _, o := range before.Objects {
		at := dates[o.Meta.Key]
		if _, is := o.Spec.(*networking.Gateway); !is || !o.Meta.Created.IsZero() || at.IsZero() {
			continue
		}
		if text.addDate(o.root, at.UTC().Format(time.RFC3339Nano)) {
			want[o] = at
		}
	}
	if len(want) == 0 {
		return content
	}
	out := text.bytes()
	after, _ := Decode(opts, "", out)
	if !slices.EqualFunc(before.Objects, after.Objects, func(a, b *Object) bool { return sameButDate(a, b, want[a]) }) {
		return content
	}
	return out
}

// sameButDate reports whether an edit of a text changed nothing of an object but its date, if that is not zero.
func sameButDate(was, is *Object, created time.Time) bool {
	if was.Meta.Key != is.Meta.Key || was.Valid != is.Valid {
		return false
	}
	if created.IsZero() {
		return was.Meta.Hash == is.Meta.Hash
	}
	meta := is.Meta
	meta.Created = time.Time{}
	return is.Meta.Created.Equal(created) && hashOf(&meta, is.Spec) == hashOf(&was.Meta, was.Spec)
}

// editedText is a text and what is to be put into it.
type editedText struct {
	content []byte
	lines   []int // where each line begins
	edits   []textEdit
}

// textEdit replaces some bytes at an offset.
type textEdit struct {
	at, length int
	text       string
}

func newEditedText(content []byte) *editedText {
	e := &editedText{content: content, lines: []int{0}}
	for i, c := range content {
		if c == '\n' {
			e.lines = append(e.lines, i+1)
		}
	}
	return e
}

// offset is that of a position, or -1.
func (e *editedText) offset(p tree.Position) int {
	if p.Line < 1 || p.Line > len(e.lines) {
		return -1
	}
	at := e.lines[p.Line-1]
	for range p.Column - 1 { // columns are characters
		_, size := utf8.DecodeRune(e.content[at:])
		if at += size; size == 0 {
			return -1
		}
	}
	return at
}

// addDate puts a date into the metadata of an object. Comments stay with the fields that they stand at. It
// reports false if the metadata are written in an unknown way; the result is checked in any case.
func (e *editedText) addDate(root *tree.Node, date string) bool {
	field := root.Field("metadata")
	if field == nil || field.Value.Kind != tree.Map || len(field.Value.Fields) == 0 {
		return false
	}
	line := `creationTimestamp: "` + date + `"`
	if has := field.Value.Field("creationTimestamp"); has != nil { // null, as some tools write it
		at := e.offset(has.Value.Pos)
		for _, null := range []string{"null", "~"} {
			if at >= 0 && bytes.HasPrefix(e.content[at:], []byte(null)) {
				e.edits = append(e.edits, textEdit{at, len(null), `"` + date + `"`})
				return true
			}
		}
		return false
	}
	key, first := e.offset(field.KeyPos), e.offset(field.Value.Fields[0].KeyPos)
	if key < 0 || first <= key {
		return false
	}
	opening := bytes.TrimRight(e.content[key:first], " \t\r\n")
	if bytes.HasSuffix(opening, []byte("{")) { // {name: x}
		if e.content[first] == '"' {
			line = `"creationTimestamp": "` + date + `"`
		}
		e.edits = append(e.edits, textEdit{first, 0, line + ", "})
		return true
	}
	indent := string(e.content[e.lines[field.Value.Fields[0].KeyPos.Line-1]:first])
	if field.KeyPos.Line == field.Value.Fields[0].KeyPos.Line || strings.Trim(indent, " ") != "" {
		return false
	}
	end := "\n"
	next := e.lines[field.KeyPos.Line] // the line after that of "metadata:"
	if next > 1 && e.content[next-2] == '\r' {
		end = "\r\n"
	}
	e.edits = append(e.edits, textEdit{next, 0, indent + line + end})
	return true
}

// bytes is the text after all edits.
func (e *editedText) bytes() []byte {
	slices.SortFunc(e.edits, func(a, b textEdit) int { return a.at - b.at })
	var out []byte
	at := 0
	for _, x := range e.edits {
		out = append(append(out, e.content[at:x.at]...), x.text...)
		at = x.at + x.length
	}
	return append(out, e.content[at:]...)
}

// AuthorLine is the line of an author's text that a line of the text with dates was.
func AuthorLine(author, written []byte, line int) int {
	a, added := bytes.Split(author, []byte("\n")), 0
	for i, text := range bytes.Split(written, []byte("\n")) {
		if i+1 > line {
			break
		}
		if j := i - added; bytes.HasPrefix(bytes.TrimLeft(text, " "), []byte(`creationTimestamp: "`)) && (j >= len(a) || !bytes.Equal(a[j], text)) {
			added++
		}
	}
	return max(1, line-added)
}
