package tree

import (
	"fmt"
	"strconv"
	"strings"
)

// Trail is the path of a value while a document is walked. Walking is far more
// often than telling, so that text is made of it when somebody asks. The zero value
// is the path of the whole document.
type Trail struct {
	// Base is what the path begins with.
	Base  string
	steps []step
}

// step is one step down: to a field, or to an item of a list.
type step struct {
	field string
	item  int // or -1
}

// Field goes down to a field.
func (t *Trail) Field(name string) { t.steps = append(t.steps, step{name, -1}) }

// Item goes down to an item of a list.
func (t *Trail) Item(i int) { t.steps = append(t.steps, step{"", i}) }

// Up goes back to where the last Field or Item came from.
func (t *Trail) Up() { t.steps = t.steps[:len(t.steps)-1] }

// String is the path, such as "spec.http[0].route".
func (t *Trail) String() string {
	path := t.Base
	for _, s := range t.steps {
		if s.item < 0 {
			path = Join(path, s.field)
		} else {
			path += "[" + strconv.Itoa(s.item) + "]"
		}
	}
	return path
}

// Join appends a field's name to a path. What could be taken for another part
// of the path, or for another line of a report, is quoted.
func Join(path, name string) string {
	switch {
	case strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }), path != "" && strings.ContainsAny(name, ".[]"):
		return fmt.Sprintf("%s[%q]", path, name)
	case path == "":
		return name
	default:
		return path + "." + name
	}
}
