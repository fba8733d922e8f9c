package webhook

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// cursor is a place in an object, and the list that its faults go to. It is a
// value: a checker derives cursors for the fields below and never undoes one.
type cursor struct {
	faults *[]Fault
	path   string
}

// at returns the cursor of a field.
func (c cursor) at(field string) cursor {
	if c.path != "" {
		field = c.path + "." + field
	}
	return cursor{faults: c.faults, path: field}
}

// item returns the cursor of the i-th element of a list field.
func (c cursor) item(field string, i int) cursor {
	return c.at(field).elem(i)
}

// elem returns the cursor of the i-th element of the list c is at.
func (c cursor) elem(i int) cursor {
	return cursor{faults: c.faults, path: c.path + "[" + strconv.Itoa(i) + "]"}
}

// entry returns the cursor of a key of a map field.
func (c cursor) entry(field, key string) cursor {
	return c.at(field).key(key)
}

// key returns the cursor of a key of the map c is at. A key that could be taken for
// more than one step of a path is quoted.
func (c cursor) key(key string) cursor {
	step := "[" + strconv.Quote(key) + "]"
	if madeOf(key, "-_") {
		step = "." + key
	}
	return cursor{faults: c.faults, path: c.path + step}
}

func (c cursor) wrong(format string, args ...any) {
	*c.faults = append(*c.faults, Fault{Path: c.path, Message: fmt.Sprintf(format, args...)})
}

func (c cursor) warn(format string, args ...any) {
	*c.faults = append(*c.faults, Fault{Path: c.path, Message: fmt.Sprintf(format, args...), Warning: true})
}

// because reports why unless it is empty. The whyNot... functions return such texts.
func (c cursor) because(why string) {
	if why != "" {
		c.wrong("%s", why)
	}
}

// sorted yields the keys of m in order, so that faults come out the same each time.
func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
