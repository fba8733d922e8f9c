package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/durable"
)

// lock takes the lock of the commands.
func (r *rig) lock() (unlock func()) {
	r.t.Helper()
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		l, err := durable.Lock(filepath.Join(r.dir, "lock"))
		if err == nil {
			unlock = func() { _ = l.Close() }
		}
		return err
	})
	return unlock
}

// ruleset is what the kernel has, without numbers that change.
func (r *rig) ruleset() string {
	r.t.Helper()
	s := regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(r.NFT("", "list", "ruleset"), "")
	return regexp.MustCompile(` expires [0-9a-z]+`).ReplaceAllString(s, "")
}

// TestLoadsWhatWasConfirmed: a host that starts has the table and the routes; when the keeper ends
// they stay, and the next one takes them over without an interruption.
func TestLoadsWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	k := r.keep()
	r.Want(appUser, r.at(2, 80), "out "+r.at(2, 80))
	r.Want(appUser, "240.240.0.7:80", "out 240.240.0.7:80")
	r.Want(appUser, "[2001:2::7]:80", "out [2001:2::7]:80")
	r.peer.Want(otherUser, r.at(1, 8080), "in "+r.at(1, 8080))
	if st := k.Status(); !st.Kept || st.Mode != capture.Closed || st.Since.IsZero() || len(st.Mended) != 0 || st.Problem != "" {
		t.Errorf("%+v", st)
	}
	before := r.ruleset()
	k.stop()
	r.Want(appUser, r.at(2, 80), "out "+r.at(2, 80))
	k = r.keep()
	if st := k.Status(); !st.Kept || len(st.Mended) != 0 {
		t.Errorf("%+v", st)
	}
	if after := r.ruleset(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
}

