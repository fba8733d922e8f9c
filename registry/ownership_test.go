package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ownerFile is a record of owners that outlives registries.
type ownerFile struct {
	saved map[mesh.Hostname]Ownership
	fail  error
}

func (f *ownerFile) Load() (map[mesh.Hostname]Ownership, error) { return maps.Clone(f.saved), f.fail }

func (f *ownerFile) Save(record map[mesh.Hostname]Ownership) error {
	if f.fail != nil {
		return f.fail
	}
	f.saved = record
	return nil
}

// tenantLoop is a registry of bound sources without goroutines.
type tenantLoop struct {
	*loop
	t   *testing.T
	now time.Time
}

var tenantBindings = map[string]*mesh.Binding{"shop": {Namespaces: []string{"shop"}}, "evil": {Namespaces: []string{"evil"}}}

func newTenantLoop(t *testing.T, file OwnerStore, now time.Time, sources ...string) *tenantLoop {
	t.Helper()
	c := Config{Logger: silent(), Fallback: fallback(), Bindings: tenantBindings, Owners: file, HostRest: time.Hour}
	for _, name := range sources {
		c.Sources = append(c.Sources, newFakeSource(name))
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l := &tenantLoop{loop: newLoop(r, now), t: t, now: now}
	if err := l.record.load(file); err != nil {
		t.Log(err)
	}
	return l
}

// say takes a reading of a source that declares hosts, and publishes.
func (l *tenantLoop) say(source string, hosts ...string) {
	l.t.Helper()
	f := &mesh.Fragment{Source: source}
	slices.Sort(hosts)
	for _, h := range hosts {
		f.Services = append(f.Services, service(source, h, source))
	}
	if err := l.read(f, l.now); err != nil {
		l.t.Fatal(err)
	}
	l.pass(time.Minute)
}

// pass lets time pass, and what is due happen. What is to be saved is saved.
func (l *tenantLoop) pass(d time.Duration) {
	l.now = l.now.Add(d)
	l.publishDue(l.now)
	l.publishDue(l.now.Add(time.Minute))
	select {
	case record := <-l.r.saver.next:
		l.r.saver.write(record)
	default:
	}
}

// whose is the namespace that others get a host from; empty if they get it from
// none.
func (l *tenantLoop) whose(host string) string {
	l.t.Helper()
	s := l.r.Snapshot()
	if s == nil {
		l.t.Fatal("nothing was published")
	}
	for _, svc := range s.ServicesVisibleTo("elsewhere") {
		if svc.Hostname == mesh.Hostname(host+".example") {
			return svc.Namespace
		}
	}
	return ""
}

func (l *tenantLoop) want(host, namespace string) {
	l.t.Helper()
	if got := l.whose(host); got != namespace {
		l.t.Fatalf("others get %s from %q, want %q; conflicts: %v", host, got, namespace, l.r.Snapshot().Conflicts)
	}
}

// TestOwnerKeepsItsHost goes through the life of a host that two namespaces name:
// the first keeps it, also across a restart in which the other one is read first,
// and for a while after it named it last.
func TestOwnerKeepsItsHost(t *testing.T) {
	t.Parallel()
	file, now := &ownerFile{}, time.Now()
	l := newTenantLoop(t, file, now, "shop", "evil")
	l.say("evil")
	l.say("shop", "orders")
	l.say("evil", "orders")
	l.want("orders", "shop")

	l = newTenantLoop(t, file, l.now, "evil", "shop") // restarted
	l.say("evil", "orders", "news")
	l.pass(time.Hour) // the source is waited for no more
	l.want("orders", "")
	l.want("news", "")
	l.say("shop", "orders", "news")
	l.want("orders", "shop")
	l.want("news", "evil") // the first by name, as nobody had it

	l.say("shop", "other")
	l.want("orders", "")
	l.pass(30 * time.Minute)
	l.want("orders", "")
	l = newTenantLoop(t, file, l.now, "evil", "shop") // that it rests is on record
	l.say("evil", "orders")
	l.say("shop", "other")
	l.want("orders", "")
	l.say("shop", "orders")
	l.want("orders", "shop")
	l.say("shop", "other")
	l.pass(time.Hour)
	l.want("orders", "evil")
	l.say("shop", "orders", "other")
	l.want("orders", "evil")
	if s := l.report(); s.Hosts != 4 || l.r.saver.why() != "" {
		t.Errorf("%d hosts on record, want two and the HTTP of two namespaces; unsaved: %q", s.Hosts, l.r.saver.why())
	}
}

// TestServersAgreeOnOwners: servers with a record each, that name their sources and read
// them in any order, and wait for one in vain or not, give a host that two namespaces
// name to the same one, also after they restart in another order.
func TestServersAgreeOnOwners(t *testing.T) {
	t.Parallel()
	orders := [][]string{{"shop", "evil"}, {"evil", "shop"}}
	for _, named := range orders {
		for _, read := range orders {
			for _, wait := range []time.Duration{0, time.Hour} {
				file, now := &ownerFile{}, time.Now()
				for _, renamed := range append([][]string{named}, orders...) {
					l := newTenantLoop(t, file, now, renamed...)
					for _, source := range read {
						l.say(source, "orders", source)
						l.pass(wait)
					}
					l.want("orders", "evil") // the first by name
					l.want("shop", "shop")
					now, read = l.now, []string{read[1], read[0]}
				}
			}
		}
	}
}

// TestFirstStartServesWithoutARecord starts without a record while a source is
// away: the others' hosts are served, and nothing is put on record.
func TestFirstStartServesWithoutARecord(t *testing.T) {
	t.Parallel()
	file := &ownerFile{}
	l := newTenantLoop(t, file, time.Now(), "shop", "evil")
	l.say("evil", "orders")
	l.pass(time.Hour)
	l.want("orders", "evil")
	if len(file.saved) > 0 {
		t.Fatalf("on record: %v", file.saved)
	}
	l.say("shop", "billing")
	l.want("orders", "evil")
	if file.saved["billing.example"].Namespace != "shop" || file.saved["orders.example"].Namespace != "evil" {
		t.Fatalf("on record: %v", file.saved)
	}
}

// TestUnreadableRecordServes starts with a record that cannot be read, nor
// written: hosts that one namespace names are served, and that it is not saved is
// told until it is.
func TestUnreadableRecordServes(t *testing.T) {
	t.Parallel()
	file := &ownerFile{fail: errors.New("disk full")}
	l := newTenantLoop(t, file, time.Now(), "shop", "evil")
	l.say("evil", "orders", "own")
	l.say("shop", "orders")
	l.want("own", "evil")
	l.want("orders", "evil")
	if got := l.r.saver.why(); got != "disk full" {
		t.Errorf("unsaved: %q", got)
	}
	file.fail = nil
	l.say("shop", "orders", "more")
	if got := l.r.saver.why(); got != "" || len(file.saved) != 5 { // HTTP of two namespaces among them
		t.Errorf("unsaved: %q, saved %v", got, file.saved)
	}
}

// TestRestingHostsAreBounded makes up names without end.
func TestRestingHostsAreBounded(t *testing.T) {
	t.Parallel()
	l := newTenantLoop(t, &ownerFile{}, time.Now(), "shop", "evil")
	l.say("shop", "orders")
	for i := range 3 {
		f := &mesh.Fragment{Source: "evil"}
		for j := range maxResting/2 + 10 {
			f.Services = append(f.Services, service("evil", "x"+string(rune('a'+i))+time.Duration(j).String(), "x"))
		}
		if err := l.read(f.Sorted(), l.now); err != nil {
			t.Fatal(err)
		}
		for range 30 { // whatever of it is held back
			l.release("evil", l.now)
			l.pass(time.Minute)
		}
	}
	l.say("evil")
	l.release("evil", l.now)
	l.pass(time.Minute)
	if n := l.record.owners.Len(); n > maxResting+2 || n < maxResting { // the host of shop, and its HTTP
		t.Errorf("%d hosts are on record", n)
	}
	l.want("orders", "shop")
}

// TestOwnersAreSavedAtTheEnd stops a registry, and what it decided last is on
// record.
func TestOwnersAreSavedAtTheEnd(t *testing.T) {
	t.Parallel()
	file := &ownerFile{}
	r, err := New(Config{
		Logger: silent(), Fallback: fallback(), Bindings: map[string]*mesh.Binding{"shop": {Namespaces: []string{"shop"}}},
		Owners: file, Sources: []Source{newFakeSource("shop")},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	src := r.cfg.Sources[0].(*fakeSource)
	src.say(&mesh.Fragment{Services: []*mesh.Service{service("shop", "orders", "x")}})
	changed, cancel := r.Subscribe()
	defer cancel()
	<-changed
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if file.saved["orders.example"].Namespace != "shop" {
		t.Errorf("on record: %v", file.saved)
	}
}

// slowDisk takes a while to save a record.
type slowDisk struct {
	ownerFile
	writes int
}

func (d *slowDisk) Save(record map[mesh.Hostname]Ownership) error {
	<-time.After(500 * time.Millisecond)
	d.writes++
	return d.ownerFile.Save(record)
}

// TestOwnersAreNotSavedAllTheTime has the record change again and again: it is on the
// disk at once after a while of quiet, and at the end, and else now and then.
func TestOwnersAreNotSavedAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		s := newOwnerSaver(disk, silent())
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		var owners *mesh.Owners
		n := 0
		change := func() {
			owners = owners.With(map[mesh.Hostname]mesh.Owner{mesh.Hostname(fmt.Sprint("h", n)): {Namespace: "shop"}})
			n++
			s.save(&ownerMoment{owners: owners})
		}
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		change()
		pass(time.Second)
		if len(disk.saved) != 1 {
			t.Errorf("after a second %d hosts are saved", len(disk.saved))
		}
		for range 600 {
			change()
			pass(100 * time.Millisecond)
		}
		if disk.writes < 3 || disk.writes > 10 || len(disk.saved) < n-2*saveShare*10 {
			t.Errorf("in a minute it is written %d times, and %d of %d hosts are saved", disk.writes, len(disk.saved), n)
		}
		stop()
		wg.Wait()
		if len(disk.saved) != n {
			t.Errorf("at the end %d of %d hosts are saved", len(disk.saved), n)
		}
	})
}

