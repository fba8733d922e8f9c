package manifest

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"
)

// EndMark is the line that ends a stream of YAML: no part of a text that ends with it does, as a rule.
const EndMark = "..."

const blanks = " \t\r\n"

// Ended reports whether the last line of a text that has something in it is EndMark.
func Ended(content []byte) bool {
	content = bytes.TrimRight(content, blanks)
	rest, ok := bytes.CutPrefix(content[bytes.LastIndexByte(content, '\n')+1:], []byte(EndMark))
	return ok && (len(rest) == 0 || bytes.IndexByte([]byte(blanks), rest[0]) >= 0)
}

// WithEnd writes EndMark behind a text, so that it shows if a part of it is lost. A text stays as it is if it has
// the mark, or is blank or no YAML. JSON gets a newline only: no part of it is JSON, and tabs in it are no YAML behind
// which a mark may stand.
func WithEnd(opts Options, content []byte) []byte {
	if Ended(content) {
		return content
	}
	if json.Valid(content) {
		return append(bytes.TrimRight(content, blanks), '\n')
	}
	before, _ := Decode(opts, "", content)
	if before.Unparsable {
		return content
	}
	end := "\n"
	if bytes.Contains(content, []byte("\r\n")) {
		end = "\r\n"
	}
	out := bytes.Clone(content)
	if !bytes.HasSuffix(out, []byte("\n")) {
		out = append(out, end...)
	}
	out = append(out, EndMark+end...)
	after, _ := Decode(opts, "", out)
	if !slices.EqualFunc(before.Objects, after.Objects, func(a, b *Object) bool { return sameButDate(a, b, time.Time{}) }) {
		return content // a newline more is a part of its last text
	}
	return out
}
