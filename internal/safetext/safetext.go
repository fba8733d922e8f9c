package safetext

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// room is the space for the number of bytes that were cut off.
const room = len("… (99999999 bytes more)")

// Sanitize returns s on one line and in at most the given number of bytes, which must be
// some dozens. Characters that move the cursor, change the direction of writing or are
// invisible are escaped, such as \x1b and \u202e; line breaks become a space. Safe text is
// returned unchanged.
func Sanitize(s string, most int) string {
	if len(s) <= most && isSafe(s) {
		return s
	}
	var b strings.Builder
	cut, read := 0, 0 // of b, and of s, where there is room for the rest
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case isBreak(r):
			for i+n < len(s) && isBreak(rune(s[i+n])) {
				n++
			}
			b.WriteByte(' ')
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			fmt.Fprintf(&b, `\U%08x`, r)
		}
		i += n
		if b.Len() > most {
			return b.String()[:cut] + fmt.Sprintf("… (%d bytes more)", len(s)-read)
		}
		if b.Len() <= most-room {
			cut, read = b.Len(), i
		}
	}
	return b.String()
}

func isBreak(r rune) bool { return r == '\n' || r == '\r' || r == '\t' }

func isSafe(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}
