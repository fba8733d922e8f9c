package meshgen

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

// writer writes specifications of one kind as JSON values.
type writer struct {
	rng    *rand.Rand
	kind   *Kind
	values *acceptedValues
	// target is the path of a field that has to be set; or empty.
	target string
}

// acceptedValues are values that decoding has accepted before, by field name.
type acceptedValues struct {
	good map[string][]any
	// hosts are those that services have, gateways the names of all Gateways.
	hosts, gateways []any
	// edge has most routes name Gateways that there are.
	edge bool
}

func (k *acceptedValues) copy() *acceptedValues { return &acceptedValues{good: maps.Clone(k.good)} }

func (k *acceptedValues) note(field string, value any) {
	if list := k.good[field]; len(list) < 12 && !slices.Contains(list, value) {
		k.good[field] = append(slices.Clip(list), value)
	}
}

func (w *writer) chance(p float64) bool { return w.rng.Float64() < p }

// message writes a message. Oneofs have one field at most.
func (w *writer) message(md protoreflect.MessageDescriptor, s *schema.Schema, path string, depth int) map[string]any {
	out := map[string]any{}
	taken := map[protoreflect.FullName]bool{}
	fields := make([]protoreflect.FieldDescriptor, 0, md.Fields().Len())
	for i := range md.Fields().Len() {
		fields = append(fields, md.Fields().Get(i))
	}
	w.rng.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	wanted := func(fd protoreflect.FieldDescriptor) bool {
		return w.target != "" && within(w.target, join(path, fd.JSONName()))
	}
	slices.SortStableFunc(fields, func(a, b protoreflect.FieldDescriptor) int {
		switch {
		case wanted(a) == wanted(b):
			return 0
		case wanted(a):
			return -1
		default:
			return 1
		}
	})
	density := max(0.15, 0.4-0.08*float64(depth))
	for _, fd := range fields {
		p := join(path, fd.JSONName())
		if in, _ := w.kind.allows(p); !in || !writable(fd) {
			continue
		}
		one := fd.ContainingOneof()
		if one != nil && taken[one.FullName()] || excluded(s, fd.JSONName(), out) {
			continue
		}
		required := s != nil && slices.Contains(s.Required, fd.JSONName())
		likely := density
		switch {
		case w.values.edge && depth == 0 && fd.JSONName() == "gateways":
			likely = 0.7
		case w.values.edge && depth == 0 && fd.JSONName() == "selector" && w.kind.Name == mesh.KindGateway:
			likely = 0.1 // it is for all gateways
		case nearlyAlways(fd.JSONName()):
			likely = 0.95
		case mostly(fd.JSONName()):
			likely = 0.7
		case often(fd.JSONName()):
			likely = min(0.7, 2*density)
		}
		if !wanted(fd) && !required && !w.chance(likely) {
			continue
		}
		out[fd.JSONName()] = w.field(fd, property(s, fd.JSONName()), p, depth)
		if one != nil {
			taken[one.FullName()] = true
		}
	}
	return out
}

// oneOf is how a schema says that of some fields one at most may be set.
var oneOf = regexp.MustCompile(`\(has\(self\.(\w+)\) \? 1 : 0\)`)

// excluded reports whether a field does not go together with one that is set.
func excluded(s *schema.Schema, name string, set map[string]any) bool {
	if s == nil {
		return false
	}
	for _, rule := range s.Rules {
		if !strings.HasSuffix(rule.Rule, "<= 1") || !strings.Contains(rule.Rule, "self."+name+")") {
			continue
		}
		for _, m := range oneOf.FindAllStringSubmatch(rule.Rule, -1) {
			if _, there := set[m[1]]; there {
				return true
			}
		}
	}
	return false
}

func property(s *schema.Schema, name string) *schema.Schema {
	if s == nil {
		return nil
	}
	return s.Properties[name]
}

func (w *writer) field(fd protoreflect.FieldDescriptor, s *schema.Schema, path string, depth int) any {
	switch {
	case fd.IsMap():
		out := map[string]any{}
		for range 1 + w.rng.IntN(2) {
			var below *schema.Schema
			if s != nil {
				below = s.AdditionalProperties
			}
			key := w.key(fd)
			if out[key] = w.value(fd.MapValue(), fd, below, path, depth); strings.Contains(strings.ToLower(fd.JSONName()), "label") && fd.MapValue().Message() == nil {
				out[key] = pick(w.rng, labelValues(key))
			}
		}
		return out
	case fd.IsList():
		var below *schema.Schema
		if s != nil {
			below = s.Items
		}
		out := []any{}
		for range 1 + w.rng.IntN(3) {
			for range 3 {
				if v := w.value(fd, fd, below, path, depth); !slices.ContainsFunc(out, func(o any) bool { return alike(o, v) }) {
					out = append(out, v)
					break
				}
			}
		}
		return out
	default:
		return w.value(fd, fd, s, path, depth)
	}
}

