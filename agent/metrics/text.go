package metrics

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"
)

// label is one label of a series, its value without escapes.
type label struct{ name, value string }

// sample is one line of Prometheus's text format, version 0.0.4. Its parts share the memory of
// the line.
type sample struct {
	name []byte
	// labels is what stands between the braces, escaped; nil if there are no braces.
	labels []byte
	value  []byte
	// line is the sample without blanks around it and without what OpenMetrics adds.
	line []byte
}

// maxLabels is how many labels a series may have.
const maxLabels = 128

// parseSample reads a line that is no comment. It accepts less than Prometheus does: no names
// in quotes, no label twice, and no labels that begin with "__": __name__ is another name.
func parseSample(line []byte) (sample, bool) {
	line = bytes.Trim(line, " \t\r")
	var s sample
	n := nameLen(line, true)
	if n == 0 || !utf8.Valid(line) {
		return s, false
	}
	s.name = line[:n]
	rest := trimLeft(line[n:])
	if len(rest) > 0 && rest[0] == '{' {
		end := labelsLen(rest[1:])
		if end < 0 {
			return s, false
		}
		s.labels = rest[1 : 1+end]
		rest = rest[2+end:]
	} else if len(rest) == len(line[n:]) {
		return s, false // nothing between name and value
	}
	value, rest, _ := bytes.Cut(trimLeft(rest), []byte(" "))
	if !isNumber(value) {
		return s, false
	}
	s.value = value
	end := len(line) - len(rest)
	if rest = trimLeft(rest); len(rest) > 0 && rest[0] != '#' {
		var stamp []byte
		stamp, rest, _ = bytes.Cut(rest, []byte(" "))
		// Prometheus stops reading a page at a sign, though its documentation has one.
		if _, err := strconv.ParseInt(string(stamp), 10, 64); err != nil || stamp[0] == '-' || stamp[0] == '+' {
			return s, false
		}
		end = len(line) - len(rest)
		rest = trimLeft(rest)
	}
	if len(rest) > 0 && rest[0] != '#' { // '#' begins an exemplar of OpenMetrics
		return s, false
	}
	s.line = bytes.TrimRight(line[:end], " ")
	return s, true
}

func trimLeft(b []byte) []byte { return bytes.TrimLeft(b, " \t") }

// nameLen is the length of the name at the start of b; names of metrics may have colons.
func nameLen(b []byte, metric bool) int {
	for i, c := range b {
		switch {
		case c == '_', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', i > 0 && c >= '0' && c <= '9', metric && c == ':':
		default:
			return i
		}
	}
	return len(b)
}

func isNumber(b []byte) bool {
	if len(b) == 0 || bytes.ContainsAny(b, "pP_xX") {
		return false
	}
	_, err := strconv.ParseFloat(string(b), 64)
	return err == nil
}

// labelsLen is the length of the labels up to the closing brace; -1 if they are not well
// formed.
func labelsLen(b []byte) int {
	var names [maxLabels][]byte
	count := 0
	end, ok := walkLabels(b, func(name, _ []byte) bool {
		if bytes.HasPrefix(name, []byte("__")) {
			return false
		}
		for _, other := range names[:count] {
			if bytes.Equal(other, name) {
				return false
			}
		}
		if count == maxLabels {
			return false
		}
		names[count] = name
		count++
		return true
	})
	if !ok || end == len(b) {
		return -1
	}
	return end
}

// walkLabels calls each for every label of b with its escaped value, up to a closing brace or
// the end, whose place it returns; false if the labels are not well formed, or if each says so.
func walkLabels(b []byte, each func(name, escaped []byte) bool) (int, bool) {
	i := skipBlanks(b, 0)
	for i < len(b) && b[i] != '}' {
		n := nameLen(b[i:], false)
		if n == 0 {
			return i, false
		}
		name := b[i : i+n]
		if i = skipBlanks(b, i+n); i >= len(b) || b[i] != '=' {
			return i, false
		}
		if i = skipBlanks(b, i+1); i >= len(b) || b[i] != '"' {
			return i, false
		}
		i++
		n = quotedLen(b[i:])
		if n < 0 || !each(name, b[i:i+n]) {
			return i, false
		}
		i = skipBlanks(b, i+n+1)
		if i < len(b) && b[i] == ',' {
			i = skipBlanks(b, i+1)
		} else if i < len(b) && b[i] != '}' {
			return i, false
		}
	}
	return i, true
}

func skipBlanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t') {
		i++
	}
	return i
}

// quotedLen is the length of a value up to its closing quote; -1 if there is none, or if an
// escape is unknown.
func quotedLen(b []byte) int {
	for i := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i
		case '\\':
			i++
			if i == len(b) || b[i] != '\\' && b[i] != '"' && b[i] != 'n' {
				return -1
			}
		}
	}
	return -1
}

// parseLabels are the labels of a block, without escapes; false if it is not well formed.
func parseLabels(block []byte) ([]label, bool) {
	var out []label
	end, ok := walkLabels(block, func(name, escaped []byte) bool {
		out = append(out, label{string(name), unescape(string(escaped))})
		return len(out) <= maxLabels
	})
	return out, ok && end == len(block)
}

func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n").Replace(s)
}

// appendLabels appends labels as they stand between braces.
func appendLabels(b []byte, labels []label) []byte {
	for i, l := range labels {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, l.name...)
		b = append(b, '=', '"')
		b = appendEscaped(b, l.value)
		b = append(b, '"')
	}
	return b
}

func appendEscaped(b []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; c {
		case '\\', '"':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		default:
			b = append(b, c)
		}
	}
	return b
}
