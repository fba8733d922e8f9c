package serials_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/durable/durabletest"
	"github.com/fairlead/fairlead/pki/issue/serials"
	"github.com/fairlead/fairlead/pki/profile"
)

const life = 24 * time.Hour

// fixture is a server's record of one host, and who has which of its certificates.
type fixture struct {
	t    *testing.T
	dir  string
	book *serials.Book
	log  bytes.Buffer
	cfg  serials.Config
	last int64
	now  time.Time // of the certificates
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := &fixture{t: t, dir: t.TempDir(), now: time.Now()}
	w.cfg = serials.Config{Dir: w.dir, Logger: slog.New(slog.NewTextHandler(&w.log, nil)), Known: func(string) bool { return true }}
	w.restart()
	return w
}

func (w *fixture) restart() {
	w.t.Helper()
	var err error
	if w.book, err = serials.New(w.cfg); err != nil {
		w.t.Fatal(err)
	}
}

func (w *fixture) binding() profile.Binding { return profile.Binding{7} }

// issue makes a certificate that the shown one asked for.
func (w *fixture) issue(shown *x509.Certificate) *x509.Certificate {
	c := w.unrecorded()
	w.book.Issued("web-1", w.binding(), shown, c)
	return c
}

// unrecorded is one that another version of the server made.
func (w *fixture) unrecorded() *x509.Certificate {
	w.last++
	w.now = w.now.Add(life / 2)
	return &x509.Certificate{SerialNumber: big.NewInt(w.last), NotBefore: w.now.Add(-time.Minute), NotAfter: w.now.Add(life)}
}

func (w *fixture) open(c *x509.Certificate, peer string) (closed func()) {
	return w.openedAt(c, peer, time.Now())
}

func (w *fixture) openedAt(c *x509.Certificate, peer string, began time.Time) (closed func()) {
	return w.book.Connected("web-1", w.binding(), c, peer+":4711", began, func() {})
}

func (w *fixture) state() serials.State { return w.book.State("web-1", w.binding()) }

func (w *fixture) want(what string, returns int, fork bool) {
	w.t.Helper()
	if s := w.state(); s.Returns != returns || (s.Fork != nil) != fork {
		w.t.Errorf("%s: %d returns, fork %v: want %d and %v", what, s.Returns, s.Fork, returns, fork)
	}
}

const here, there = "10.0.0.1", "10.9.9.9"

// The one in the field: a copy of the disk is used while the host goes on.
func TestTwoHolders(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here) // the host's stream
	b := w.issue(a)
	w.open(b, here)()
	w.want("renewed", 0, false)
	w.open(a, there)()
	w.want("the copy comes", 1, false)
	c := w.issue(a)
	w.open(c, there) // it stays
	w.want("the copy has renewed", 1, false)
	w.open(b, here)
	w.want("the host comes with what was left", 2, true)
	f := w.state().Fork
	if f.Peers != [2]string{there, here} || f.Serials != [2]serials.Serial{serials.SerialOf(c), serials.SerialOf(b)} {
		t.Errorf("fork %+v", f)
	}
	if s := w.log.String(); !strings.Contains(s, "level=ERROR") || !strings.Contains(s, "--replace") || !strings.Contains(s, "web-1") {
		t.Errorf("the log:\n%s", s)
	}
	w.restart()
	w.want("the server was restarted", 2, true)
	if err := w.book.Forget("web-1"); err != nil {
		t.Fatal(err)
	}
	w.restart()
	w.want("the host was removed", 0, false)
}

func TestOneReturnIsResolvedByRenewal(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here)
	b := w.issue(a)
	w.open(b, here) // half-open: nobody closes it
	w.open(a, there)
	w.want("came back from a restored disk", 1, false)
	c := w.issue(a)
	w.open(c, there)
	d := w.issue(c)
	w.open(d, there)
	w.want("renewed with the same key", 1, false)
	if n := strings.Count(w.log.String(), "level=WARN"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestOldConnectionsDoNotCount(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here)
	b := w.issue(a)
	began := time.Now() // the relay begins a handshake, and shows what it has by then
	w.open(b, here)
	w.openedAt(a, here, began)
	w.open(b, here)
	w.want("a handshake that took long", 0, false)
}

func TestChainStartsAtTheNextRenewal(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a, old := w.unrecorded(), w.unrecorded()
	w.open(a, here)
	w.open(old, here)
	w.open(a, here)
	w.want("nothing is on record", 0, false)
	b := w.issue(a)
	w.open(b, here)
	w.want("the chain has begun", 0, false)
	w.open(a, there)
	w.want("the predecessor", 1, false)
	w.open(b, here)
	w.want("both in turn", 2, true)
}

// Another version of the server was there meanwhile, or the record is from a
// backup.
func TestGapStartsANewChain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here)
	b := w.unrecorded()
	w.open(b, here)
	w.open(w.issue(b), here)
	w.want("newer than all on record", 0, false)
}

// A copy that is older than what is known by number.
func TestAnOldCopy(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	first := w.issue(nil)
	c := first
	for range 10 {
		w.open(c, here)
		c = w.issue(c)
	}
	w.open(c, here)
	w.want("ten renewals", 0, false)
	w.open(w.issue(first), there)
	w.open(c, here)
	if w.state().Fork == nil {
		t.Errorf("an old copy and the host: %+v", w.state())
	}
}

