package dns

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestReadUpstreams(t *testing.T) {
	t.Parallel()
	own := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53"), netip.MustParseAddrPort("127.0.0.1:15053")}
	const stub = "nameserver 192.0.2.53\n"
	for name, c := range map[string]struct{ conf, stub, want string }{
		"two":               {"# by hand\nsearch lab\nnameserver 192.0.2.1\nnameserver 2001:db8::1\noptions ndots:1\n", stub, "192.0.2.1:53 [2001:db8::1]:53"},
		"twice":             {"nameserver 192.0.2.1\nnameserver 192.0.2.1\n", stub, "192.0.2.1:53"},
		"mapped":            {"nameserver ::ffff:192.0.2.1\n", stub, "192.0.2.1:53"},
		"zone":              {"nameserver fe80::1%eth0\n", stub, "[fe80::1%eth0]:53"},
		"stub":              {"nameserver 127.0.0.53\noptions edns0 trust-ad\n", stub, "192.0.2.53:53"},
		"stub_and_another":  {"nameserver 127.0.0.53\nnameserver 192.0.2.1\n", stub, "192.0.2.53:53"},
		"stub_without_file": {"nameserver 127.0.0.53\n", "", "127.0.0.53:53"},
		"other_loopback":    {"nameserver 127.0.0.2\n", stub, "127.0.0.2:53"},
		"itself":            {"nameserver 127.0.0.1\n", stub, "names this server only"},
		"itself_and_other":  {"nameserver 127.0.0.1\nnameserver 192.0.2.1\n", stub, "192.0.2.1:53"},
		"any_is_loopback":   {"nameserver 0.0.0.0\n", stub, "names this server only"},
		"none":              {"search lab\n", stub, "names no nameserver"},
		"junk":              {"nameserver\nnameserver x\nnameserver 1.2.3\nNAMESERVER 192.0.2.1\nnameserver 224.0.0.1\n\x00\xff", stub, "names no nameserver"},
		"many":              {strings.Repeat("nameserver 192.0.2.1\n", 10) + lines(20), stub, "192.0.2.1:53 192.0.2.10:53 192.0.2.11:53 192.0.2.12:53 192.0.2.13:53 192.0.2.14:53 192.0.2.15:53 192.0.2.16:53"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			conf, behind := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "stub.conf")
			if err := os.WriteFile(conf, []byte(c.conf), 0o600); err != nil {
				t.Fatal(err)
			}
			if c.stub != "" {
				if err := os.WriteFile(behind, []byte(c.stub), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			list, _, err := readUpstreams(conf, behind, own)
			var words []string
			for _, a := range list {
				words = append(words, a.String())
			}
			got := strings.Join(words, " ")
			if err != nil {
				got = err.Error()
			}
			if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
	if _, _, err := readUpstreams(filepath.Join(t.TempDir(), "none"), "", nil); err == nil {
		t.Error("a file that does not exist has nameservers")
	}
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("nameserver 192.0.2.1" + string(rune('0'+i%10)) + "\n")
	}
	return b.String()
}

// TestResolvConfChanges: another resolv.conf counts without a restart, also behind a link; one that
// cannot be used changes nothing.
func TestResolvConfChanges(t *testing.T) {
	t.Parallel()
	s, _ := start(t, shop(t), "192.0.2.1")
	conf := s.c.ResolvConf
	are := func(want ...string) func() bool {
		return func() bool {
			var got []string
			for _, u := range s.Status().Upstreams {
				got = append(got, u.Address)
			}
			return slices.Equal(got, want)
		}
	}
	await(t, "the first", are("192.0.2.1"))
	write(t, conf, "192.0.2.2", "192.0.2.1")
	await(t, "the second", are("192.0.2.2", "192.0.2.1"))
	write(t, conf)
	await(t, "the problem", func() bool { return s.Status().Problem != "" })
	if !are("192.0.2.2", "192.0.2.1")() {
		t.Errorf("an empty file took the nameservers away: %+v", s.Status())
	}
	other := filepath.Join(t.TempDir(), "real.conf")
	write(t, other, "192.0.2.3")
	if err := os.Symlink(other, conf+".link"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(conf+".link", conf); err != nil {
		t.Fatal(err)
	}
	await(t, "a link", are("192.0.2.3"))
	write(t, other, "192.0.2.4")
	await(t, "behind the link", are("192.0.2.4"))
	if s.Status().Problem != "" {
		t.Errorf("status %+v", s.Status())
	}
}

func FuzzResolvConf(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nsearch lab\n"))
	f.Add([]byte("nameserver fe80::1%eth0\nnameserver ::ffff:1.2.3.4 x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, options := parseResolvConf(b)
		if d := options.rounds(max(len(list), 1)); len(d) == 0 || d[0] < time.Second || d[0] > maxTimeout {
			t.Errorf("waits %v", d)
		}
		if len(list) > maxNameservers {
			t.Errorf("%d nameservers", len(list))
		}
		for _, a := range list {
			if !a.IsValid() || a.Addr().IsUnspecified() || a.Addr().IsMulticast() {
				t.Errorf("%v", a)
			}
		}
	})
}