// TestChangesOfOthersAreMended: whatever another program does to the table, it is as it was soon,
// and who did it is known.
func TestChangesOfOthersAreMended(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	k := r.keep()
	want := r.ruleset()
	for i, change := range []string{
		"flush ruleset",
		"delete table inet fairlead",
		"flush table inet fairlead",
		"flush chain inet fairlead to_envoy",
		"insert rule inet fairlead output accept",
		"add rule inet fairlead to_envoy counter drop",
		"flush set inet fairlead alive",
		"delete element inet fairlead users_15001 { 22001 }",
		"add element inet fairlead ports_15006 { 9090 }",
		"add chain inet fairlead more { type filter hook output priority 0; policy drop; }",
		"add chain inet fairlead output { policy drop; }",
		"add set inet fairlead more { type inet_service; }",
		"add counter inet fairlead more",
		"add table inet fairlead { flags dormant; }",
		"flush ruleset; add table inet fairlead",
	} {
		r.NFT(strings.ReplaceAll(change, "ruleset; ", "ruleset\n"), "-f", "-")
		k.await("mended after "+change, func(st Status) bool { return st.Mended["table"] == uint64(i+1) && st.Kept })
		if got := r.ruleset(); got != want {
			t.Fatalf("after %q:\n%s\nwant\n%s", change, got, want)
		}
		r.Want(appUser, r.at(2, 80), "out "+r.at(2, 80))
	}
	st := k.Status()
	if !strings.HasPrefix(st.LastBy, "nft (pid ") || st.LastWhat != "table" || st.LastMended.IsZero() || !strings.Contains(st.Fight, "again and again") {
		t.Errorf("%+v", st)
	}
	if log := r.log.String(); strings.Count(log, "packet capture restored: another program had changed it") > 6 || !strings.Contains(log, `by="nft (pid`) {
		t.Errorf("log:\n%s", log)
	}
	// What is none of ours is left alone.
	r.Load("table ip mine {; chain output {; type filter hook output priority 0; policy accept; }; }")
	want = r.ruleset()
	before := k.Status().Mended["table"]
	r.NFT("", "add", "counter", "inet", capture.Table, "again")
	k.await("mended", func(st Status) bool { return st.Mended["table"] == before+1 })
	if got := r.ruleset(); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// TestRoutesAreMended: the routes of the ranges and Envoy's address come back, also when the
// loopback interface was down.
func TestRoutesAreMended(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	k := r.keep()
	state := func() string {
		return r.IP("route", "show", "dev", "lo") + r.IP("-6", "route", "show", "2001:2::/48") + regexp.MustCompile(`(?m)inet6 ::6/128 .*$`).FindString(r.IP("-6", "address", "show", "dev", "lo"))
	}
	want := state()
	if !strings.Contains(want, "240.240.0.0/16") || !strings.Contains(want, "2001:2::/48") || !strings.Contains(want, "::6/128") {
		t.Fatal(want)
	}
	for _, change := range [][]string{
		{"route", "delete", "240.240.0.0/16"},
		{"-6", "route", "delete", "2001:2::/48"},
		{"address", "delete", "::6/128", "dev", "lo"},
		{"route", "flush", "dev", "lo"},
		{"link", "set", "lo", "down"},
	} {
		r.IP(change...)
		r.IP("link", "set", "lo", "up")
		envoytest.Eventually(t, envoytest.Patience, func() error {
			if got := state(); got != want {
				return fmt.Errorf("after %q:\n%s\nwant\n%s", change, got, want)
			}
			return nil
		})
		r.eventually("240.240.0.7:80", "out 240.240.0.7:80")
	}
	st := k.await("as declared", func(st Status) bool { return st.Mended["routes"] >= 5 && st.Problem == "" })
	if st.Mended["table"] != 0 || st.LastWhat != "routes" {
		t.Errorf("%+v", st)
	}
}

// TestFightsAreBounded: a program that deletes the table all the time makes neither a busy loop nor
// a hole that stays.
func TestFightsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	k := r.keep()
	began := time.Now()
	for range 300 {
		r.NFT("flush ruleset", "-f", "-")
	}
	elapsed := time.Since(began)
	r.eventually(r.at(2, 80), "out "+r.at(2, 80))
	st := k.await("a fight", func(st Status) bool { return st.Fight != "" && st.Kept })
	const beginning = 5 // of 100, 200, 400 and 800 ms, and the first one
	if n, most := st.Mended["table"], uint64(beginning+elapsed/longestGap+2); n > most {
		t.Errorf("mended %d times in %s, more than %d times", n, elapsed, most)
	}
	if n := strings.Count(r.log.String(), "\n"); n > 10 {
		t.Errorf("%d log lines:\n%s", n, r.log)
	}
}

// TestFloodsAreBounded: however many changes the kernel reports, the table is looked at some times
// a second.
func TestFloodsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	k := r.keep()
	began, before := time.Now(), k.looks.Load()
	for range 30 {
		r.NFT(strings.Repeat("add table ip flood\ndelete table ip flood\n", 500), "-f", "-")
		r.IP("address", "add", "10.255.0.1/32", "dev", "lo")
		r.IP("address", "delete", "10.255.0.1/32", "dev", "lo")
	}
	n, elapsed := k.looks.Load()-before, time.Since(began)
	if most := int64(elapsed/leastLook) + 2; n > most {
		t.Errorf("%d looks in %s, more than %d", n, elapsed, most)
	}
	r.NFT("", "delete", "table", "inet", capture.Table)
	r.eventually(r.at(2, 80), "out "+r.at(2, 80))
}

// TestWhatWasConfirmedComesBack: a table that was applied over a confirmed one is left alone while
// its time runs, and then, or when another program deletes it, the confirmed one is back.
func TestWhatWasConfirmedComesBack(t *testing.T) {
	t.Parallel()
	for _, deleted := range []bool{false, true} {
		t.Run(map[bool]string{false: "time_over", true: "deleted"}[deleted], func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.servers()
			r.confirm(settings(nil))
			k := r.keep()
			want := r.ruleset()
			r.apply(settings(func(s *capture.Settings) { s.Workloads[0].Users = []uint32{otherUser} }), time.Hour)
			k.await("pending", func(st Status) bool { return st.Pending })
			r.Want(otherUser, r.at(2, 80), "out "+r.at(2, 80))
			r.Want(appUser, r.at(2, 80), "peer")
			if deleted {
				r.NFT("", "flush", "ruleset")
			} else if err := r.kernel.Switch(100 * time.Millisecond); err != nil { // the rest of its time
				t.Fatal(err)
			}
			r.eventually(r.at(2, 80), "out "+r.at(2, 80))
			r.Want(otherUser, r.at(2, 80), "peer")
			k.await("kept", func(st Status) bool { return st.Kept && !st.Pending })
			if got := r.ruleset(); got != want {
				t.Errorf("%s\nwant\n%s", got, want)
			}
			if _, err := capture.LoadPending(r.dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("still to be confirmed: %v", err)
			}
		})
	}
}

