package localaddr

import "testing"

func TestLocalAddresses(t *testing.T) {
	t.Parallel()
	for text, local := range map[string]bool{
		"127.0.0.1": true, "127.8.9.10": true, "::1": true, "::ffff:127.0.0.1": true, "0.0.0.0": true, "0.0.0.1": true, "::": true,
		"169.254.169.254": true, "169.254.0.1": true, "::ffff:169.254.169.254": true, "fe80::1": true, "fe80::1%eth0": true, "::1%lo": true,
		"fd00:ec2::254": true, "fd00:ec2::254%eth0": true, "fd20:ce::254": true, "168.63.129.16": true, "100.100.100.200": true, "192.0.0.192": true,
		"fd20:ce:1::1": true, "fd00:c1::a9fe:a9fe": true, "fd00:42::42": true, "2001:4860::5efe:127.0.0.1": true, "2001:4860::200:5efe:169.254.169.254": true,
		"64:ff9b::7f00:1": true, "64:ff9b::a9fe:a9fe": true, "64:ff9b:1::a9fe:a9fe": true, "2002:7f00:1::1": true,
		"localhost": true, "LocalHost.": true, "localhost.localdomain": true, "localhost4": true, "ip6-loopback": true, "web.localhost": true,
		"metadata.google.internal": true, "metadata": true, "127.1": true, "2130706433": true, "0x7f000001": true, "127.0.0.0x1": true,

		"10.0.0.1": false, "192.168.1.1": false, "203.0.113.1": false, "128.0.0.1": false, "169.253.1.1": false, "2001:db8::1": false, "fd00::1": false,
		"64:ff9b::a00:1": false, "2002:a00:1::1": false, "2001:4860::5efe:10.0.0.1": false, "orders": false, "orders.shop.internal": false, "localhosts.internal": false, "mylocalhost": false,
		"metadata.shop.internal": false, "": false, "unix:///run/a.sock": false, "a.1b": false,
	} {
		if what := What(text); (what != "") != local {
			t.Errorf("%q: %q", text, what)
		}
	}
}
