package sourcetest

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSource holds a source in memory to the contract.
func TestSource(t *testing.T) {
	t.Parallel()
	Run(t, func(testing.TB) *Place { return (&fake{}).place() })
}

// TestRulesAreBroken breaks each rule, and asks which one says so.
func TestRulesAreBroken(t *testing.T) {
	t.Parallel()
	for fault, want := range map[fault][]string{
		emptyWhenAway: {"what_cannot_be_read_is_not_sent", "what_cannot_be_read_at_the_start_is_not_sent"},
		partFirst:     {"the_first_fragment_is_whole"},
		onlyOnce:      {"a_whole_reading_is_sent_again"},
		fresh:         {"every_fragment_is_whole_and_shares_what_did_not_change", "a_whole_reading_is_sent_again"},
		unsorted:      {"the_first_fragment_is_whole"},
		nameless:      {"the_first_fragment_is_whole"},
		moody:         {"the_same_place_gives_the_same_fragment"},
		stays:         {"run_ends_with_ctx_while_nobody_listens"},
		leaks:         {"run_ends_with_ctx_while_nobody_listens"},
		writes:        {"every_fragment_is_whole_and_shares_what_did_not_change"},
		queues:        {"a_slow_receiver_gets_what_is_latest"},
		ends:          {"the_first_fragment_is_whole"},
	} {
		for _, r := range rules() {
			if !slices.Contains(want, r.name) {
				continue
			}
			t.Run(string(fault)+"_"+r.name, func(t *testing.T) {
				t.Parallel()
				p := &fake{fault: fault, over: make(chan struct{})}
				t.Cleanup(func() {
					close(p.over)
					p.left.Wait()
				})
				if err := r.check(t, p.place()); err == nil {
					t.Error("nobody noticed")
				} else {
					t.Log(err)
				}
			})
		}
	}
}

// fault is something that a source does wrong.
type fault string

const (
	emptyWhenAway fault = "sends_an_empty_fragment_for_what_it_cannot_read"
	partFirst     fault = "sends_a_part_first"
	onlyOnce      fault = "sends_changes_alone"
	fresh         fault = "makes_all_objects_anew"
	unsorted      fault = "is_not_sorted"
	nameless      fault = "does_not_say_who_it_is"
	moody         fault = "says_something_else_each_time"
	stays         fault = "does_not_hear_the_end"
	leaks         fault = "leaves_a_goroutine"
	writes        fault = "writes_to_what_it_sent"
	queues        fault = "keeps_a_queue"
	ends          fault = "ends_by_itself"
)

// fake is a place in memory; its sources look at it again and again.
type fake struct {
	fault fault
	over  chan struct{}  // closed when a test is over
	left  sync.WaitGroup // of goroutines that wait for that

	mu      sync.Mutex // guards all following fields
	objects map[string]string
	puts    []map[string]string
	away    bool
	sources int
}

func (p *fake) place() *Place {
	set := func(away bool) func(testing.TB) {
		return func(testing.TB) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.away = away
		}
	}
	return &Place{
		New: func(testing.TB) registry.Source {
			p.sources++
			return &fakeSource{place: p, number: p.sources, made: map[string]*mesh.Workload{}}
		},
		Put: func(_ testing.TB, objects map[string]string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.objects = maps.Clone(objects)
			p.puts = append(p.puts, p.objects)
		},
		Read: func(f *mesh.Fragment) map[string]string {
			out := map[string]string{}
			for _, w := range f.Workloads {
				out[w.Name] = w.Address
			}
			return out
		},
		Away: set(true), Back: set(false), Again: 20 * time.Millisecond, Within: time.Second, Quiet: 100 * time.Millisecond,
	}
}

type fakeSource struct {
	place  *fake
	number int
	made   map[string]*mesh.Workload
	sent   []*mesh.Fragment
}

func (s *fakeSource) Name() string { return "fake" }

func (s *fakeSource) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	broken := s.place.fault
	if broken == leaks {
		s.place.left.Go(func() { <-s.place.over })
	}
	if broken == stays {
		s.place.left.Add(1)
		defer s.place.left.Done()
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, f := range s.look() {
			select {
			case <-ctx.Done():
				return s.end(nil)
			case out <- f:
				s.sent = append(s.sent, f)
			}
		}
		if broken == ends {
			return nil
		}
		select {
		case <-ctx.Done():
			return s.end(nil)
		case <-tick.C:
		}
	}
}

func (s *fakeSource) end(err error) error {
	switch s.place.fault {
	case stays:
		<-s.place.over
	case writes:
		for _, f := range s.sent { // the first may be of before anything was put there
			if len(f.Workloads) > 0 {
				f.Workloads[0].Address = "elsewhere"
				break
			}
		}
	default:
	}
	return err
}

// look is what is to be sent.
func (s *fakeSource) look() []*mesh.Fragment {
	s.place.mu.Lock()
	defer s.place.mu.Unlock()
	broken := s.place.fault
	objects := s.place.objects
	switch {
	case s.place.away && broken == emptyWhenAway:
		objects = nil
	case s.place.away:
		return nil
	case broken == ends:
		return nil
	case broken == partFirst && len(s.sent) == 0:
		objects = map[string]string{"object-0": objects["object-0"]}
	case broken == queues:
		var out []*mesh.Fragment
		for _, put := range s.place.puts {
			out = append(out, s.fragment(put))
		}
		s.place.puts = nil
		return out
	default:
	}
	f := s.fragment(objects)
	if n := len(s.sent); broken == onlyOnce && n > 0 && mesh.Compare(s.sent[n-1], f).Same() {
		return nil
	}
	return []*mesh.Fragment{f}
}

func (s *fakeSource) fragment(objects map[string]string) *mesh.Fragment {
	f := &mesh.Fragment{Source: "fake"}
	broken := s.place.fault
	if broken == nameless {
		f.Source = ""
	}
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		w := &mesh.Workload{Address: objects[name]}
		w.Kind, w.Namespace, w.Name = mesh.KindWorkloadEntry, "default", name
		w.Origin = &mesh.Origin{Source: "fake", Path: name}
		w.Hash = sha256.Sum256([]byte(w.Address))
		if broken == moody {
			w.Labels = map[string]string{"mood": strconv.Itoa(s.number)}
		}
		if have := s.made[name]; have != nil && have.Hash == w.Hash && broken != fresh {
			w = have
		}
		s.made[name] = w
		f.Workloads = append(f.Workloads, w)
	}
	if broken == unsorted {
		slices.Reverse(f.Workloads)
	}
	return f
}
