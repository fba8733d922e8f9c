package gatewaynames_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/fairlead/fairlead/registry/gatewaynames"
)

// answers are what a resolver says of each name, in turn: addresses, or an error in words. The last
// one stays.
type answers map[string][]string

// rig runs Names with a resolver in a bubble of time.
type rig struct {
	t     *testing.T
	names *gatewaynames.Names
	stop  func()

	mu    sync.Mutex // guards all following fields: several names are looked up at a time
	asked map[string]int
}

// next is how often a name was asked for before.
func (r *rig) next(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked[name]++
	return r.asked[name] - 1
}

func run(t *testing.T, path string, say answers) *rig {
	t.Helper()
	r := &rig{t: t, asked: map[string]int{}}
	lookup := func(_ context.Context, name string) ([]netip.Addr, error) {
		name = strings.TrimSuffix(name, ".")
		list := say[name]
		text := list[min(r.next(name), len(list)-1)]
		var out []netip.Addr
		for f := range strings.FieldsSeq(text) {
			a, err := netip.ParseAddr(f)
			if err != nil {
				return nil, errors.New(text)
			}
			out = append(out, a)
		}
		return out, nil
	}
	names, err := gatewaynames.New(gatewaynames.Config{Logger: slog.New(slog.DiscardHandler), Path: path, Lookup: lookup})
	if err != nil {
		t.Fatal(err)
	}
	r.names = names
	r.start()
	return r
}

func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	done := make(chan error)
	go func() { done <- r.names.Run(ctx) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

// says compares the status of all names.
func (r *rig) says(want string) {
	r.t.Helper()
	synctest.Wait()
	var got []string
	for _, st := range r.names.Status() {
		text := fmt.Sprint(st.Name, st.Addresses)
		if st.Err != "" {
			text += " " + st.Err
		}
		got = append(got, text)
	}
	if text := strings.Join(got, "; "); text != want {
		r.t.Errorf("status\n%s, want\n%s", text, want)
	}
}

// TestLastGoodAnswersStay: a name is looked up each half minute, and after five seconds if that failed;
// without an answer, its last addresses stay, over a restart, too.
func TestLastGoodAnswersStay(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gateway-addresses.json")
	synctest.Test(t, func(t *testing.T) {
		r := run(t, path, answers{"gw.example": {"203.0.113.2 203.0.113.1 203.0.113.2", "no such host", "203.0.113.3", "203.0.113.3"}})
		if r.names.Settled([]string{"gw.example"}) {
			t.Error("a name is settled that nobody has looked up")
		}
		r.names.Want([]string{"gw.example"})
		r.says("gw.example[203.0.113.1 203.0.113.2]")
		first := r.names.Addresses()
		if !r.names.Settled([]string{"gw.example"}) {
			t.Error("the name is not settled")
		}
		pass(29 * time.Second)
		r.says("gw.example[203.0.113.1 203.0.113.2]")
		pass(time.Second)
		r.says("gw.example[203.0.113.1 203.0.113.2] no such host")
		if r.names.Addresses() != first {
			t.Error("a failed lookup made other addresses")
		}
		if since := r.names.Status()[0].Since; !since.Equal(time.Now()) {
			t.Errorf("it failed since %s", since)
		}
		pass(5 * time.Second)
		r.says("gw.example[203.0.113.3]")
		then := r.names.Addresses()
		if then == first {
			t.Error("another answer made no other addresses")
		}
		pass(time.Minute)
		r.says("gw.example[203.0.113.3]")
		if asked := r.next("gw.example"); r.names.Addresses() != then || asked != 5 {
			t.Errorf("the same answer made other addresses, or %d lookups", asked)
		}
		r.stop()
	})
	synctest.Test(t, func(t *testing.T) {
		r := run(t, path, answers{"gw.example": {"timeout"}, "new.example": {"timeout"}})
		r.names.Want([]string{"gw.example"})
		r.says("gw.example[203.0.113.3] timeout")
		r.names.Want([]string{"gw.example", "new.example"})
		r.says("gw.example[203.0.113.3] timeout; new.example[] timeout")
		if !r.names.Settled([]string{"gw.example", "new.example"}) {
			t.Error("a name that was looked up in vain keeps others waiting")
		}
		r.names.Want(nil)
		r.says("")
		r.stop()
	})
	if err := os.WriteFile(path, []byte("damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		r := run(t, path, answers{"gw.example": {"timeout"}})
		r.names.Want([]string{"gw.example"})
		r.says("gw.example[] timeout")
		r.stop()
	})
}

// TestAnswersThatCannotBeUsed: nobody is sent to addresses of its own host, however many there are.
func TestAnswersThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var many strings.Builder
		for i := range 100 {
			fmt.Fprintf(&many, "203.0.113.%d ", 100-i)
		}
		r := run(t, "", answers{"loop.example": {"127.0.0.1 ::1"}, "mixed.example": {"169.254.169.254 ::ffff:203.0.113.1 224.0.0.1 0.0.0.0"}, "none.example": {""}, "many.example": {many.String()}})
		r.names.Want([]string{"loop.example", "many.example", "mixed.example", "none.example"})
		synctest.Wait()
		list := r.names.Status()
		if len(list[1].Addresses) != 16 || list[1].Addresses[0] != netip.MustParseAddr("203.0.113.1") || !slices.IsSortedFunc(list[1].Addresses, netip.Addr.Compare) {
			t.Errorf("of many: %v", list[1])
		}
		r.names.Want([]string{"loop.example", "mixed.example", "none.example"})
		r.says("loop.example[] the answer has no usable address: ::1 is not one that other hosts can connect to; mixed.example[203.0.113.1]; none.example[] the answer has no usable address")
		r.stop()
	})
}

