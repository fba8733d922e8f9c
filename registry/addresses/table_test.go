package addresses

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/mesh"
)

var compared = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func host(text string) mesh.NamespacedHost { return service(text).NamespacedHost() }

func (w *world) assign() { w.after(0) }

func (w *world) after(d time.Duration) { w.take(w.Assign(d, false)) }

func (w *world) of(h string) string { return text(w.now[host(h)]) }

func hosts(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("ns%d/api-%d.example.com", i%37, i)
	}
	return out
}

// TestNoAddressMoves has 5,000 hosts, a tenth of which comes and goes, in random order and
// portions, through restarts. A host that stays keeps its address, whatever others do.
func TestNoAddressMoves(t *testing.T) {
	t.Parallel()
	seeds := uint64(4)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			all := hosts(5500)
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			stay, others := all[:4500], all[4500:]
			w := newWorld(t, DefaultRange, Saved{})
			for list := stay; len(list) > 0; {
				n := min(len(list), 1+rng.IntN(900))
				for _, h := range list[:n] {
					w.add(false, service(h))
				}
				w.assign()
				list = list[n:]
			}
			before := maps.Clone(w.now)
			for range 30 {
				for _, h := range others {
					switch there := w.services[h] != nil; {
					case rng.IntN(2) == 0:
					case there:
						w.remove(h)
					default:
						w.add(false, service(h))
					}
				}
				w.after(time.Duration(rng.IntN(10)) * time.Hour)
				if rng.IntN(5) == 0 {
					w = restarted(w, rng)
				}
				for h, a := range before {
					if !w.now[h].Equal(a) {
						t.Fatalf("%v had %v, and has %v", h, a, w.now[h])
					}
				}
			}
		})
	}
}

// restarted is the world with a table that was made from the saved one. Its hosts come in
// another order, in portions, while some source is missing.
func restarted(w *world, rng *rand.Rand) *world {
	next := newWorld(w.t, w.ipv4.String(), w.Save())
	list := slices.Sorted(maps.Keys(w.services))
	rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	for i, h := range list {
		next.add(false, w.services[h])
		if rng.IntN(len(list)) < 3 && i < len(list)-1 {
			next.take(next.Assign(48*time.Hour, true)) // which ends no host's claim
		}
	}
	next.assign()
	return next
}

// TestServersDifferInMovedHostsOnly has two servers that learn of the same hosts in different
// orders.
func TestServersDifferInMovedHostsOnly(t *testing.T) {
	t.Parallel()
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 2))
		list := hosts(5000)
		servers := []*world{newWorld(t, DefaultRange, Saved{}), newWorld(t, DefaultRange, Saved{})}
		for _, w := range servers {
			rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			for i, h := range list {
				if w.add(false, service(h)); i%500 == 499 {
					w.assign()
				}
			}
		}
		differ := 0
		for h, a := range servers[0].now {
			b := servers[1].now[h]
			if a.IPv4 != b.IPv4 && !a.Moved && !b.Moved || a.IPv6 != b.IPv6 {
				t.Errorf("%v has %v here and %v there, and neither says that it moved", h, a, b)
			}
			if a.IPv4 != b.IPv4 {
				differ++
			}
		}
		if differ == 0 {
			t.Error("no host differs: the test shows nothing")
		}
		// What one server says of hosts that moved, written into their objects, makes both agree.
		pinned := map[string]bool{}
		for range 20 {
			for _, w := range servers {
				for h, a := range w.now {
					name := h.Namespace + "/" + string(h.Host)
					if !a.Moved || pinned[name] {
						continue
					}
					pinned[name] = true
					for _, s := range servers {
						s.remove(name)
						s.add(false, service(name, a.IPv4.String(), a.IPv6.String()))
					}
				}
				for _, s := range servers {
					s.assign()
				}
			}
		}
		for h, a := range servers[0].now {
			if b := servers[1].now[h]; !a.Equal(b) {
				t.Errorf("with all addresses of moved hosts in manifests, %v has %v and %v", h, a, b)
			}
		}
	}
}

// colliding are n hosts with the same hashed slot in a range.
func colliding(t *testing.T, ipv4 string, n int) []string {
	t.Helper()
	p := netip.MustParsePrefix(ipv4)
	bySlot := map[uint32][]string{}
	for _, h := range hosts(200 * n) {
		slot := hashedSlot(p, host(h))
		if bySlot[slot] = append(bySlot[slot], h); len(bySlot[slot]) == n {
			return bySlot[slot]
		}
	}
	t.Fatal("no such hosts")
	return nil
}

