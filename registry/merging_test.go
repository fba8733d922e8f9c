package registry

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// slowMerges starts a registry of two sources whose merges take as long as a test says.
func slowMerges(t *testing.T, takes *atomic.Int64) (r *Registry, sources []*fakeSource, log *envoytest.Log, end func() error) {
	t.Helper()
	log = &envoytest.Log{}
	sources = []*fakeSource{newFakeSource("files"), newFakeSource("evil")}
	r, err := New(Config{
		Logger: slog.New(slog.NewTextHandler(log, nil)), Fallback: fallback(), Sources: []Source{sources[0], sources[1]},
		merge: func(in mesh.Input) *mesh.Snapshot {
			<-time.After(time.Duration(takes.Load()))
			return mesh.Merge(in)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	return r, sources, log, func() error {
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			return err
		default:
			return context.DeadlineExceeded
		}
	}
}

func evilFragment(endpoints int) *mesh.Fragment {
	svc := service("evil", "a", "evil")
	for range endpoints {
		svc.Inline = append(svc.Inline, &mesh.Workload{Meta: mesh.Meta{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "evil"}}, Address: "10.0.0.1"})
	}
	return &mesh.Fragment{Source: "evil", Services: []*mesh.Service{svc}}
}

// TestMergeEndsWithItsContext ends a registry during a merge of an hour: it does not wait.
func TestMergeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Int64
		takes.Store(int64(time.Hour))
		r, sources, _, end := slowMerges(t, &takes)
		sources[0].say(&mesh.Fragment{Source: "files"})
		sources[1].say(evilFragment(1))
		<-time.After(time.Minute)
		synctest.Wait()
		if m := r.Status().SlowMerge; m == nil || m.Took != 0 || m.Lasted(time.Now()) < 50*time.Second {
			t.Errorf("the status has the slow merge %+v", m)
		}
		if err := end(); err != nil {
			t.Errorf("Run: %v; want it to end at once", err)
		}
		if r.Snapshot() != nil {
			t.Error("something was published")
		}
		<-time.After(time.Hour) // the abandoned merge
	})
}

// TestGrantsAreMadeLikeAMerge makes grants for an hour at a first start: that is reported as a slow merge, and does
// not hold up the end.
func TestGrantsAreMadeLikeAMerge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log, source := &envoytest.Log{}, newFakeSource("shop")
		file := &grantFile{recorded: []mesh.Recorded{{Name: "a.example", Namespace: "shop"}}}
		r, err := New(Config{
			Logger: slog.New(slog.NewTextHandler(log, nil)), Fallback: fallback(), Sources: []Source{source}, Grants: file,
			Bindings: map[string]*mesh.Binding{"shop": {Namespaces: []string{"shop"}}},
			inherit: func(in mesh.Input, recorded []mesh.Recorded) []mesh.Grant {
				<-time.After(time.Hour)
				return mesh.InheritGrants(in, recorded)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		source.say(&mesh.Fragment{Source: "shop"})
		<-time.After(time.Minute)
		synctest.Wait()
		if m := r.Status().SlowMerge; m == nil || m.Lasted(time.Now()) < 50*time.Second || !strings.Contains(log.String(), "merging the sources is slow") {
			t.Errorf("the status has the slow merge %+v, the log %s", m, log)
		}
		cancel()
		synctest.Wait()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("it did not end at once")
		}
		<-time.After(time.Hour) // the abandoned work
		if file.made {
			t.Error("grants were saved that no snapshot has")
		}
	})
}

// TestSlowMergeIsReported merges for 12 s: it is logged while it runs, with the largest source, and
// stays in the status until a merge is fast again. What it merges is in force.
func TestSlowMergeIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var takes atomic.Int64
		takes.Store(int64(12 * time.Second))
		r, sources, log, end := slowMerges(t, &takes)
		sources[0].say(&mesh.Fragment{Source: "files"})
		sources[1].say(evilFragment(500))
		<-time.After(2 * time.Second)
		synctest.Wait()
		if !strings.Contains(log.String(), "merging the sources is slow") || !strings.Contains(log.String(), "evil: 1 objects, 500 endpoints, most in ServiceEntry evil/a") {
			t.Errorf("after 2 s the log has %s", log)
		}
		<-time.After(20 * time.Second)
		synctest.Wait()
		if m := r.Status().SlowMerge; m == nil || m.Took < 12*time.Second || r.Snapshot() == nil || len(r.Snapshot().Services) != 1 {
			t.Fatalf("the status has the slow merge %+v", m)
		}
		if !strings.Contains(log.String(), "slow merge of the sources is done") {
			t.Errorf("the log has %s", log)
		}
		takes.Store(int64(time.Millisecond))
		sources[1].say(evilFragment(501))
		<-time.After(20 * time.Second)
		synctest.Wait()
		if m := r.Status().SlowMerge; m != nil || len(r.Snapshot().Services[0].Inline) != 501 {
			t.Errorf("after a fast merge the status has the slow merge %+v", m)
		}
		if err := end(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}
