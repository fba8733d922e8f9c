package capture

import (
	"net"
	"testing"
)

// TestListener: the kernel says whose the socket is that gets connections to 127.0.0.1, also beside
// one of another user for IPv6 alone, and one at another address.
func TestListener(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	const a, b = 21001, 21002
	listen := func(uid int, network, at string) {
		t.Helper()
		h.As(uid, func() {
			var lc net.ListenConfig
			l, err := lc.Listen(t.Context(), network, at)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = l.Close() })
		})
	}
	listen(b, "tcp6", "[::]:15001") // for IPv6 alone
	listen(a, "tcp4", "0.0.0.0:15001")
	listen(a, "tcp", ":15011") // for both
	listen(a, "tcp4", "127.0.0.1:15053")
	listen(b, "tcp6", "[::1]:15053")
	listen(b, "tcp4", "127.0.0.9:15054")
	for port, want := range map[uint16]uint32{15001: a, 15011: a, 15053: a, 15054: 0, 15006: 0} {
		if uid, ok, err := h.kernel().Listener(port); err != nil || uid != want || ok != (want != 0) {
			t.Errorf("port %d: user %d, %v, %v, want %d", port, uid, ok, err, want)
		}
	}
}
