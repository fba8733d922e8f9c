package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mdns "github.com/miekg/dns"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
)

// slowness is what a slow nameserver needs: more than the agent waits before it asks another one, and
// less than glibc waits for the answer to one query.
const slowness = 2 * time.Second

// slow answers as the world does, late. A name that begins with "refused" is refused.
func slow(after time.Duration) func(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg {
	return func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		if q.Question[0].Qtype != mdns.TypeHINFO {
			<-time.After(after)
		}
		r := world(w, q)
		if strings.HasPrefix(q.Question[0].Name, "refused") {
			r.Rcode, r.Answer = mdns.RcodeRefused, nil
		}
		return r
	}
}

func dead(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg { return nil }

// TestSlowNameserver: an answer that comes after two seconds is waited for, with one nameserver and
// beside dead ones, by UDP and TCP; and it does not count as silence.
func TestSlowNameserver(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	one, silent, live := newUpstream(t, slow(slowness)), newUpstream(t, dead), newUpstream(t, world)
	for name, upstreams := range map[string][]string{
		"alone": {one.at}, "beside_a_dead_one": {one.at, silent.at}, "behind_a_dead_one": {silent.at, one.at},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, at := start(t, shop(t), "192.0.2.1")
			s.forward.use(t, upstreams)
			for _, network := range []string{"udp", "tcp"} {
				if got := said(ask(t, network, at, "www.example.", mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
					t.Errorf("by %s: %s", network, got)
				}
			}
			for _, u := range s.forward.current() {
				if n := u.silent.Load(); n > 0 && u.address.String() == one.at {
					t.Errorf("the slow nameserver counts as silent: %d", n)
				}
			}
		})
	}
	t.Run("another_answers_first", func(t *testing.T) {
		t.Parallel()
		s, at := start(t, shop(t), "192.0.2.1")
		s.forward.use(t, []string{one.at, live.at})
		for i := range downAfter {
			if got := said(ask(t, "udp", at, fmt.Sprintf("www%d.example.", i), mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
				t.Error(got)
			}
		}
		if first := s.forward.order()[0].address.String(); first != live.at {
			t.Errorf("%s is still asked first", first)
		}
		if got := said(ask(t, "udp", at, "refused.example.", mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
			t.Errorf("a name that the other one refuses: %s", got)
		}
		s.forward.probeAll(t.Context())
		if first := s.forward.order()[0].address.String(); first != one.at {
			t.Errorf("the first nameserver answers a probe at once, and %s is asked first", first)
		}
	})
}

// TestAskedAgain: a nameserver whose answer is lost is asked again, as often as resolv.conf says.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	var lost atomic.Int64
	u := newUpstream(t, func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		if q.Question[0].Qtype != mdns.TypeHINFO && lost.Add(-1) >= 0 {
			return nil
		}
		return world(w, q)
	})
	for _, c := range []struct {
		attempts int
		lost     int64
		want     string
	}{{1, 1, "SERVFAIL"}, {2, 1, "NOERROR; A 192.0.2.1"}, {2, 2, "SERVFAIL"}, {3, 2, "NOERROR; A 192.0.2.1"}} {
		s, at := start(t, shop(t), "192.0.2.1")
		s.forward.use(t, []string{u.at})
		s.forward.patience.Store(&patience{timeout: time.Second, attempts: c.attempts})
		lost.Store(c.lost)
		if got := said(ask(t, "udp", at, "www.example.", mdns.TypeA)); got != c.want {
			t.Errorf("%d attempts, %d lost: %s, want %s", c.attempts, c.lost, got, c.want)
		}
	}
}

// TestOptions: resolv.conf says how long, how often, in which order and by what nameservers are asked,
// as glibc reads it.
func TestOptions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "5s 10s",
		"options edns0 trust-ad\n":       "5s 10s",
		"options timeout:1 attempts:3\n": "1s 2s 4s",
		"options timeout:1\noptions attempts:1\n":                                               "1s",
		"options timeout:60 attempts:9\n":                                                       "30s 1m0s 2m0s 4m0s 8m0s",
		"options timeout:0 attempts:0\n":                                                        "1s",
		"options timeout:x attempts:\n":                                                         "5s 10s",
		"nameserver 192.0.2.1\nnameserver 192.0.2.2\noptions timeout:3\n":                       "3s 3s",
		"nameserver 192.0.2.1\nnameserver 192.0.2.2\nnameserver 192.0.2.3\noptions timeout:1\n": "1s 1s",
		"options rotate use-vc\n":                                                               "5s 10s rotate tcp",
	} {
		list, p := parseResolvConf([]byte(text))
		var words []string
		for _, d := range p.rounds(max(len(list), 1)) {
			words = append(words, d.String())
		}
		if p.rotate {
			words = append(words, "rotate")
		}
		if p.tcp {
			words = append(words, "tcp")
		}
		if got := strings.Join(words, " "); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	a, b := newUpstream(t, world), newUpstream(t, world)
	s, at := start(t, shop(t), "192.0.2.1")
	s.forward.use(t, []string{a.at, b.at})
	s.forward.patience.Store(&patience{timeout: time.Second, attempts: 1, rotate: true})
	for i := range 4 {
		_ = ask(t, "udp", at, fmt.Sprintf("www%d.example.", i), mdns.TypeA)
	}
	if a.queries.Load() != 2 || b.queries.Load() != 2 {
		t.Errorf("with rotate, of 4 queries %d and %d", a.queries.Load(), b.queries.Load())
	}
}