// TestLookupsAreBounded: eight at a time, five seconds each; one that hangs keeps no other from its turn
// for ever, and all end with their context.
func TestLookupsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		lookup := func(ctx context.Context, _ string) ([]netip.Addr, error) {
			for n := now.Add(1); ; {
				if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
					break
				}
			}
			defer now.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		names, err := gatewaynames.New(gatewaynames.Config{Logger: slog.New(slog.DiscardHandler), Lookup: lookup})
		if err != nil {
			t.Fatal(err)
		}
		r := &rig{t: t, names: names}
		r.start()
		var wanted []string
		for i := range 20 {
			wanted = append(wanted, fmt.Sprintf("gw-%02d.example", i))
		}
		names.Want(wanted)
		synctest.Wait()
		if now.Load() != 8 {
			t.Errorf("%d lookups at a time", now.Load())
		}
		pass(15 * time.Second)
		synctest.Wait()
		if !names.Settled(wanted) || most.Load() != 8 {
			t.Errorf("after three rounds: settled %v, at most %d at a time", names.Settled(wanted), most.Load())
		}
		names.Want(wanted[:1])
		r.stop()
	})
}

// TestLooksUpByDNS asks a real nameserver, as the default does, for A and AAAA.
func TestLooksUpByDNS(t *testing.T) {
	t.Parallel()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for _, text := range []string{"gw.site2.example. 1 IN A 203.0.113.7", "gw.site2.example. 1 IN AAAA 2001:db8::7"} {
			if rr, err := dns.NewRR(text); err == nil && rr.Header().Rrtype == q.Question[0].Qtype && q.Question[0].Name == "gw.site2.example." {
				m.Answer = append(m.Answer, rr)
			}
		}
		_ = w.WriteMsg(m) // or the test ends by its deadline
	})}
	served := make(chan error, 1)
	go func() { served <- server.ActivateAndServe() }()
	t.Cleanup(func() {
		if err := server.Shutdown(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	names, err := gatewaynames.New(gatewaynames.Config{
		Logger: slog.New(slog.DiscardHandler),
		Lookup: func(ctx context.Context, name string) ([]netip.Addr, error) {
			return resolver.LookupNetIP(ctx, "ip", name)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, names: names}
	r.start()
	defer r.stop()
	names.Want([]string{"gw.site2.example", "other.example"})
	for !names.Settled([]string{"gw.site2.example", "other.example"}) {
		select {
		case <-names.Changed():
		case <-t.Context().Done():
			t.Fatal("nothing was looked up")
		}
	}
	st := names.Status()
	if got := fmt.Sprint(st[0].Addresses); got != "[203.0.113.7 2001:db8::7]" || st[1].Err == "" || len(st[1].Addresses) > 0 {
		t.Errorf("status %+v", st)
	}
}