func TestWhoHasAnAddressKeepsIt(t *testing.T) {
	t.Parallel()
	const small = "240.9.0.0/24"
	h := colliding(t, small, 3)
	a, b, c := h[0], h[1], h[2]
	w := newWorld(t, small, Saved{})
	w.add(false, service(b))
	w.assign()
	first := w.of(b)
	if strings.Contains(first, "moved") {
		t.Fatalf("alone it has %s", first)
	}
	w.add(false, service(a)) // sorts before b
	w.assign()
	second := w.of(a)
	if w.of(b) != first || !strings.Contains(second, "moved") {
		t.Errorf("the first has %s, the second %s", w.of(b), second)
	}
	w.remove(b)
	w.after(Rest - time.Minute)
	w.add(false, service(c))
	w.assign()
	if got := w.of(c); got == first {
		t.Errorf("an address of %s was given away while it rests", got)
	}
	w.add(false, service(b))
	w.assign()
	if got := w.of(b); got != first {
		t.Errorf("who returns has %s, and had %s", got, first)
	}
	w.remove(b, c)
	w.assign()
	saved := w.Save()
	w.after(Rest)
	w.add(false, service(c))
	w.assign()
	if got := w.of(c); got != first {
		t.Errorf("after the rest the address of the name is %s, and it has %s", first, got)
	}
	// A server that starts with a clock that is a year ahead has the same rest left.
	w = newWorld(t, small, saved)
	w.add(false, service(a), service(c))
	w.assign()
	if got := w.of(c); got == first {
		t.Error("a restart ends a rest")
	}
}

func TestWhoGetsAddresses(t *testing.T) {
	t.Parallel()
	none, off, on := service("shop/none.mesh"), service("shop/off.mesh"), service("shop/on.mesh")
	none.Resolution = mesh.ResolutionNone
	off.Labels = map[string]string{"networking.istio.io/enable-autoallocate-ip": "False"}
	on.Labels = map[string]string{"networking.istio.io/enable-autoallocate-ip": "true"}
	w := newWorld(t, DefaultRange, Saved{})
	w.add(false, none, off, on, service("shop/*.mesh"), service("shop/own.mesh", "10.0.0.1"), service("shop/range.mesh", "10.0.0.0/8"), service("other/on.mesh"))
	w.assign()
	want := map[mesh.NamespacedHost]bool{host("shop/on.mesh"): true, host("other/on.mesh"): true}
	got := map[mesh.NamespacedHost]bool{}
	for h, a := range w.now {
		got[h] = a.IPv4.IsValid() && a.IPv6.IsValid()
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if a, b := w.now[host("shop/on.mesh")], w.now[host("other/on.mesh")]; a.IPv4 == b.IPv4 || a.IPv6 == b.IPv6 {
		t.Error("two namespaces have one address")
	}
}

// TestPinnedAddresses is about addresses of the ranges that manifests have.
func TestPinnedAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, DefaultRange, Saved{})
	w.add(false, service("shop/a.mesh"))
	w.assign()
	was := w.now[host("shop/a.mesh")]
	pin := func(h string) *mesh.Service { return service(h, was.IPv4.String(), was.IPv6.String()) }

	w.add(true, pin("evil/b.mesh"))
	w.assign()
	if got := w.now[host("shop/a.mesh")]; !got.Equal(was) {
		t.Errorf("a tenant moved the address of another namespace: %v", got)
	}
	got := w.now[host("evil/b.mesh")]
	if d := cmp.Diff([]string{was.IPv6.String(), was.IPv4.String()}, got.Refused); d != "" || !got.IPv4.IsValid() || got.IPv4 == was.IPv4 {
		t.Errorf("the tenant has %v (%s)", got, d)
	}
	w.add(false, pin("infra/c.mesh"))
	w.assign()
	if got := w.now[host("shop/a.mesh")]; got.IPv4 == was.IPv4 || got.IPv6 == was.IPv6 || !got.Moved || !got.IPv6.IsValid() {
		t.Errorf("a source for the whole mesh says whose the address is, and the host has %v", got)
	}
	if got := w.now[host("infra/c.mesh")]; !got.IsZero() {
		t.Errorf("a host with an address of its own has %v", got)
	}
	w.remove("infra/c.mesh")
	w.assign()
	moved := w.now[host("shop/a.mesh")]
	w.add(true, service("shop/d.mesh", moved.IPv4.String())) // a tenant in its own namespace
	w.assign()
	if got := w.now[host("shop/a.mesh")]; got.IPv4 == moved.IPv4 || got.IPv6 != moved.IPv6 {
		t.Errorf("after a pin in its own namespace the host has %v, before %v", got, moved)
	}
	// Addresses of IPv6 are on no record: after a restart everybody has his again.
	w = newWorld(t, DefaultRange, w.Save())
	w.add(true, pin("evil/b.mesh"))
	w.add(false, service("shop/a.mesh"))
	w.assign()
	if got := w.now[host("shop/a.mesh")]; got.IPv6 != was.IPv6 || !slices.Contains(w.now[host("evil/b.mesh")].Refused, was.IPv6.String()) {
		t.Errorf("after a restart the host has %v, and the tenant that names its address %v", got, w.now[host("evil/b.mesh")])
	}
	w.add(true, service("evil/f.mesh", "::ffff:"+w.now[host("shop/a.mesh")].IPv4.String()))
	w.assign()
	if got := w.now[host("evil/f.mesh")]; len(got.Refused) != 1 {
		t.Errorf("a tenant has the address of another namespace as IPv6: %v", got)
	}
	// A newcomer leaves a pinned address alone.
	free := slotAddress(w.ipv4, hashedSlot(w.ipv4, host("shop/new.mesh")))
	w.add(true, service("evil/e.mesh", free.String()+"/32"))
	w.assign()
	w.add(false, service("shop/new.mesh"))
	w.assign()
	if got := w.now[host("shop/new.mesh")]; got.IPv4 == free || !got.Moved {
		t.Errorf("a newcomer got a pinned address: %v", got)
	}
}

