package lastgood

import (
	"bytes"
	"fmt"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// ending is how a text ends.
type ending struct {
	// newline: the last line is whole. Lines behind it may be missing.
	newline bool
	// mark: the last line is "...", the end of a stream of YAML. Nothing is missing.
	mark bool
}

func endingOf(content []byte) ending {
	return ending{newline: bytes.HasSuffix(content, []byte("\n")), mark: manifest.Ended(content)}
}

// cut is the way in which a text lost its end, if it did.
type cut uint8

const (
	notCut cut = iota
	// cutLine: it does not end with a newline, and did.
	cutLine
	// cutMark: it does not end with the mark, and did.
	cutMark
	// cutInside: it ends with one of the marks that it had in its middle.
	cutInside
)

// cutOf compares a text with the last one at its place that was taken as whole.
func cutOf(whole, now []byte) cut {
	was, is := endingOf(whole), endingOf(now)
	switch {
	case was.mark && !is.mark:
		return cutMark
	case was.newline && !is.newline:
		return cutLine
	case was.mark:
		// A part of it that ends with a mark is no sign that the rest was removed on purpose.
		if Begins(whole, now) {
			return cutInside
		}
	}
	return notCut
}

// Begins reports whether a text is the beginning of another one, and lacks more than comments at its end.
func Begins(whole, part []byte) bool {
	rest, begins := bytes.CutPrefix(whole, bytes.TrimRight(part, " \t\r\n"))
	return begins && !onlyComments(rest)
}

// onlyComments reports whether the rest of a text, which begins in the middle of a line, has no document.
func onlyComments(rest []byte) bool {
	for line := range bytes.Lines(rest) {
		switch line = bytes.TrimSpace(line); {
		case len(line) == 0, line[0] == '#', string(line) == manifest.EndMark, string(line) == "---":
		default:
			return false
		}
	}
	return true
}

// CutOff says why a server that has a text would take another one in its place for cut off; empty if it would not.
func CutOff(whole, now []byte) string {
	if c := cutOf(whole, now); c != notCut {
		why, _ := c.words()
		return why
	}
	return ""
}

// fault says what a text lost, and what to do. at may be nil.
func (c cut) fault(at *mesh.Origin) manifest.Fault {
	if at == nil {
		at = &mesh.Origin{}
	}
	source := at.Source
	if source == "" {
		source = "SOURCE"
	}
	why, end := c.words()
	return faultAt(at, mesh.Key{}, CodeCut, fmt.Sprintf("this %s, so it may be cut off: its last object, and the objects that it lacks, stay as they were; "+
		"if this is meant, %s, or run `fairlead release %s`", why, end, source))
}

// words say what a text lost, and what to write if that is meant.
func (c cut) words() (why, end string) {
	switch c {
	case cutMark:
		return `does not end with the line "...", as it did`, "end the file with a newline and the line `...`"
	case cutInside:
		return `ends at a line "..." that was in its middle`, "write a comment above that line"
	case notCut, cutLine:
	}
	return "does not end with a newline, as it did", "end the file with a newline"
}

// EndOf is the position of the end of a text, for [Decoded.End].
func EndOf(source, path string, content []byte) *mesh.Origin {
	content = bytes.TrimRight(content, "\r\n")
	return &mesh.Origin{
		Source: source, Path: path, Line: bytes.Count(content, []byte("\n")) + 1,
		Column: len([]rune(string(content[bytes.LastIndexByte(content, '\n')+1:]))) + 1,
	}
}
