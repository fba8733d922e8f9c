package sourcetest

import (
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Run holds a source to the contract. open makes a place that is empty and can
// be read, a new one for each rule.
func Run(t *testing.T, open func(tb testing.TB) *Place) {
	t.Helper()
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			p := open(t)
			if why := r.spares(p); why != "" {
				t.Skip(why)
			}
			if err := r.check(t, p); err != nil {
				t.Error(err)
			}
		})
	}
}

// rule is one sentence of the contract. check uses tb for the place alone; what
// is wrong with the source it returns.
type rule struct {
	name  string
	away  bool // needs a place that can be away
	again bool // needs a source that reads anew
	check func(tb testing.TB, p *Place) error
}

func (r *rule) spares(p *Place) string {
	switch {
	case r.away && p.Away == nil:
		return "this source reads nothing that could be away"
	case r.again && p.Again == 0:
		return "nothing of this source is held back for a second reading"
	default:
		return ""
	}
}

func rules() []rule {
	return []rule{
		{name: "the_first_fragment_is_whole", check: firstIsWhole},
		{name: "every_fragment_is_whole_and_shares_what_did_not_change", check: changesAreWhole},
		{name: "the_same_place_gives_the_same_fragment", check: sameForAll},
		{name: "a_whole_reading_is_sent_again", again: true, check: sentAgain},
		{name: "what_cannot_be_read_is_not_sent", away: true, check: awayIsNotEmpty},
		{name: "what_cannot_be_read_at_the_start_is_not_sent", away: true, check: awayAtTheStart},
		{name: "a_slow_receiver_gets_what_is_latest", check: slowReceiver},
		{name: "run_ends_with_ctx_while_nobody_listens", check: endsUnheard},
	}
}

func three() map[string]string {
	out := map[string]string{}
	for _, n := range names(3) {
		out[n] = "1"
	}
	return out
}

func firstIsWhole(tb testing.TB, p *Place) error {
	tb.Helper()
	want := three()
	p.Put(tb, want)
	r := start(tb, p)
	f, err := r.next(p.within())
	if err == nil && f == nil {
		err = errors.New("nothing was sent")
	}
	// A source of what comes by itself, as reports do, begins with what it has.
	if err == nil && p.Away != nil && !maps.Equal(p.Read(f), want) {
		err = fmt.Errorf("the first fragment has %v, want %v", p.Read(f), want)
	}
	if err == nil && !maps.Equal(p.Read(f), want) {
		_, err = r.await(want)
	}
	return errors.Join(err, r.end())
}

