package mesh_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func TestBoundSourcesMergeIncrementally(t *testing.T) {
	t.Parallel()
	mesh.BoundSourcesMergeIncrementally(t, func(t *testing.T, seed uint64) mesh.Disk {
		t.Helper()
		d := &disk{rng: rand.New(rand.NewPCG(seed, 8)), dir: t.TempDir(), versions: map[string]any{}}
		table, err := addresses.New(hostRange(), addresses.Saved{})
		if err != nil {
			t.Fatal(err)
		}
		d.table = table
		return d
	})
}

// hostRange is so small that hosts move, and has addresses that services have as their own.
func hostRange() netip.Prefix { return netip.MustParsePrefix("10.9.0.0/24") }

// disk has the objects of each source in a few texts, of which some are broken, cut off or empty: these leave in force
// what they had. It gives addresses to hosts.
type disk struct {
	rng      *rand.Rand
	dir      string
	sets     []*lastgood.Set
	versions map[string]any // the objects, by their lines
	table    *addresses.Table
	services [][]*mesh.Service
	current  *mesh.Allocations
}

// line is an object in a text. Without its end it is broken.
func line(k mesh.Key, revision int) string {
	return fmt.Sprintf("%s %s %s %d ;\n", k.Kind, k.Namespace, k.Name, revision)
}

// textOf is the text of a source that has an object.
func textOf(k mesh.Key) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k.String()))
	return fmt.Sprintf("t%d.yaml", h.Sum32()%3)
}

func (d *disk) Take(t *testing.T, objects []map[mesh.Key]any, bindings []*mesh.Binding) *mesh.Allocations {
	t.Helper()
	if d.sets == nil {
		for i := range objects {
			d.sets = append(d.sets, newSet(i))
		}
		d.services = make([][]*mesh.Service, len(objects))
	}
	for i, list := range objects {
		texts := map[string]string{"t0.yaml": "", "t1.yaml": "", "t2.yaml": ""}
		for _, k := range slices.SortedFunc(maps.Keys(list), mesh.Key.Compare) {
			text := line(k, mesh.RevisionOf(list[k]))
			texts[textOf(k)] += text
			d.versions[fmt.Sprint(i, text)] = list[k]
		}
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			d.write(i, name, texts[name])
		}
		services := mesh.FragmentOf("", list).Services
		d.table.Change(mesh.DiffServices(d.services[i], services), bindings[i] != nil)
		d.services[i] = services
	}
	d.current = d.current.With(d.table.Assign(time.Duration(d.rng.IntN(60))*time.Minute, false))
	return d.current
}

func newSet(source int) *lastgood.Set {
	return lastgood.NewSet(strconv.Itoa(source), lastgood.Words{Text: "file", Name: "path"})
}

// write writes a text, unless it is as it was, and sometimes one that leaves its objects as they are.
func (d *disk) write(source int, name, content string) {
	set := d.sets[source]
	old := set.Text(name)
	switch {
	case old == nil && content == "":
		return
	case content == "":
		set.Drop(old)
		return
	case old == nil || d.whole(source, name) != content:
		d.put(set, source, name, content)
	case d.rng.IntN(20) > 0:
		return
	}
	d.versions[fmt.Sprint(source, "/", name)] = content
	switch lines := strings.SplitAfter(content, "\n"); d.rng.IntN(8) {
	case 0: // an object is broken
		i := d.rng.IntN(len(lines) - 1)
		lines[i] = strings.TrimSuffix(lines[i], ";\n") + "!\n"
		d.put(set, source, name, strings.Join(lines, ""))
	case 1: // the end is missing
		if part := content[:1+d.rng.IntN(len(content)-1)]; !strings.HasSuffix(part, "\n") {
			d.put(set, source, name, part)
		}
	case 2: // it cannot be read
		d.put(set, source, name, "!!\n")
	case 3:
		d.put(set, source, name, "\n")
	}
}

// whole is the last content of a text without a fault.
func (d *disk) whole(source int, name string) string {
	text, _ := d.versions[fmt.Sprint(source, "/", name)].(string)
	return text
}

