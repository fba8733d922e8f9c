package meshgen

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest/schema"
)

// location is a value in a specification, found by its path.
type location struct {
	fd     protoreflect.FieldDescriptor
	schema *schema.Schema // of the field or of its item; or nil
	path   string
	depth  int
	item   bool // one of a list or map
	value  any  // nil where there is none
}

// rewrite writes the value again.
func (w *writer) rewrite(at location) any {
	if !at.item {
		return w.field(at.fd, at.schema, at.path, at.depth)
	}
	fd := at.fd
	if fd.IsMap() {
		fd = fd.MapValue()
	}
	return w.value(fd, at.fd, at.schema, at.path, at.depth)
}

// at finds a location by its path in a message. It replaces the value by the result of do,
// or removes it if that is nil. It reports false if the message has no such field.
func (w *writer) at(md protoreflect.MessageDescriptor, s *schema.Schema, m map[string]any, path string, depth int, tokens []string, do func(location) any) bool {
	fd := md.Fields().ByJSONName(tokens[0])
	if fd == nil {
		return false
	}
	name := tokens[0]
	here := location{fd: fd, schema: property(s, name), path: join(path, name), depth: depth, value: m[name]}
	put := func(v any) {
		if v == nil {
			delete(m, name)
		} else {
			m[name] = v
		}
	}
	var items *schema.Schema
	below := func(v any, tokens []string) (any, bool) { // what becomes of an item
		item := location{fd: fd, schema: items, path: here.path, depth: depth, item: true, value: v}
		if len(tokens) == 0 {
			return do(item), true
		}
		inner, ok := v.(map[string]any)
		if !ok || messageOf(fd) == nil {
			return do(item), true
		}
		return inner, w.at(messageOf(fd), items, inner, here.path, depth+1, tokens, do)
	}
	switch v := here.value.(type) {
	case []any:
		if len(tokens) == 1 {
			break
		}
		if here.schema != nil {
			items = here.schema.Items
		}
		i, err := strconv.Atoi(tokens[1])
		if err != nil || i >= len(v) {
			return false
		}
		next, ok := below(v[i], tokens[2:])
		if next == nil {
			v = append(v[:i:i], v[i+1:]...)
		} else {
			v[i] = next
		}
		put(v)
		return ok
	case map[string]any:
		if len(tokens) == 1 {
			break
		}
		if !fd.IsMap() {
			return w.at(fd.Message(), here.schema, v, here.path, depth+1, tokens[1:], do)
		}
		if here.schema != nil {
			items = here.schema.AdditionalProperties
		}
		next, ok := below(v[tokens[1]], tokens[2:])
		if next == nil {
			delete(v, tokens[1])
		} else {
			v[tokens[1]] = next
		}
		return ok
	}
	put(do(here))
	return true
}

// tokens splits the path of a fault, such as spec.http[0].match.
func tokens(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			if strings.HasPrefix(path, `["`) {
				key, err := strconv.QuotedPrefix(path[1:])
				if err != nil {
					return out
				}
				plain, _ := strconv.Unquote(key)
				out, path = append(out, plain), strings.TrimPrefix(path[1+len(key):], "]")
				continue
			}
			index, rest, _ := strings.Cut(path[1:], "]")
			out, path = append(out, index), rest
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			out, path = append(out, path[:end]), path[end:]
		}
	}
	return out
}

// repair changes a specification at the path of a fault: it writes the value again, removes
// it, or adds what is missing.
func (w *writer) repair(spec map[string]any, fault []string, try int) {
	if len(fault) == 0 || fault[0] == "" { // of the whole: one part of it less, or another one more
		if names := sortedKeys(spec); len(names) > 1 && w.chance(0.6) {
			delete(spec, pick(w.rng, names))
			return
		}
		for name, v := range w.message(w.kind.message, w.kind.schema, "", 0) {
			if _, there := spec[name]; !there || try > 6 {
				spec[name] = v
			}
		}
		return
	}
	if others := slices.DeleteFunc(sortedKeys(spec), func(name string) bool { return name == fault[0] }); len(fault) == 1 && len(others) > 1 && w.chance(0.35) {
		delete(spec, pick(w.rng, others)) // what it does not go together with
		return
	}
	found := w.at(w.kind.message, w.kind.schema, spec, "", 0, fault, func(at location) any {
		keep := 0.65
		switch at.value.(type) {
		case nil:
			return w.rewrite(at)
		case []any, map[string]any:
			keep = 0.6
		}
		if try > 7 || !w.chance(keep) {
			return nil
		}
		return w.rewrite(at)
	})
	if !found {
		delete(spec, fault[0])
	}
}

// edit changes the field of a path, and makes the messages that contain it if they are
// missing.
func (w *writer) edit(md protoreflect.MessageDescriptor, s *schema.Schema, m map[string]any, path, target string, depth int) {
	name, rest, deeper := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(target, path), "."), ".")
	fd := md.Fields().ByJSONName(name)
	if fd == nil {
		return
	}
	p := join(path, name)
	if one := fd.ContainingOneof(); one != nil {
		for i := range one.Fields().Len() {
			if o := one.Fields().Get(i); o != fd {
				delete(m, o.JSONName())
			}
		}
	}
	was, there := m[name]
	w.target = target
	switch {
	case !deeper || rest == "":
		if there && w.chance(0.25) {
			delete(m, name)
			return
		}
		for range 6 {
			if m[name] = w.field(fd, property(s, name), p, depth); !same(m[name], was) {
				return
			}
		}
	case !there:
		m[name] = w.field(fd, property(s, name), p, depth)
	default:
		w.editBelow(fd, property(s, name), was, p, target, depth)
	}
}

func (w *writer) editBelow(fd protoreflect.FieldDescriptor, s *schema.Schema, v any, path, target string, depth int) {
	var inner any
	switch v := v.(type) {
	case []any:
		if s != nil {
			s = s.Items
		}
		if len(v) == 0 {
			return
		}
		inner = pick(w.rng, v)
	case map[string]any:
		if inner = v; fd.IsMap() {
			if s != nil {
				s = s.AdditionalProperties
			}
			if len(v) == 0 {
				return
			}
			inner = v[pick(w.rng, sortedKeys(v))]
		}
	}
	if m, ok := inner.(map[string]any); ok && messageOf(fd) != nil {
		w.edit(messageOf(fd), s, m, path, target, depth+1)
	}
}