func changesAreWhole(tb testing.TB, p *Place) error {
	tb.Helper()
	r := start(tb, p)
	objects := three()
	n := names(5)
	steps := []map[string]string{
		objects,
		with(objects, map[string]string{n[1]: "2"}),
		with(objects, map[string]string{n[1]: "2", n[3]: "1", n[4]: "1"}),
		{n[0]: "1", n[2]: "1", n[4]: "1"},
		with(objects, map[string]string{n[1]: "1"}),
	}
	err := func() error {
		for i, want := range steps {
			p.Put(tb, want)
			if _, err := r.await(want); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
		for i := 1; i < len(r.sent); i++ {
			if err := sameObjects(r.sent[i-1], r.sent[i]); err != nil {
				return err
			}
		}
		return nil
	}()
	return errors.Join(err, r.end())
}

func sameForAll(tb testing.TB, p *Place) error {
	tb.Helper()
	var hashes []mesh.Hash
	want := three()
	p.Put(tb, want)
	for range 3 {
		r := start(tb, p)
		f, err := r.await(want)
		if err == nil {
			var h mesh.Hash
			h, err = fingerprint(f)
			hashes = append(hashes, h)
		}
		if err := errors.Join(err, r.end()); err != nil {
			return err
		}
	}
	if hashes[0] != hashes[1] || hashes[0] != hashes[2] {
		return errors.New("three sources read one place and do not say the same")
	}
	return nil
}

func sentAgain(tb testing.TB, p *Place) error {
	tb.Helper()
	want := three()
	p.Put(tb, want)
	r := start(tb, p)
	err := func() error {
		first, err := r.await(want)
		if err != nil {
			return err
		}
		// The first one may have been followed closely: by who begins to watch.
		for range 3 {
			again, err := r.next(p.Again + p.within())
			if err != nil {
				return err
			}
			if again == nil {
				return fmt.Errorf("the whole was not sent again within %s: what is held back would be for ever", p.Again)
			}
			if d := mesh.Compare(first, again); !d.Same() {
				return fmt.Errorf("nothing changed, and %d objects are others", d.Objects())
			}
		}
		return nil
	}()
	return errors.Join(err, r.end())
}

func awayIsNotEmpty(tb testing.TB, p *Place) error {
	tb.Helper()
	want := three()
	p.Put(tb, want)
	r := start(tb, p)
	err := func() error {
		if _, err := r.await(want); err != nil {
			return err
		}
		p.Away(tb)
		until := time.Now().Add(p.quiet())
		for time.Until(until) > 0 {
			f, err := r.next(time.Until(until))
			if err != nil {
				return err
			}
			if f == nil {
				break
			}
			if gone := lacking(f, p.Read, want); len(gone) > 0 {
				return fmt.Errorf("the place cannot be read, and a fragment without %v was sent", gone)
			}
		}
		p.Back(tb)
		next := with(want, map[string]string{names(1)[0]: "2"})
		p.Put(tb, next)
		for i := len(r.sent); ; i++ {
			f, err := r.next(p.within())
			switch {
			case err != nil:
				return err
			case f == nil:
				return errors.New("the place can be read again, and nothing is sent")
			case len(lacking(f, p.Read, with(next, map[string]string{names(1)[0]: p.Read(f)[names(1)[0]]}))) > 0:
				return fmt.Errorf("the place can be read again, and not all of it was sent: %v", p.Read(f))
			case maps.Equal(p.Read(f), next):
				return nil
			}
		}
	}()
	return errors.Join(err, r.end())
}

func awayAtTheStart(tb testing.TB, p *Place) error {
	tb.Helper()
	want := three()
	p.Put(tb, want)
	p.Away(tb)
	r := start(tb, p)
	err := func() error {
		if f, err := r.next(p.quiet()); err != nil || f != nil {
			return errors.Join(err, fmt.Errorf("the place cannot be read, and a fragment was sent: %v", f))
		}
		p.Back(tb)
		f, err := r.next(p.within())
		switch {
		case err != nil:
			return err
		case f == nil:
			return errors.New("the place can be read now, and nothing is sent")
		case !maps.Equal(p.Read(f), want):
			return fmt.Errorf("the first fragment has %v, want %v", p.Read(f), want)
		}
		return nil
	}()
	return errors.Join(err, r.end())
}

// slowReceiver changes a place often while nobody takes fragments: a source
// keeps no queue of them.
func slowReceiver(tb testing.TB, p *Place) error {
	tb.Helper()
	objects := three()
	p.Put(tb, objects)
	r := start(tb, p)
	err := func() error {
		if _, err := r.await(objects); err != nil {
			return err
		}
		for i := range 20 {
			objects = with(objects, map[string]string{names(1)[0]: strconv.Itoa(i + 2)})
			p.Put(tb, objects)
		}
		before := len(r.sent)
		if _, err := r.await(objects); err != nil {
			return err
		}
		if n := len(r.sent) - before; n > 15 {
			return fmt.Errorf("%d fragments for 20 changes that nobody waited for: they stood in a queue", n)
		}
		return nil
	}()
	return errors.Join(err, r.end())
}

// endsUnheard ends a source that waits to be heard.
func endsUnheard(tb testing.TB, p *Place) error {
	tb.Helper()
	p.Put(tb, three())
	r := start(tb, p)
	f, err := r.next(p.within())
	if err == nil && f == nil {
		err = errors.New("nothing was sent")
	}
	p.Put(tb, map[string]string{names(1)[0]: "3"})
	return errors.Join(err, r.end())
}
