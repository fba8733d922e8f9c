package kv

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxRel bounds the part of a key below the prefix, and maxName each name in it:
// what file systems take.
const (
	maxRel  = 4000
	maxName = 255
)

// PathOf is a key as it is shown: a key may have anything in it. Each key has its
// own.
func PathOf(key string) string {
	if !utf8.ValidString(key) || strings.Contains(key, `\`) || strings.ContainsFunc(key, isUnprintable) {
		quoted := strconv.Quote(key)
		key = quoted[1 : len(quoted)-1]
	}
	return "consul-kv:" + key
}

// isUnprintable is true for what a terminal does not show, or acts on: control
// characters, and those that turn the direction of writing or have no width.
func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// isManifest reports whether the part of a key below the prefix is that of a
// manifest: as in a directory, *.yaml and *.yml of which no name begins with a
// dot.
func isManifest(rel string) bool {
	if ext := path.Ext(rel); ext != ".yaml" && ext != ".yml" {
		return false
	}
	return rel[0] != '.' && !strings.Contains(rel, "/.")
}

// CheckRel says why the part of a key below the prefix could not be a path of a
// file below a directory, or the other way round.
func CheckRel(rel string) error {
	switch {
	case rel == "":
		return errors.New("it is empty")
	case len(rel) > maxRel:
		return fmt.Errorf("it is longer than %d bytes", maxRel)
	case !utf8.ValidString(rel) || strings.ContainsRune(rel, unicode.ReplacementChar):
		return errors.New("it is not UTF-8")
	case strings.ContainsFunc(rel, isUnprintable):
		return errors.New("it has a character in it that is not to be seen, or a space of a strange kind")
	case strings.Contains(rel, `\`):
		return errors.New(`it has a backslash in it`)
	}
	for name := range strings.SplitSeq(rel, "/") {
		switch {
		case name == "":
			return errors.New("it has an empty name in it, by a slash at an end or two in a row")
		case name == "." || name == "..":
			return fmt.Errorf("it has %q in it, which leads elsewhere", name)
		case len(name) > maxName:
			return fmt.Errorf("a name in it is longer than %d bytes", maxName)
		}
	}
	return nil
}