// A holder who renews again and again cannot push the other off the record.
func TestManyRenewals(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here)
	b := w.issue(a)
	w.open(b, here)
	w.open(a, there)
	for range 200 {
		w.issue(a)
	}
	w.open(b, here)
	if w.state().Fork == nil {
		t.Errorf("%+v", w.state())
	}
	files, err := os.ReadDir(w.dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if info, err := files[0].Info(); err != nil || info.Size() > 4096 || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// One host whose clock is set and set right again comes from one address.
func TestAClockThatIsSet(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here)
	b := w.issue(a)
	w.open(b, here)
	w.open(a, here)
	w.open(b, here)
	w.want("there and back", 2, false)
	w.open(a, here)
	w.open(b, here)
	w.want("again and again", 4, true)
}

// A machine with IPv6 changes its address by itself, within a /64. Another network is
// another machine.
func TestAddressesOfOneMachine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, second string
		fork          bool
	}{
		{"[2001:db8::1]", "[2001:db8::2:3]", false},
		{"[2001:db8::1]", "[2001:db8:0:1::1]", true},
		{"10.1.2.3", "[::ffff:10.1.2.3]", false},
		{"10.1.2.3", "10.1.2.4", true},
	} {
		w := newFixture(t)
		a := w.issue(nil)
		w.open(a, c.first)
		b := w.issue(a)
		w.open(b, c.first)
		w.open(a, c.second)
		w.open(b, c.first)
		w.want(c.first+" and "+c.second, 2, c.fork)
	}
}

func TestAFullDiskStopsNothing(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	w.cfg.FS = &durabletest.FS{Steps: 0}
	w.restart()
	a := w.issue(nil)
	w.open(a, here)
	b := w.issue(a)
	w.open(b, here)
	w.open(a, there)
	w.open(b, here)
	w.want("with nothing on the disk", 2, true)
	if n := strings.Count(w.log.String(), "saving the certificate history"); n != 1 {
		t.Errorf("logged %d times that nothing is saved", n)
	}
}

func TestDamagedChainIsIgnored(t *testing.T) {
	t.Parallel()
	for _, content := range []string{"", "{", "{}", `{"version":2}`, `{"version":1,"host":"other","nodes":[{}]}`, "\x00\xff"} {
		w := newFixture(t)
		if err := os.WriteFile(filepath.Join(w.dir, "web-1.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		w.restart()
		if a := w.issue(nil); true {
			w.open(a, here)
			w.open(w.issue(a), here)
		}
		w.want(fmt.Sprintf("%q", content), 0, false)
	}
}

func TestNewAdmissionStartsANewChain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.issue(nil)
	w.open(a, here)
	b := w.issue(a)
	w.open(b, here)
	w.open(a, there)
	w.open(b, here)
	w.want("forked", 2, true)
	w.book.Issued("web-1", profile.Binding{8}, nil, w.unrecorded())
	if s := w.book.State("web-1", profile.Binding{8}); s.Fork != nil {
		t.Errorf("replaced: %+v", s)
	}
	w.want("the one before", 0, false)
}

// careless is a disk that is fast.
type careless struct{ durable.OS }

func (careless) SyncDir(string) error { return nil }

func (c careless) CreateTemp(dir, pattern string) (durable.File, error) {
	f, err := c.OS.CreateTemp(dir, pattern)
	return carelessFile{f}, err
}

type carelessFile struct{ durable.File }

func (carelessFile) Sync() error { return nil }

// One host with any misfortune is never taken for two: disks that are restored or
// full, answers that are lost, connections that nobody closes, handshakes that take
// long, restarts of the server. Two that go on are always found.
func TestHistories(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newFixture(t)
		w.cfg.Logger, w.cfg.FS = slog.New(slog.DiscardHandler), careless{}
		w.restart()
		memory := w.issue(nil)
		disks := []*x509.Certificate{memory}
		for range 40 {
			switch rng.IntN(8) {
			case 0, 1:
				closed := w.open(memory, here)
				if rng.IntN(2) == 0 {
					closed()
				}
			case 2, 3, 4: // a renewal, of which the answer may be lost
				w.open(memory, here)()
				began := time.Now()
				next := w.issue(memory)
				if rng.IntN(4) == 0 {
					continue
				}
				was := memory
				memory = next
				w.open(memory, here)
				w.openedAt(was, here, began)
				if rng.IntN(4) > 0 { // the disk may be full
					disks = append(disks, memory)
				}
			case 5: // a crash, with what the disk has; or an older backup of it
				if at := len(disks) - 1 - rng.IntN(2)*rng.IntN(len(disks)); true {
					disks = disks[:at+1]
					memory = disks[at]
				}
			case 6:
				w.restart()
			case 7:
				w.open(memory, here)
			}
		}
		if s := w.state(); s.Fork != nil {
			t.Fatalf("seed %d: one host was taken for two: %+v", seed, s)
		}
		// Now a copy of the disk is used elsewhere, and both go on.
		holders := [2]*x509.Certificate{memory, disks[rng.IntN(len(disks))]}
		from := [2]string{here, there}
		for turn := range 6 {
			i := turn % 2
			w.open(holders[i], from[i])
			if turn < 2 || rng.IntN(2) == 0 {
				holders[i] = w.issue(holders[i])
				w.open(holders[i], from[i])
			}
		}
		if s := w.state(); s.Fork == nil {
			t.Fatalf("seed %d: two holders were not found: %+v", seed, s)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	if _, err := serials.New(serials.Config{}); err == nil {
		t.Error("a book without anything")
	}
	var s serials.Serial
	if err := errors.Join(s.UnmarshalText([]byte("00"))); err == nil {
		t.Error("a short serial")
	}
}
