package admin

import (
	"io"
	"net"
	"testing"
	"time"
)

// Connections that say nothing are bounded in number and time: whoever asks is
// answered all the same, a little later.
func TestSilentConnectionsGiveWay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("takes 5 seconds")
	}
	s, _ := start(t, Config{})
	began := time.Now()
	var d net.Dialer
	var silent []net.Conn
	for range maxConnections {
		c, err := d.DialContext(t.Context(), "tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		silent = append(silent, c)
	}
	if code, body := get(t, "http://"+s.Address()+"/healthz"); code != 200 {
		t.Errorf("%d: %s", code, body)
	}
	if took := time.Since(began); took < headerTime/2 {
		t.Errorf("answered after %s: more than %d connections are served at a time", took, maxConnections)
	}
	for _, c := range silent {
		if err := c.SetReadDeadline(time.Now().Add(6 * headerTime)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // it is what a closed connection gives
			t.Fatalf("a silent connection: %v", err)
		}
	}
}
