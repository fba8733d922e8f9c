package attest_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/pki/attest"
)

func addressesOf(t *testing.T, texts ...string) (out []attest.Address) {
	t.Helper()
	for _, text := range texts {
		a, err := attest.ParseAddress(text)
		if err != nil || a.String() != text {
			t.Fatalf("%q is read as %q: %v", text, a, err)
		}
		out = append(out, a)
	}
	return out
}

// TestAddressesAsText: ADDRESS of any network, NETWORK/ADDRESS of one.
func TestAddressesAsText(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]attest.Address{
		"10.0.0.5":                             {IP: netip.MustParseAddr("10.0.0.5")},
		"::ffff:10.0.0.5":                      {IP: netip.MustParseAddr("10.0.0.5")},
		"net2/10.0.0.5":                        {IP: netip.MustParseAddr("10.0.0.5"), InNetwork: true, Network: "net2"},
		"a/b/2001:db8::5":                      {IP: netip.MustParseAddr("2001:db8::5"), InNetwork: true, Network: "a/b"},
		"/10.0.0.5":                            {IP: netip.MustParseAddr("10.0.0.5"), InNetwork: true},
		"":                                     {},
		"net2/":                                {},
		"10.0.0.0/24":                          {},
		"10.0.0.5:80":                          {},
		"fe80::1%eth0":                         {},
		"net2/0.0.0.0":                         {},
		"net2/224.0.0.1":                       {},
		"net 2/10.0.0.5":                       {},
		"net\x1b[2J/10.0.0.5":                  {},
		strings.Repeat("n", 300) + "/10.0.0.5": {},
	} {
		got, err := attest.ParseAddress(text)
		if got != want || (err == nil) != want.IP.IsValid() {
			t.Errorf("%q: %+v %v, want %+v", text, got, err, want)
		}
	}
}

// TestAddressesOfEarlierTokens: what is on disk from before networks could be named is
// read, and what is written without them is as it was.
func TestAddressesOfEarlierTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	e := open(t, dir, nil)
	secret, _, err := e.CreateToken(grant(false), 0, time.Now(), addressesOf(t, "10.0.0.5")...)
	if err != nil {
		t.Fatal(err)
	}
	h := join(t, e, secret, 1)
	file := filepath.Join(dir, "addresses", "host-web-1.json")
	binding, err := h.Binding.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	before := `{"binding":"` + string(binding) + `","addresses":["10.0.0.5"]}` + "\n"
	if got, err := os.ReadFile(file); err != nil || string(got) != before {
		t.Errorf("written: %s %v, want %s", got, err, before)
	}
	if list := open(t, dir, nil).List(); len(list) != 1 || !slices.Equal(list[0].Addresses, addressesOf(t, "10.0.0.5")) {
		t.Errorf("read: %+v", list)
	}
}

// TestAddressesOfATokenAreItsHosts: they go with the host's record, in files of their
// own, and with nothing else that has its name.
func TestAddressesOfATokenAreItsHosts(t *testing.T) {
	t.Parallel()
	dir, now := t.TempDir(), time.Now()
	want := addressesOf(t, "10.0.0.5", "2001:db8::5", "site-2/10.0.0.5", "/10.0.0.6")
	e := open(t, dir, nil)
	secret, _, err := e.CreateToken(grant(false), 0, now, want...)
	if err != nil {
		t.Fatal(err)
	}
	e = open(t, dir, nil) // between token and host the server restarts
	h := join(t, e, secret, 1)
	for _, again := range []bool{false, true} {
		if again {
			e = open(t, dir, nil)
		}
		got, _, ok := e.Find(h.Binding)
		if !ok || !slices.Equal(got.Addresses, want) {
			t.Errorf("after a restart %v: %v", again, got.Addresses)
		}
	}
	record, err := os.ReadFile(filepath.Join(dir, "hosts", "web-1.json"))
	if err != nil || strings.Contains(string(record), "10.0.0.5") {
		t.Errorf("the record of the host has another form than before: %s %v", record, err)
	}

	// Another machine gets the name by a token that names no address.
	next := join(t, e, token(t, e, grant(true), now), 2)
	if len(next.Addresses) != 0 {
		t.Errorf("the next machine has the addresses of the one before: %v", next.Addresses)
	}
	// A release that knows of no addresses gave the name to another machine.
	secret, _, err = e.CreateToken(grant(true), 0, now, want...)
	if err != nil {
		t.Fatal(err)
	}
	join(t, e, secret, 3)
	file := filepath.Join(dir, "addresses", "host-web-1.json")
	stale, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	join(t, e, token(t, e, grant(true), now), 4)
	if err := os.WriteFile(file, stale, 0o600); err != nil {
		t.Fatal(err)
	}
	if list := open(t, dir, nil).List(); len(list) != 1 || len(list[0].Addresses) != 0 {
		t.Errorf("a stale file counts: %+v", list)
	}

	// What is removed leaves no file, and tokens that are over leave none either.
	if err := e.Remove("web-1"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := e.CreateToken(grant(false), 0, now.Add(100*24*time.Hour), want[0]); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Join(dir, "addresses"))
	if err != nil || len(left) != 1 {
		t.Errorf("%d files are left, want that of one token: %v %v", len(left), left, err)
	}
	if _, _, err := e.CreateToken(grant(false), 0, now, make([]attest.Address, attest.MaxAddresses+1)...); err == nil {
		t.Error("a token may name any number of addresses")
	}
	if n := len(e.Tokens()); n != 1 {
		t.Errorf("%d tokens are kept", n)
	}
}
