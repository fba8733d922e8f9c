package accept

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"
)

// Whatever comes and goes, the pool keeps its bounds, and for one that comes the
// oldest of the largest group goes, or of its own where that is full. Groups of known
// addresses go last, but for the largest where they have more than half.
func TestPoolIsBoundedAndFair(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := newPool(1+r.IntN(12), r.IntN(5))
		var in []*conn // in the order in which they came
		of := func(g string) int {
			n := 0
			for _, c := range in {
				if c.group == g {
					n++
				}
			}
			return n
		}
		isKnown := func(g string) bool { return seed%2 == 0 && g < "3" } // of the digits
		for range 2000 {
			if len(in) > 0 && r.IntN(3) == 0 {
				i := r.IntN(len(in))
				p.remove(in[i])
				in = slices.Delete(in, i, i+1)
				continue
			}
			c := &conn{group: strconv.Itoa(r.IntN(6))}
			own, full := of(c.group), len(in) == p.most
			largest := func(known bool) (n int) {
				for g := range 6 {
					if isKnown(strconv.Itoa(g)) == known {
						n = max(n, of(strconv.Itoa(g)))
					}
				}
				return n
			}
			host, other, hosts := largest(true), largest(false), 0
			for g := range 6 {
				if g := strconv.Itoa(g); isKnown(g) {
					hosts += of(g)
				}
			}
			fromHost := other == 0 || 2*hosts > p.size && host > other
			victim := p.add(c, isKnown(c.group))
			switch {
			case p.mostPerGroup > 0 && own == p.mostPerGroup:
				if victim == nil || victim.group != c.group {
					t.Fatalf("seed %d: its address has all that it may, and %+v goes", seed, victim)
				}
			case full:
				if victim == nil || isKnown(victim.group) != fromHost || of(victim.group) != largest(fromHost) {
					t.Fatalf("seed %d: the pool is full, and %+v goes", seed, victim)
				}
			case victim != nil:
				t.Fatalf("seed %d: there is room, and %+v goes", seed, victim)
			}
			if victim != nil {
				i := slices.IndexFunc(in, func(o *conn) bool { return o.group == victim.group })
				if in[i] != victim {
					t.Fatalf("seed %d: not the oldest of its address goes", seed)
				}
				in = slices.Delete(in, i, i+1)
			}
			in = append(in, c)
			if p.size != len(in) || p.size > p.most || len(p.groups) > p.size {
				t.Fatalf("seed %d: %d connections of %d, %d groups", seed, p.size, len(in), len(p.groups))
			}
		}
	}
}

// Whoever sits at some addresses of hosts does not keep out who comes from elsewhere,
// and whoever sits elsewhere at many does not keep out hosts.
func TestAddressesOfHostsKeepNobodyOut(t *testing.T) {
	t.Parallel()
	const most = 64
	for name, c := range map[string]struct {
		attackers int // addresses
		known     bool
	}{"two addresses of hosts": {2, true}, "ten addresses of hosts": {10, true}, "many others": {10 * most, false}} {
		p := newPool(most, most)
		i := 0
		attack := func() *conn {
			i++
			return p.add(&conn{group: "attacker " + strconv.Itoa(i%c.attackers)}, c.known)
		}
		for range 2 * most {
			attack()
		}
		p.add(&conn{group: "joins or comes back"}, !c.known)
		for range 10 * most {
			if out := attack(); out.group == "joins or comes back" {
				t.Fatalf("%s: it goes", name)
			}
		}
	}
}

// from is a connection from an address.
type from struct {
	net.Conn
	at net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.at }

func (f from) Close() error { return nil }

// Connections are counted by the machine that they may be from: a /64 of IPv6 is one,
// and an address of IPv4 is the same however it is written. Every pool, and what is
// remembered of addresses, goes by that.
func TestConnectionsAreCountedByMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, second string
		one           bool
	}{
		{"10.1.2.3", "10.1.2.3", true},
		{"10.1.2.3", "::ffff:10.1.2.3", true},
		{"10.1.2.3", "10.1.2.4", false},
		{"2001:db8::1", "2001:db8::ffff:1:2:3", true},
		{"2001:db8::1", "2001:db8:0:1::1", false},
	} {
		f := start(t, func(c *Config) { c.Timeout = time.Hour })
		var list []*conn
		for i, ip := range []string{c.first, c.second} {
			list = append(list, f.add(from{at: &net.TCPAddr{IP: net.ParseIP(ip), Port: 1 + i}}))
		}
		want := map[bool]int{true: 1, false: 2}[c.one]
		for _, step := range []struct {
			pool int
			next func(*conn) bool
		}{
			{waitingPool, func(*conn) bool { return true }},
			{begunPool, f.begin},
			{callPool, f.await},
		} {
			for _, x := range list {
				if !step.next(x) {
					t.Fatal("it is closed")
				}
			}
			if n := len(f.pools[step.pool].groups); n != want {
				t.Errorf("%s and %s are counted as %d in pool %d, want %d", c.first, c.second, n, step.pool, want)
			}
		}
		f.authenticate(list[0], "spiffe://mesh/fairlead/host/a")
		f.mu.Lock()
		known := f.knowsLocked(list[1].group)
		f.mu.Unlock()
		if known != c.one {
			t.Errorf("%s is the address of a host after one from %s: %v", c.second, c.first, known)
		}
		for _, x := range list {
			_ = x.Close()
		}
	}
}

// One host with a certificate and a /48 of IPv6 makes the server forget no address
// at which a host is.
func TestOneHostDoesNotFlushKnownAddresses(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *Config) { c.MaxConnections, c.MaxPerIdentity, c.Timeout = 100, 2, time.Hour })
	good := f.add(from{at: &net.TCPAddr{IP: net.ParseIP("10.1.2.3"), Port: 1}})
	f.authenticate(good, "spiffe://mesh/fairlead/host/good")
	for i := range leastKnown {
		c := f.add(from{at: &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("2001:db8:1:%x::1", i)), Port: 1}})
		if !f.authenticate(c, "spiffe://mesh/fairlead/host/evil") {
			t.Fatal("refused")
		}
		_ = c.Close()
	}
	for _, when := range []string{"is connected", "has just gone"} {
		f.mu.Lock()
		knows := f.knowsLocked(good.group)
		f.mu.Unlock()
		if !knows {
			t.Errorf("the address of a host that %s is forgotten", when)
		}
		_ = good.Close()
	}
}
