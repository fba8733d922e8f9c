package peeraddr

import "testing"

func TestGroup(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"10.1.2.3:4":                   "10.1.2.3",
		"[::ffff:10.1.2.3]:4":          "10.1.2.3",
		"[2001:db8:1:2:3:4:5:6]:7":     "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:65535": "2001:db8:1:2::/64",
		"[fe80::1%eth0]:7":             "fe80::/64",
		"[::1]:7":                      "::1",
		"name:7":                       "name",
		"@":                            "@",
		"":                             "",
	} {
		if got := Group(address); got != want {
			t.Errorf("%q is counted as %q, want %q", address, got, want)
		}
	}
}