// alike reports whether two items of a list are one to who reads it: those that have a
// name or a number have another one each.
func alike(a, b any) bool {
	x, isMap := a.(map[string]any)
	y, both := b.(map[string]any)
	if isMap && both {
		for _, name := range []string{"name", "number"} {
			if p, ok := x[name]; ok && same(p, y[name]) {
				return true
			}
		}
	}
	return same(a, b)
}

func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && string(x) == string(y)
}

// key is one of a map.
func (w *writer) key(fd protoreflect.FieldDescriptor) string {
	if fd.MapKey().Kind() != protoreflect.StringKind {
		return strconv.Itoa(int(pick(w.rng, ports())))
	}
	name := strings.ToLower(fd.JSONName())
	switch {
	case strings.Contains(name, "label"):
		return pick(w.rng, labelKeys())
	case strings.Contains(name, "port"):
		return pick(w.rng, []string{"http", "tcp", "v1"})
	case name == "to": // of what a locality distributes
		return pick(w.rng, []string{"eu/*", "eu/a", "us/*", "*"})
	default:
		return pick(w.rng, []string{"x-a", "x-b", "x-a", "host"})
	}
}

// value writes one value; named is the field whose name says what it holds.
func (w *writer) value(fd, named protoreflect.FieldDescriptor, s *schema.Schema, path string, depth int) any {
	if md := fd.Message(); md != nil {
		if !isScalar(md) {
			var out map[string]any
			for range 5 { // an empty one says nothing
				if out = w.message(md, s, path, depth+1); len(out) > 0 {
					break
				}
			}
			return out
		}
		if md.Name() == "Duration" {
			return w.known(named, path, []any{"1s", "2s", "5s", "0.5s", "30s", "90s", "0s", "3600s"})
		}
		return w.scalar(md.Fields().ByName("value"), named, s, path)
	}
	return w.scalar(fd, named, s, path)
}

func (w *writer) scalar(fd, named protoreflect.FieldDescriptor, s *schema.Schema, path string) any {
	_, only := w.kind.allows(path)
	switch {
	case len(only) > 0:
		return pick(w.rng, only)
	case fd.Kind() == protoreflect.BoolKind:
		return w.chance(0.5)
	case fd.Enum() != nil:
		values := fd.Enum().Values()
		if w.chance(0.6) { // what is zero goes without saying
			return string(values.Get(max(min(1, values.Len()-1), w.rng.IntN(values.Len()))).Name())
		}
		return string(values.Get(w.rng.IntN(values.Len())).Name())
	case fd.Kind() == protoreflect.StringKind:
		if s != nil && len(s.Enum) > 0 {
			return pick(w.rng, s.Enum)
		}
		list := wordsFor(string(named.Name()))
		if list == nil || w.chance(0.1) {
			list = everything()
		}
		return w.known(named, path, anys(list))
	default:
		return w.known(named, path, anys(numbersFor(string(named.Name()))))
	}
}

func anys[T any](list []T) []any {
	out := make([]any, len(list))
	for i, x := range list {
		out[i] = x
	}
	return out
}

// known prefers what the field has taken before.
func (w *writer) known(named protoreflect.FieldDescriptor, _ string, list []any) any {
	if live := w.values.hosts; len(live) > 0 && strings.HasPrefix(named.JSONName(), "host") && w.chance(0.6) {
		return pick(w.rng, live)
	}
	if w.values.edge && named.JSONName() == "hosts" && w.kind.Name == mesh.KindGateway && w.chance(0.5) {
		return "*"
	}
	if live := w.values.gateways; len(live) > 0 && named.JSONName() == "gateways" && w.values.edge {
		return pick(w.rng, live)
	}
	if good := w.values.good[w.values.name(w.kind, named)]; len(good) > 0 && w.chance(0.4) {
		return pick(w.rng, good)
	}
	return pick(w.rng, list)
}

// name is that of a field in a kind: what one kind calls hosts is not what another
// one does.
func (*acceptedValues) name(k *Kind, fd protoreflect.FieldDescriptor) string {
	return string(k.Name) + " " + FieldName(fd)
}

// learn notes the values of an object that was taken.
func (k *acceptedValues) learn(kind *Kind, md protoreflect.MessageDescriptor, spec map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(spec)) {
		fd := md.Fields().ByJSONName(name)
		if fd == nil {
			continue
		}
		k.learnValue(kind, fd, spec[name])
	}
}

func (k *acceptedValues) learnValue(kind *Kind, fd protoreflect.FieldDescriptor, v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			k.learnValue(kind, fd, x)
		}
	case map[string]any:
		md := messageOf(fd)
		if fd.IsMap() {
			for _, key := range slices.Sorted(maps.Keys(v)) {
				if below, ok := v[key].(map[string]any); ok && md != nil {
					k.learn(kind, md, below)
				} else if !ok {
					k.note(k.name(kind, fd), v[key])
				}
			}
		} else if md != nil {
			k.learn(kind, md, v)
		}
	default:
		k.note(k.name(kind, fd), v)
	}
}