// TestOneSlowNameIsNotAll: clients of one name that nobody answers do not keep others out.
func TestOneSlowNameIsNotAll(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg {
		if strings.HasPrefix(q.Question[0].Name, "slow") {
			return nil
		}
		return world(w, q)
	})
	s, at := startWith(t, shop(t), u.at)
	conn, err := mdns.Dial("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	m := new(mdns.Msg)
	m.SetQuestion("slow.example.", mdns.TypeA)
	await(t, "all places taken", func() bool { // packets may get lost
		for range 100 {
			if err := conn.WriteMsg(m); err != nil {
				t.Fatal(err)
			}
		}
		return s.forward.full.Load() > 0
	})
	await(t, "another name", func() bool { // its packets may get lost, too
		q := new(mdns.Msg)
		q.SetQuestion("www.example.", mdns.TypeA)
		r, _, err := (&mdns.Client{Timeout: slowness}).ExchangeContext(t.Context(), q, at)
		if err == nil && said(r) != "NOERROR; A 192.0.2.1" {
			t.Fatalf("another name: %s", said(r))
		}
		return err == nil
	})
}

// TestSlowNameserverAnswersMany: a nameserver that needs two seconds for each answer goes on answering
// when it is asked for more names than the agent asks for at a time.
func TestSlowNameserverAnswersMany(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	u := newUpstream(t, slow(slowness))
	s, at := startWith(t, shop(t), u.at)
	stop := make(chan struct{})
	var asking sync.WaitGroup
	defer asking.Wait()
	defer close(stop)
	asking.Go(func() { // three times as many names a second as there is room for
		conn, err := mdns.Dial("udp", at)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		every := time.NewTicker(slowness / maxForwarded / 3)
		defer every.Stop()
		for i := range 10_000 {
			m := new(mdns.Msg)
			m.SetQuestion(fmt.Sprintf("www%d.example.", i), mdns.TypeA)
			if err := conn.WriteMsg(m); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-stop:
				return
			case <-every.C:
			}
		}
	})
	await(t, "answers while there is no room", func() bool {
		return s.forward.full.Load() > maxForwarded && s.forwarded.Load() >= 2*maxForwarded
	})
}

// TestAsGlibc: a program that uses glibc finds by the agent what it finds without it, whatever its
// nameservers are like.
func TestAsGlibc(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "needs root: DNS has port 53, and resolv.conf is another one in a namespace of mounts")
	}
	// Addresses of this test alone.
	agent, first, second := "127.53.94.1", "127.53.94.2", "127.53.94.3"
	var answers [2]atomic.Pointer[func(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg]
	for i, at := range []string{first, second} {
		serveAt(t, at, func(w mdns.ResponseWriter, q *mdns.Msg) *mdns.Msg { return (*answers[i].Load())(w, q) })
	}
	for _, c := range []struct {
		name, options string
		servers       []string
		first, second func(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg
		finds         bool
	}{
		{"one_slow", "", []string{first}, slow(slowness), dead, true},
		{"one_slow_of_two", "", []string{first, second}, slow(slowness), dead, true},
		{"first_dead", "timeout:2", []string{first, second}, dead, slow(time.Second), true},
		{"hasty", "timeout:1 attempts:1", []string{first}, slow(slowness), dead, false},
		{"all_dead", "timeout:1 attempts:1", []string{first, second}, dead, dead, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			answers[0].Store(&c.first)
			answers[1].Store(&c.second)
			dir := t.TempDir()
			direct, through := filepath.Join(dir, "direct"), filepath.Join(dir, "through")
			write(t, direct, c.servers...)
			write(t, through, agent)
			for _, path := range []string{direct, through} {
				appendLine(t, path, "options "+c.options)
			}
			s, err := New(Config{Logger: quiet(), Table: shop(t), Addresses: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(agent), portOfDNS)}, ResolvConf: direct, Stub: dir + "/none"})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Listen(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var ended sync.WaitGroup
			ended.Go(func() { _ = s.Run(ctx) })
			defer ended.Wait()
			defer cancel()
			await(t, "nameservers", func() bool { return len(s.forward.current()) == len(c.servers) })
			for what, path := range map[string]string{"without the agent": direct, "by the agent": through} {
				if found := getent(t, path, "www.example"); found != c.finds {
					t.Errorf("%s: found %v, want %v", what, found, c.finds)
				}
			}
		})
	}
}

// getent asks for a name as programs do, with another resolv.conf.
func getent(t *testing.T, resolvConf, name string) bool {
	t.Helper()
	script := `mount --bind "$1" /etc/resolv.conf && exec getent ahostsv4 "$2"`
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "sh", "-c", script, "sh", resolvConf, name).CombinedOutput()
	var exit *exec.ExitError
	const notFound = 2
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != notFound) {
		t.Fatalf("getent: %v: %s", err, out)
	}
	return strings.HasPrefix(string(out), "192.0.2.1 ")
}

func appendLine(t *testing.T, path, line string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, line+"\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
}

// serveAt is a nameserver at port 53.
func serveAt(t *testing.T, address string, answer func(mdns.ResponseWriter, *mdns.Msg) *mdns.Msg) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", net.JoinHostPort(address, "53"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &mdns.Server{PacketConn: conn, Handler: mdns.HandlerFunc(func(w mdns.ResponseWriter, q *mdns.Msg) {
		if r := answer(w, q); r != nil {
			_ = w.WriteMsg(r)
		}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = srv.ActivateAndServe()
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-ended
	})
}
