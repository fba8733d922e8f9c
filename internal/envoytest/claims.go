package envoytest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// claim takes a name until the test ends. It reports false if another test on this machine has
// it, of this process or another one. The kernel gives the name back when a process ends.
func claim(tb testing.TB, name string) bool {
	tb.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(tb.Context(), "unix", "@fairlead-test-"+name) // an abstract socket: no file
	if err != nil {
		return false
	}
	tb.Cleanup(func() { _ = l.Close() })
	return true
}

// Loopback is the beginning of a block of loopback addresses, such as "127.16.3.", that no
// other test uses until this one ends. Its second byte is between first and last.
func Loopback(tb testing.TB, first, last int) string {
	tb.Helper()
	for range 10_000 {
		prefix := fmt.Sprintf("127.%d.%d.", first+rand.N(last-first+1), rand.N(256))
		if claim(tb, prefix) {
			return prefix
		}
	}
	tb.Fatalf("all blocks from 127.%d.0. to 127.%d.255. are in use", first, last)
	return ""
}

// FreePorts are TCP ports of 127.0.0.1 that nobody listened on a moment ago, and that no other
// test gets until this one ends. The kernel gives none of them to a connection meanwhile: they
// are below those that it takes for that (ip_local_port_range).
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries > 100*n {
			tb.Fatalf("%d free ports were not found", n)
		}
		port := 20_000 + rand.N(12_000)
		var lc net.ListenConfig
		l, err := lc.Listen(tb.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		_ = l.Close()
		if claim(tb, strconv.Itoa(port)) {
			ports = append(ports, port)
		}
	}
	return ports
}
