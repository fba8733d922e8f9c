package sourcetest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// label is the profiler label that goroutines of a source carry.
const label = "sourcetest"

//nolint:gochecknoglobals // tells sources of one process apart in its goroutine profile
var numbers atomic.Uint64

// running is a source that runs, and all that it has sent.
type running struct {
	tb    testing.TB
	place *Place
	src   registry.Source
	label string
	out   chan *mesh.Fragment
	stop  context.CancelFunc
	ended chan error

	sent   []*mesh.Fragment
	prints []mesh.Hash // of sent, when they came
}

// start runs a source of the place.
func start(tb testing.TB, p *Place) *running {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	r := &running{
		tb: tb, place: p, src: p.New(tb), label: strconv.FormatUint(numbers.Add(1), 10),
		out: make(chan *mesh.Fragment), stop: cancel, ended: make(chan error, 1),
	}
	go pprof.Do(ctx, pprof.Labels(label, r.label), func(ctx context.Context) { r.ended <- r.src.Run(ctx, r.out) })
	return r
}

// next is the next fragment, or nil after a while.
func (r *running) next(wait time.Duration) (*mesh.Fragment, error) {
	after := time.NewTimer(wait)
	defer after.Stop()
	select {
	case f := <-r.out:
		return f, r.take(f)
	case err := <-r.ended:
		r.ended <- err
		return nil, fmt.Errorf("the source ended by itself: %w", cmp.Or(err, errors.New("without an error")))
	case <-after.C:
		return nil, nil //nolint:nilnil // nothing came, and that is no fault of itself
	}
}

func (r *running) take(f *mesh.Fragment) error {
	if f == nil {
		return errors.New("a nil fragment was sent")
	}
	mark, err := fingerprint(f)
	if err != nil {
		return err
	}
	r.sent, r.prints = append(r.sent, f), append(r.prints, mark)
	return r.formed(f)
}

// formed judges the form of a fragment.
func (r *running) formed(f *mesh.Fragment) error {
	if f.Source != r.src.Name() || f.Source == "" {
		return fmt.Errorf("a fragment of %q was sent by the source %q", f.Source, r.src.Name())
	}
	if f.Sorted() != f {
		return errors.New("a list of the fragment is not sorted")
	}
	if mesh.Compare(nil, f).Unsorted() {
		return errors.New("a list of the fragment is not sorted")
	}
	seen := map[string]bool{}
	for _, x := range objectsOf(f) {
		id := x.meta.String() + " " + x.host
		switch {
		case seen[id]:
			return fmt.Errorf("%s is in the fragment twice", id)
		case x.meta.Origin == nil || x.meta.Origin.Source != f.Source:
			return fmt.Errorf("%s has the origin %v, which is not one of this source", id, x.meta.Origin)
		case x.meta.Hash.IsZero():
			return fmt.Errorf("%s has no hash", id)
		}
		seen[id] = true
	}
	return nil
}

// await waits until a fragment has exactly what was put there.
func (r *running) await(want map[string]string) (*mesh.Fragment, error) {
	deadline := time.Now().Add(r.place.within())
	got := "nothing was sent"
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return nil, fmt.Errorf("waiting for %v: the last fragment: %s", want, got)
		}
		f, err := r.next(left)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		have := r.place.Read(f)
		if maps.Equal(have, want) {
			return f, nil
		}
		got = fmt.Sprint(have)
	}
}

// end ends the source, and judges what it leaves behind.
func (r *running) end() error {
	r.stop()
	select {
	case err := <-r.ended:
		r.ended <- err
	case <-time.After(r.place.within()):
		return fmt.Errorf("Run did not return within %s of the end of ctx", r.place.within())
	}
	if err := r.awaitQuiet(); err != nil {
		return err
	}
	for i, f := range r.sent {
		mark, err := fingerprint(f)
		if err != nil {
			return err
		}
		if mark != r.prints[i] {
			return fmt.Errorf("fragment %d was written to after it had been sent", i)
		}
	}
	return nil
}

// awaitQuiet waits until no goroutine of the source is left. Run has returned:
// all that may still end is what the kernel or a timer was asked to.
func (r *running) awaitQuiet() error {
	deadline := time.Now().Add(r.place.within())
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := r.goroutines()
		if err != nil || left == "" {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("goroutines are left after Run has returned:\n%s", left)
		}
		<-tick.C
	}
}

// goroutines are those that the source, or what it started, has running.
func (r *running) goroutines() (string, error) {
	var b bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&b, 1); err != nil {
		return "", fmt.Errorf("reading the goroutines: %w", err)
	}
	mine := fmt.Sprintf("%q:%q", label, r.label)
	var out []string
	for stack := range strings.SplitSeq(b.String(), "\n\n") {
		if strings.Contains(stack, mine) {
			out = append(out, stack)
		}
	}
	return strings.Join(out, "\n\n"), nil
}

// fingerprint is the content of a fragment, as a mesh of it alone has it.
func fingerprint(f *mesh.Fragment) (mesh.Hash, error) {
	config := &mesh.MeshConfig{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindMeshConfig}}, Spec: &meshconfig.MeshConfig{}}
	hash, err := mesh.NewSnapshot(nil, config, []*mesh.Fragment{f}).Fingerprint()
	if err != nil {
		return hash, fmt.Errorf("reading a fragment: %w", err)
	}
	var b bytes.Buffer
	b.Write(hash[:])
	for _, r := range f.Health { // of which the workloads may not be in this source
		fmt.Fprintf(&b, "%+v\n", *r)
	}
	return sha256.Sum256(b.Bytes()), nil
}

// object is one object of a fragment.
type object struct {
	meta *mesh.Meta
	host string // of a service
	is   any    // the pointer
}

func objectsOf(f *mesh.Fragment) []object {
	var out []object
	for meta, x := range f.Objects() {
		o := object{meta: meta, is: x}
		if svc, ok := x.(*mesh.Service); ok {
			o.host = string(svc.Hostname)
		}
		out = append(out, o)
	}
	return out
}

// sameObjects reports what of two fragments is another pointer though its
// content is the same.
func sameObjects(prev, next *mesh.Fragment) error {
	type place struct {
		key  mesh.Key
		host string
	}
	before := map[place]object{}
	for _, x := range objectsOf(prev) {
		before[place{x.meta.Key, x.host}] = x
	}
	for _, x := range objectsOf(next) {
		was, ok := before[place{x.meta.Key, x.host}]
		if ok && was.is != x.is && was.meta.Hash == x.meta.Hash && *was.meta.Origin == *x.meta.Origin {
			return fmt.Errorf("%s did not change, and is another object", x.meta.Key)
		}
	}
	for _, r := range next.Health {
		for _, was := range prev.Health {
			if was != r && *was == *r {
				return fmt.Errorf("the report of %s at %s did not change, and is another one", r.ServiceAccount, r.Address)
			}
		}
	}
	return nil
}

// names are n names, in order.
func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("object-%d", i)
	}
	return out
}

func with(objects, change map[string]string) map[string]string {
	out := maps.Clone(objects)
	maps.Copy(out, change)
	return out
}

func lacking(f *mesh.Fragment, read func(*mesh.Fragment) map[string]string, want map[string]string) []string {
	have := read(f)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if have[name] != want[name] {
			out = append(out, name)
		}
	}
	return out
}
