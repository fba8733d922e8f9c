package registry

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// grantFile is the grants and the record on a disk, which outlive registries.
type grantFile struct {
	saved    []mesh.Grant
	made     bool
	recorded []mesh.Recorded
	fail     error
}

func (f *grantFile) Load() ([]mesh.Grant, bool, error) { return f.saved, f.made, f.fail }

func (f *grantFile) Recorded() ([]mesh.Recorded, error) { return f.recorded, nil }

func (f *grantFile) Save(list []mesh.Grant) error {
	if f.fail != nil {
		return f.fail
	}
	f.saved, f.made = list, true
	return nil
}

// tenantLoop is a registry of bound sources without goroutines.
type tenantLoop struct {
	*loop
	t   *testing.T
	now time.Time
}

func newTenantLoop(t *testing.T, file GrantStore, now time.Time, sources ...string) *tenantLoop {
	t.Helper()
	c := Config{
		Logger: silent(), Fallback: fallback(), Grants: file,
		Bindings: map[string]*mesh.Binding{"shop": {Namespaces: []string{"shop"}}, "evil": {Namespaces: []string{"evil"}}},
	}
	for _, name := range sources {
		c.Sources = append(c.Sources, newFakeSource(name))
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l := &tenantLoop{loop: newLoop(r, now), t: t, now: now}
	if err := l.grants.load(file, true); err != nil {
		l.grants.fault = err.Error()
	}
	return l
}

// say takes a reading of a source that declares hosts, and publishes. What is to be saved is saved.
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

// pass lets time pass, and what is due happen.
func (l *tenantLoop) pass(d time.Duration) {
	l.now = l.now.Add(d)
	l.publishDue(l.t.Context(), l.now)
	l.publishDue(l.t.Context(), l.now.Add(time.Minute))
	select {
	case list := <-l.r.granted.next:
		l.r.granted.write(list)
	default:
	}
}

func (l *tenantLoop) want(host, namespace string) {
	l.t.Helper()
	got := ""
	for _, svc := range l.r.Snapshot().ServicesVisibleTo("elsewhere") {
		if svc.Hostname == mesh.Hostname(host+".example") {
			got = svc.Namespace
		}
	}
	if got != namespace {
		l.t.Fatalf("others get %s from %q, want %q; conflicts: %v", host, got, namespace, l.r.Snapshot().Conflicts)
	}
}

// grantsOf are the grants of a report.
func grantsOf(list []mesh.OpenGrant) []mesh.Grant {
	var out []mesh.Grant
	for _, g := range list {
		out = append(out, g.Grant)
	}
	return out
}

// TestRecordBecomesGrants starts with the record of an earlier release: who had a host keeps it from the first
// snapshot on, also while a source is away. The grants are written once, when all sources were read, and nothing is
// added to them.
func TestRecordBecomesGrants(t *testing.T) {
	t.Parallel()
	file := &grantFile{recorded: []mesh.Recorded{{Name: "orders.example", Namespace: "shop"}, {Name: "gone.example", Namespace: "shop"}, {Name: ":80", Namespace: "shop"}, {Name: "x.example", Namespace: "nobody"}}}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop")
	l.say("shop", "orders")
	l.pass(time.Hour) // the other one is not waited for any more
	l.want("orders", "shop")
	if file.made {
		t.Fatal("grants are written while a source is missing")
	}
	l.say("evil", "orders", "news")
	l.want("orders", "shop")
	l.want("news", "")
	want := []mesh.Grant{{Name: "gone.example", Namespace: "shop"}, {Name: "orders.example", Namespace: "shop"}}
	if !slices.Equal(file.saved, want) {
		t.Fatalf("grants are %v, want %v", file.saved, want)
	}
	l.say("shop", "orders", "more")
	l.want("more", "")
	l = newTenantLoop(t, file, l.now, "shop", "evil") // restarted
	l.say("shop", "orders", "more")
	l.say("evil", "orders")
	l.want("orders", "shop")
	l.want("more", "")
	if !slices.Equal(file.saved, want) || !slices.Equal(grantsOf(l.report().Grants), want) {
		t.Fatalf("grants are %v, reported %v, want %v", file.saved, l.report().Grants, want)
	}
}

// TestGrantsThatPatternsGive are not reported any more, and others are.
func TestGrantsThatPatternsGive(t *testing.T) {
	t.Parallel()
	file := &grantFile{made: true, saved: []mesh.Grant{{Name: "a.corp.example", Namespace: "shop"}, {Name: "orders.example", Namespace: "shop"}, {Name: "b.shop.svc.cluster.local", Namespace: "shop"}}}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop")
	l.bindings[1] = &mesh.Binding{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{"*.corp.example"}}
	l.say("shop", "orders")
	l.say("evil")
	if got := l.report().Grants; len(got) != 1 || got[0].Name != "orders.example" {
		t.Errorf("reported: %v", got)
	}
}

// TestGrantsNameTheirSource: a grant goes to the source of its namespace that names the host. One that overlaps with a name of
// another namespace says so: both cannot be patterns.
func TestGrantsNameTheirSource(t *testing.T) {
	t.Parallel()
	file := &grantFile{made: true, saved: []mesh.Grant{
		{Name: "*.corp.example", Namespace: "shop"}, {Name: "a.corp.example", Namespace: "evil"}, {Name: "orders.example", Namespace: "shop"}, {Name: "x.free.example", Namespace: "shop"}, {Name: "y.free.example", Namespace: "nobody"},
	}}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop", "more")
	l.bindings[0] = &mesh.Binding{Namespaces: []string{"evil"}, Source: "/srv/evil", Hosts: []mesh.Hostname{"b.free.example"}}
	l.bindings[1] = &mesh.Binding{Namespaces: []string{"shop"}, Source: "/srv/shop"}
	l.bindings[2] = &mesh.Binding{Namespaces: []string{"shop"}, Source: mesh.KeysSource}
	l.say("shop", "free")
	l.say("evil")
	l.say("more", "orders")
	got := map[mesh.Hostname][2]string{}
	for _, g := range l.report().Grants {
		got[g.Name] = [2]string{strings.Join(g.Sources, " "), g.Overlaps}
	}
	want := map[mesh.Hostname][2]string{
		"*.corp.example": {"/srv/shop", "a.corp.example of the namespace evil"}, "a.corp.example": {"/srv/evil", "*.corp.example of the namespace shop"},
		"orders.example": {mesh.KeysSource, ""}, "x.free.example": {"/srv/shop", ""}, "y.free.example": {},
	}
	if !maps.Equal(got, want) {
		t.Errorf("open grants: %v, want %v", got, want)
	}
}

// TestOpenGrantsAreJudgedWithConfiguration: what changes health or endpoints alone judges no grant again.
func TestOpenGrantsAreJudgedWithConfiguration(t *testing.T) {
	t.Parallel()
	file := &grantFile{made: true, saved: []mesh.Grant{{Name: "orders.example", Namespace: "shop"}}}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop")
	l.say("evil")
	l.say("shop", "orders")
	before := l.report().Grants
	l.publish(t.Context(), false, nil, l.now)
	if now := l.report().Grants; len(before) != 1 || len(now) != 1 || &before[0] != &now[0] {
		t.Errorf("judged again: %v, then %v", before, now)
	}
	l.bindings[1] = &mesh.Binding{Namespaces: []string{"shop"}, Hosts: []mesh.Hostname{"orders.example"}}
	l.publish(t.Context(), true, nil, l.now)
	if now := l.report().Grants; len(now) != 0 {
		t.Errorf("reported: %v", now)
	}
}

// TestNoGrantsWithoutARecord: a new server grants nothing, and writes nothing.
func TestNoGrantsWithoutARecord(t *testing.T) {
	t.Parallel()
	file := &grantFile{}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop")
	l.say("shop", "orders")
	l.say("evil")
	l.want("orders", "")
	if file.made {
		t.Error("grants are written")
	}
}

// TestUnreadableGrantsOpenNothing: a host that cannot be granted serves its own namespace, and that is told.
func TestUnreadableGrantsOpenNothing(t *testing.T) {
	t.Parallel()
	file := &grantFile{fail: errors.New("damaged"), recorded: []mesh.Recorded{{Name: "orders.example", Namespace: "shop"}}}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop")
	l.say("shop", "orders")
	l.say("evil", "orders")
	l.want("orders", "")
	if st := l.report(); st.GrantsFault != "damaged" || len(st.Grants) > 0 {
		t.Errorf("reported: %q, %v", st.GrantsFault, st.Grants)
	}
}

// TestUnsavedGrantsCount: on a full disk the grants are in force, and written later.
func TestUnsavedGrantsCount(t *testing.T) {
	t.Parallel()
	file := &grantFile{recorded: []mesh.Recorded{{Name: "orders.example", Namespace: "shop"}}}
	l := newTenantLoop(t, file, time.Now(), "evil", "shop")
	file.fail = errors.New("disk full")
	l.say("shop", "orders")
	l.say("evil")
	l.want("orders", "shop")
	if got := l.r.Status().GrantsUnsaved; got != "disk full" {
		t.Errorf("unsaved: %q", got)
	}
	file.fail = nil
	l.r.granted.write(&grantMoment{l.grants.current.All()})
	if got := l.r.Status().GrantsUnsaved; got != "" || len(file.saved) != 1 {
		t.Errorf("unsaved: %q, saved %v", got, file.saved)
	}
}

// TestConflictsOfOneSourceHideNoneOfAnother: sources take turns in what is logged.
func TestConflictsOfOneSourceHideNoneOfAnother(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	l := newTenantLoop(t, &grantFile{}, time.Now(), "evil", "shop")
	l.log = slog.New(slog.NewTextHandler(&log, nil))
	var list []mesh.Conflict
	for i := range 3 * loggedNames {
		list = append(list, mesh.Conflict{Key: mesh.Key{Namespace: "evil", Name: fmt.Sprintf("a%02d", i)}, Dropped: &mesh.Origin{Source: "evil"}, Foreign: true, Reason: "r"})
	}
	l.logConflicts(append(list, mesh.Conflict{Key: mesh.Key{Namespace: "shop", Name: "orders"}, Dropped: &mesh.Origin{Source: "shop"}, Foreign: true, Reason: "r"}))
	if n := strings.Count(log.String(), "limited to some namespaces"); n != loggedNames || !strings.Contains(log.String(), "shop/orders") || !strings.Contains(log.String(), fmt.Sprintf("objects=%d", 2*loggedNames+1)) {
		t.Errorf("%d are logged: %s", n, log.String())
	}
}