// slowFile is a record on a disk that takes a second, and may be full.
type slowFile struct {
	ownerFile
	full atomic.Bool
}

func (f *slowFile) Save(record map[mesh.Hostname]Ownership) error {
	<-time.After(time.Second)
	if f.full.Load() {
		return errors.New("disk full")
	}
	return f.ownerFile.Save(record)
}

// TestNewestRecordIsSavedAfterAFailure has a disk that is full for a while: when it is
// not any more, what is written first is the record of now, not that of the failure.
func TestNewestRecordIsSavedAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := &slowFile{}
		file.full.Store(true)
		s := newOwnerSaver(file, silent())
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		moment := func(h mesh.Hostname) *ownerMoment {
			var none *mesh.Owners
			return &ownerMoment{owners: none.With(map[mesh.Hostname]mesh.Owner{h: {Namespace: "shop"}})}
		}
		s.save(moment("old"))
		<-time.After(15 * time.Second)
		s.save(moment("new"))
		<-time.After(time.Minute)
		file.full.Store(false)
		<-time.After(saveAgain + 2*time.Second)
		synctest.Wait()
		if s.why() != "" || file.saved["new"].Namespace == "" {
			t.Errorf("on record: %v, %q", file.saved, s.why())
		}
		stop()
		wg.Wait()
	})
}