// TestConfirmedTablesAreTakenOver: what people apply and confirm while the keeper runs is kept, and
// what they remove is let go, also if the removal is interrupted.
func TestConfirmedTablesAreTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	k := r.keep()
	if st := k.Status(); st.Mode != "" || st.Kept {
		t.Errorf("%+v", st)
	}
	r.apply(settings(nil), time.Hour)
	k.await("pending", func(st Status) bool { return st.Pending })
	unlock := r.lock()
	err := r.kernel.Confirm(func() error { return capture.SaveConfirmed(r.dir) })
	unlock()
	if err != nil {
		t.Fatal(err)
	}
	k.await("kept", func(st Status) bool { return st.Kept && st.Mode == capture.Closed })
	r.NFT("", "flush", "ruleset")
	r.eventually(r.at(2, 80), "out "+r.at(2, 80))

	unlock = r.lock()
	envoys, err := capture.Retire(r.dir)
	unlock()
	if err != nil || fmt.Sprint(envoys) != "[15001 15006]" {
		t.Fatal(envoys, err)
	}
	if _, err := r.kernel.Remove(t.Context(), envoys, 0); err != nil {
		t.Fatal(err)
	}
	k.await("nothing", func(st Status) bool { return st.Mode == "" })
	r.Want(appUser, r.at(2, 80), "peer")
	if st, err := r.kernel.State(); err != nil || st.Present {
		t.Errorf("%+v %v", st, err)
	}
	if again, err := capture.Retire(r.dir); err != nil || fmt.Sprint(again) != fmt.Sprint(envoys) {
		t.Errorf("a removal that goes on: %v %v", again, err)
	}
}

// TestDamagedSettings: at the start they are an error; what was loaded stays.
func TestDamagedSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.servers()
	r.confirm(settings(nil))
	k := r.keep()
	path := filepath.Join(r.dir, "confirmed")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	r.NFT("", "flush", "ruleset")
	k.await("a problem", func(st Status) bool {
		return strings.Contains(st.Problem, "damaged") && st.Kept && st.Mended["table"] == 1
	})
	r.Want(appUser, r.at(2, 80), "out "+r.at(2, 80))
	k.stop()
	again := r.start("")
	if err := <-again.done; err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("%v", err)
	}
	r.Want(appUser, r.at(2, 80), "out "+r.at(2, 80))
	if err := os.Chmod(path, 0o602); err != nil {
		t.Fatal(err)
	}
	again = r.start("")
	if err := <-again.done; !errors.Is(err, durable.ErrUntrusted) {
		t.Errorf("%v", err)
	}
}

// TestForeignTables: a table of our name that is another program's is a problem that is named, and
// stays as it is.
func TestForeignTables(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.confirm(settings(nil))
	k := r.keep()
	r.NFT("flush ruleset\ntable inet fairlead {\n chain output {\n type filter hook output priority 0; policy accept;\n counter\n}\n}\n", "-f", "-")
	st := k.await("a problem", func(st Status) bool { return strings.Contains(st.Problem, "is not Fairlead's") })
	if st.Kept {
		t.Errorf("%+v", st)
	}
	before := r.ruleset()
	again := r.start("")
	if err := <-again.done; !errors.Is(err, capture.ErrForeign) {
		t.Error(err)
	}
	if after := r.ruleset(); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	r.NFT("", "delete", "table", "inet", capture.Table)
	k.await("kept", func(st Status) bool { return st.Kept && st.Problem == "" })
}
