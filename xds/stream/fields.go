package stream

import (
	"math"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// fields iterates over the fields of a message in several buffers. A field that begins in
// one buffer and ends in another is copied, and so is everything behind a field that the
// protocol does not have.
type fields struct {
	text  string   // what is read now; it may lie in a buffer of the frame
	at    int      // in text
	from  int      // where the last field begins, in text
	after []byte   // what follows text
	frame [][]byte // what follows that
}

// end reports whether there are no more fields.
func (f *fields) end() bool {
	if f.at < len(f.text) {
		return false
	}
	if !f.more() {
		return true
	}
	f.setText(f.after)
	f.after = nil
	return false
}

// more reports whether something follows text, which is in after then.
func (f *fields) more() bool {
	for len(f.after) == 0 && len(f.frame) > 0 {
		f.after, f.frame = f.frame[0], f.frame[1:]
	}
	return len(f.after) > 0
}

// join makes the next field contiguous, or all of the rest if that field is unusual.
func (f *fields) join() {
	if !f.more() {
		return
	}
	text := []byte(f.text[f.at:])
	for size := wholeField(text); size > len(text) && f.more(); size = wholeField(text) {
		n := min(size-len(text), len(f.after))
		text, f.after = append(text, f.after[:n]...), f.after[n:]
	}
	f.setText(text)
}

// wholeField is the size of the length-delimited field at the beginning of b. It is more
// than what b has if that is not enough to know it, and endless for other fields.
func wholeField(b []byte) int {
	text := asText(b)
	tag, tagEnd := shortVarint(text, 0)
	size, end := shortVarint(text, tagEnd)
	switch {
	case tagEnd == 0 && len(b) < maxShortVarint, tagEnd > 0 && end == 0 && len(b) < tagEnd+maxShortVarint && simpleTag(tag):
		return len(b) + 1
	case tagEnd == 0, end == 0, !simpleTag(tag), size > math.MaxInt32:
		return math.MaxInt
	}
	return end + int(size)
}

// asText is the same bytes as a string, without a copy.
func asText(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b)) //nolint:gosec // copied, or found in a set, before the buffer is used again: see knownNames
}

func (f *fields) setText(b []byte) { f.text, f.at = asText(b), 0 }

// field is the last field, as it is in the message.
func (f *fields) field() string { return f.text[f.from:f.at] }

// next reads one field. content is set for length-delimited fields, and may lie in a
// buffer of the frame.
func (f *fields) next() (num protowire.Number, content string, isBytes bool, err error) {
	num, content, end := simpleField(f.text, f.at)
	if end == 0 {
		f.join()
		num, content, end = simpleField(f.text, f.at)
	}
	f.from = f.at
	if end > 0 {
		f.at = end
		return num, content, true, nil
	}
	rest := unsafe.Slice(unsafe.StringData(f.text), len(f.text))[f.at:] //nolint:gosec // it is only read
	num, typ, n := protowire.ConsumeField(rest)
	if n < 0 {
		return 0, "", false, protowire.ParseError(n) //nolint:wrapcheck // the caller wraps it
	}
	f.at += n
	if typ != protowire.BytesType {
		return num, "", false, nil
	}
	_, _, tag := protowire.ConsumeTag(rest)
	_, size := protowire.ConsumeVarint(rest[tag:])
	return num, f.text[f.from+tag+size : f.at], true, nil
}

// simpleField reads the length-delimited field at an offset. end is behind it, or 0 if
// there is another kind of field, or an unusual encoding.
func simpleField(text string, at int) (num protowire.Number, content string, end int) {
	if rest := text[at:]; len(rest) > 1 && rest[0] < 0x80 && rest[1] < 0x80 && int(rest[1]) <= len(rest)-2 && simpleTag(uint64(rest[0])) { // nearly all
		end = 2 + int(rest[1])
		return protowire.Number(rest[0] >> 3), rest[2:end], at + end
	}
	tag, at := shortVarint(text, at)
	if at == 0 || !simpleTag(tag) {
		return 0, "", 0
	}
	size, at := shortVarint(text, at)
	if at == 0 || size > uint64(len(text)-at) {
		return 0, "", 0
	}
	end = at + int(size)
	return protowire.Number(tag >> 3), text[at:end], end
}

// simpleTag reports whether a tag is that of a length-delimited field.
func simpleTag(tag uint64) bool {
	return tag&7 == uint64(protowire.BytesType) && tag>>3 > 0 && tag>>3 <= uint64(protowire.MaxValidNumber)
}

// maxShortVarint is how many bytes shortVarint reads.
const maxShortVarint = 5

// shortVarint reads a varint of at most five bytes; end is behind it, or 0.
func shortVarint(text string, at int) (value uint64, end int) {
	for shift := 0; shift < 7*maxShortVarint && at < len(text); shift += 7 {
		b := text[at]
		at++
		value |= uint64(b&0x7f) << shift
		if b < 0x80 {
			return value, at
		}
	}
	return 0, 0
}
