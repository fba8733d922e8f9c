package registry

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/mesh"
)

// addressFile is a record of addresses that outlives registries.
type addressFile struct {
	saved addresses.Saved
	fail  error
}

func (f *addressFile) Load() (addresses.Saved, error) { return f.saved, f.fail }

func (f *addressFile) Save(record addresses.Saved) error {
	f.saved = record
	return f.fail
}

// addressLoop is a registry without goroutines, with a range of 254 addresses.
type addressLoop struct {
	*loop
	t   *testing.T
	now time.Time
}

func newAddressLoop(t *testing.T, file AddressStore, now time.Time, sources ...string) *addressLoop {
	t.Helper()
	c := Config{Logger: silent(), Fallback: fallback(), AddressRange: netip.MustParsePrefix("240.9.0.0/24"), AddressStore: file, RemovalShare: 1, ReleaseEmptyAfter: time.Nanosecond}
	for _, name := range sources {
		c.Sources = append(c.Sources, newFakeSource(name))
	}
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	l := &addressLoop{loop: newLoop(r, now), t: t, now: now}
	l.addresses.load(c.AddressRange, file, l.log)
	return l
}

// say takes a reading of a source that declares hosts, twice, so that a removal is confirmed,
// and publishes.
func (l *addressLoop) say(source string, hosts ...string) {
	l.t.Helper()
	f := &mesh.Fragment{Source: source}
	slices.Sort(hosts)
	for _, h := range hosts {
		svc := service("shop", h, h)
		svc.Resolution = mesh.ResolutionStatic
		f.Services = append(f.Services, svc)
	}
	for range 2 {
		l.now = l.now.Add(time.Minute)
		if err := l.read(f, l.now); err != nil {
			l.t.Fatal(err)
		}
	}
	l.pass(time.Minute)
}

// pass lets time pass, and what is due happen. What is to be saved is saved.
func (l *addressLoop) pass(d time.Duration) {
	l.now = l.now.Add(d)
	l.publishDue(l.t.Context(), l.now)
	l.publishDue(l.t.Context(), l.now.Add(time.Minute))
	select {
	case record := <-l.r.places.next:
		l.r.places.write(record)
	default:
	}
}

// are the addresses in force, by host.
func (l *addressLoop) are() map[string]string {
	out := map[string]string{}
	for _, svc := range l.r.Snapshot().Services {
		if len(svc.Allocated) > 0 {
			out[svc.Name] = svc.Allocated[0]
		}
	}
	return out
}

func names(from, to int) []string {
	out := []string{}
	for i := from; i < to; i++ {
		out = append(out, "h"+string(rune('a'+i/26))+string(rune('a'+i%26)))
	}
	return out
}

// TestAddressesSurvive goes through the life of addresses: others come, the server restarts,
// a source is missing.
func TestAddressesSurvive(t *testing.T) {
	t.Parallel()
	file := &addressFile{}
	l := newAddressLoop(t, file, time.Now(), "files", "consul")
	l.say("files", names(100, 200)...)
	l.say("consul")
	before := l.are()
	if len(before) != 100 {
		t.Fatalf("%d hosts have addresses", len(before))
	}
	same := func(when string, hosts []string) {
		t.Helper()
		now := l.are()
		for _, h := range hosts {
			if now[h] != before[h] {
				t.Errorf("%s %s has %q, and had %q", when, h, now[h], before[h])
			}
		}
	}
	l.say("consul", names(0, 100)...)
	same("with others that come before it by name", names(100, 200))
	maps.Copy(before, l.are())

	// Consul is away when the server restarts, for longer than an address rests.
	l = newAddressLoop(t, file, l.now.Add(24*365*time.Hour), "files", "consul")
	for _, to := range []int{210, 220, 230} { // newcomers, who would take what rests no longer
		l.say("files", names(50, to)...)
		l.pass(addresses.Rest)
	}
	same("after a restart without Consul", names(100, 200))
	l.say("consul", names(0, 100)...)
	same("when Consul is back", names(0, 200))

	st := l.report().Addresses
	if st.Hosts != 230 || st.Moved == 0 || st.Full != 0 || st.Resting != 0 {
		t.Errorf("the status is %+v", st)
	}
	l.say("consul")
	if st := l.report().Addresses; st.Resting != 50 || st.Hosts != 180 {
		t.Errorf("without the hosts of Consul the status is %+v", st)
	}
	l.say("files", append(names(50, 230), names(300, 400)...)...)
	if st := l.report().Addresses; st.Full != 280-254 || st.Resting != 0 {
		t.Errorf("with more hosts than addresses the status is %+v", st)
	}
	same("in a full range", names(50, 200))
}

// TestBrokenAddressRecord: a record that cannot be read costs no more than its addresses, and
// one that cannot be written costs nothing while the server runs.
func TestBrokenAddressRecord(t *testing.T) {
	t.Parallel()
	file := &addressFile{fail: errors.New("damaged")}
	l := newAddressLoop(t, file, time.Now(), "files")
	l.say("files", names(0, 100)...)
	if got := len(l.are()); got != 100 {
		t.Errorf("%d hosts have addresses", got)
	}
	if l.r.Status().AddressesUnsaved == "" {
		t.Error("the status does not say that they are not saved")
	}
	file.fail = nil
	l.say("files", names(0, 101)...)
	if why := l.r.Status().AddressesUnsaved; why != "" {
		t.Errorf("the status says %q", why)
	}
}