func (d *disk) put(set *lastgood.Set, source int, name, content string) {
	var old *lastgood.Version
	if was := set.Text(name); was != nil {
		old = was.V
	}
	b := lastgood.NewBlob([]byte(content))
	set.Put(&lastgood.Text{Path: name, Root: fmt.Sprint("/", source), Rel: name, V: lastgood.NextVersion(old, b, d.decode(source, name, b), time.Time{})})
	set.Yield()
}

// decode reads a text. Each time its objects are others.
func (d *disk) decode(source int, name string, b *lastgood.Blob) lastgood.Decoded {
	out := lastgood.Decoded{End: lastgood.EndOf(strconv.Itoa(source), name, b.Content)}
	for i, text := range strings.SplitAfter(string(b.Content), "\n") {
		at := &mesh.Origin{Source: strconv.Itoa(source), Path: name, Line: i + 1, Column: 1}
		fault := manifest.Fault{Origin: at, Severity: manifest.Error, Message: "broken"}
		words := strings.Fields(text)
		switch {
		case len(words) == 0:
			continue
		case words[0] == "!!":
			return lastgood.Decoded{Unparsable: true, Faults: []manifest.Fault{fault}}
		case len(words) < 3:
			out.Objects, out.Faults = append(out.Objects, lastgood.Object{Origin: at}), append(out.Faults, fault)
			continue
		}
		o := lastgood.Object{Key: mesh.Key{Kind: mesh.Kind(words[0]), Namespace: words[1], Name: words[2]}, Origin: at, Hash: sha256.Sum256([]byte(text))}
		if x, is := d.versions[fmt.Sprint(source, text)]; is {
			y := reflect.New(reflect.TypeOf(x).Elem())
			y.Elem().Set(reflect.ValueOf(x).Elem())
			o.Fragment = mesh.FragmentOf(strconv.Itoa(source), map[mesh.Key]any{o.Key: y.Interface()})
		} else {
			out.Faults = append(out.Faults, fault)
		}
		out.Objects = append(out.Objects, o)
	}
	return out
}

func (d *disk) Restart(t *testing.T, bindings []*mesh.Binding) ([]*mesh.Fragment, *mesh.Allocations) {
	t.Helper()
	table, err := addresses.New(hostRange(), d.table.Save())
	if err != nil {
		t.Fatal(err)
	}
	var out []*mesh.Fragment
	for i, set := range d.sets {
		next := d.read(t, i, set)
		if d.rng.IntN(2) == 0 { // the sources have what they had
			for _, text := range set.Texts() {
				d.put(next, i, text.Path, string(text.V.Blob().Content))
			}
		}
		out = append(out, next.Assemble().Fragment)
	}
	var all *mesh.Allocations
	for _, i := range d.rng.Perm(len(out)) { // one after the other is read
		table.Change(mesh.DiffServices(nil, out[i].Services), bindings[i] != nil)
		if d.rng.IntN(2) == 0 {
			all = all.With(table.Assign(0, true))
		}
	}
	return out, all.With(table.Assign(0, false))
}

// read saves what changed of a set, and reads all of it as a server does that starts.
func (d *disk) read(t *testing.T, source int, set *lastgood.Set) *lastgood.Set {
	t.Helper()
	p := lastgood.NewPersister(lastgood.PersisterConfig{Dir: filepath.Join(d.dir, strconv.Itoa(source)), Logger: slog.New(slog.DiscardHandler)})
	if err := p.Open(); err != nil {
		t.Fatal(err)
	}
	p.Save(set, nil)
	ctx, end := context.WithCancel(t.Context())
	end() // what is pending is written at the end
	p.Run(ctx)
	list, _, err := p.Load()
	if err != nil {
		t.Fatal(err)
	}
	next := newSet(source)
	for _, e := range list {
		v := e.Revive(func(b *lastgood.Blob) lastgood.Decoded { return d.decode(source, e.Rel, b) }, time.Time{})
		next.Restore(&lastgood.Text{Path: e.Rel, Root: e.Root, Rel: e.Rel, V: v})
	}
	return next
}