func TestFullRange(t *testing.T) {
	t.Parallel()
	const small = "240.9.0.0/24"
	w := newWorld(t, small, Saved{})
	list := hosts(300)
	for _, h := range list {
		w.add(false, service(h))
	}
	w.assign()
	full := func() (n int) {
		for _, a := range w.now {
			if a.Full {
				if n++; a.IPv4.IsValid() || !a.IPv6.IsValid() {
					t.Errorf("a host has %v", a)
				}
			}
		}
		return n
	}
	if n := full(); n != 300-perBlock || len(w.now) != 300 {
		t.Fatalf("%d of %d hosts have no address", n, len(w.now))
	}
	var with []string
	for _, h := range list {
		if w.now[host(h)].IPv4.IsValid() {
			with = append(with, h)
		}
	}
	w.remove(with[:5]...)
	w.assign() // addresses that rest go to who has none
	if n := full(); n != 300-perBlock-5 || w.Resting() != 0 {
		t.Errorf("%d hosts have no address, %d rest", n, w.Resting())
	}
}

// TestTenantsShare has a tenant that makes up hosts.
func TestTenantsShare(t *testing.T) {
	t.Parallel()
	const small = "240.9.0.0/24"
	w := newWorld(t, small, Saved{})
	for i := range 500 {
		w.add(true, service(fmt.Sprintf("evil/%d.mesh", i)))
	}
	w.add(true, service("shop/a.mesh"))
	w.assign()
	n := 0
	for h, a := range w.now {
		if h.Namespace == "evil" && a.IPv4.IsValid() {
			n++
		}
	}
	if want := perBlock / boundShare; n != want || !w.now[host("shop/a.mesh")].IPv4.IsValid() {
		t.Errorf("the tenant has %d addresses, want %d; another one has %v", n, want, w.now[host("shop/a.mesh")])
	}
	// Neither does it get more by naming them.
	w = newWorld(t, small, Saved{})
	for i := range perBlock {
		w.add(true, service(fmt.Sprintf("evil/%d.mesh", i), fmt.Sprintf("240.9.0.%d", 1+i)))
	}
	w.add(true, service("other/b.mesh", "240.9.0.7"))
	w.assign()
	for _, h := range []string{"shop/a.mesh", "shop/c.mesh"} {
		w.add(true, service(h))
		w.assign()
		if got := w.now[host(h)]; !got.IPv4.IsValid() || got.IPv4 == netip.MustParseAddr("240.9.0.7") {
			t.Errorf("a tenant names all addresses of the range, and %s has %v", h, got)
		}
	}
	for i := range perBlock { // and what it has is counted right when it goes
		w.removeBound(fmt.Sprintf("evil/%d.mesh", i))
	}
	w.assign()
	if len(w.pins) != 1 || w.pins["other"] != 1 || w.free+uint32(w.Resting()) != perBlock-3 {
		t.Errorf("after the tenant went: pins %v, %d free, %d rest", w.pins, w.free, w.Resting())
	}
	// Its addresses that rest go first.
	w = newWorld(t, small, Saved{})
	w.add(true, service("shop/a.mesh"))
	w.assign()
	w.removeBound("shop/a.mesh")
	w.assign()
	w.after(time.Minute) // it rests longest
	for round := range 10 {
		for i := range 60 {
			name := fmt.Sprintf("evil/%d.mesh", 60*round+i)
			w.add(true, service(name))
			w.assign()
			w.removeBound(name)
		}
		w.assign()
	}
	was := w.Save().Hosts[host("shop/a.mesh")]
	if !was.IPv4.IsValid() {
		t.Error("the address of another namespace rests no longer")
	}
}

func TestSavedTables(t *testing.T) {
	t.Parallel()
	w := newWorld(t, DefaultRange, Saved{})
	for _, h := range hosts(100) {
		w.add(false, service(h))
	}
	w.assign()
	if !w.Unsaved() || w.Unsaved() {
		t.Error("a new address is to be saved once")
	}
	w.remove(hosts(100)[0])
	w.after(time.Minute)
	if !w.Unsaved() {
		t.Error("a rest is to be saved")
	}
	if w.after(time.Minute); w.Unsaved() {
		t.Error("nothing changed")
	}
	if w.after(saveAfter); !w.Unsaved() {
		t.Error("a server that is killed forgets how long addresses have rested")
	}
	saved := w.Save()
	again, err := New(w.ipv4, saved)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(saved, again.Save(), compared); d != "" {
		t.Error(d)
	}
	// Another range: all hosts get other addresses, and an error says so.
	other := newWorld(t, "241.0.0.0/12", saved)
	if len(other.Save().Hosts) != 0 {
		t.Error("addresses outside of the range stay")
	}
	if _, err := New(other.ipv4, saved); err == nil || !strings.Contains(err.Error(), "100 hosts have addresses outside of 241.0.0.0/12") {
		t.Errorf("the error is %v", err)
	}
	// A file that lies.
	a := slotAddress(w.ipv4, 7)
	left := -time.Hour
	lies := Saved{Running: -5, Hosts: map[mesh.NamespacedHost]SavedAddress{
		host("shop/a.mesh"): {IPv4: a, Left: &left}, host("shop/b.mesh"): {IPv4: a},
		host("shop/c.mesh"): {IPv4: netip.MustParseAddr("240.240.0.0")}, host("shop/d.mesh"): {},
	}}
	table, err := New(w.ipv4, lies)
	if err == nil || len(table.Save().Hosts) != 1 {
		t.Errorf("it keeps %v, %v", table.Save(), err)
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "240.240.0.0", "10.0.0.0/16", "240.240.0.1/16", "240.0.0.0/7", "240.240.0.0/25", "255.255.0.0/16", "2001:2::/48", "0.0.0.0/0"} {
		if p, err := ParseRange(bad); err == nil {
			t.Errorf("%q is taken as %s", bad, p)
		}
	}
	for _, good := range []string{DefaultRange, "240.0.0.0/8", "254.0.0.0/8", "251.7.3.0/24"} {
		p, err := ParseRange(good)
		if err != nil {
			t.Error(err)
		}
		for _, slot := range []uint32{0, 1, perBlock - 1, capacity(p) - 1} {
			a := slotAddress(p, slot)
			if got, ok := slotOf(p, a); !ok || got != slot || !p.Contains(a) {
				t.Errorf("slot %d of %s is %s, which is slot %d", slot, p, a, got)
			}
		}
		if a := slotAddress(p, capacity(p)); p.Contains(a) {
			t.Errorf("%s has %s behind its last slot", p, a)
		}
	}
}

// TestHashes are golden: they are the same in every release, since servers and restarts have
// to agree.
func TestHashes(t *testing.T) {
	t.Parallel()
	p := netip.MustParsePrefix(DefaultRange)
	got := map[string]string{}
	for _, h := range []string{"shop/api.lab", "default/web.service.consul", "a/b.c", "ab/.c"} {
		got[h] = slotAddress(p, hashedSlot(p, host(h))).String() + " " + hashedIPv6(host(h), 0).String()
	}
	want := map[string]string{
		"a/b.c":                      "240.240.181.76 2001:2:0:ad8a:94ab:c874:76f9:3837",
		"ab/.c":                      "240.240.37.177 2001:2:0:d798:f26:fec9:16fd:3305",
		"default/web.service.consul": "240.240.231.94 2001:2:0:4d85:3870:7675:60a5:c58a",
		"shop/api.lab":               "240.240.253.158 2001:2:0:b709:c133:6082:50c9:be",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
