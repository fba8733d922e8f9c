package svid_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
)

// silent is the address of a server that accepts and says nothing.
func silent(t *testing.T) (address string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// Who was not answered in time waits for longer the next time: a server that is
// late with all who come at once would never answer any of them.
func TestTimeoutGrows(t *testing.T) {
	t.Parallel()
	const first = 100 * time.Millisecond
	address := silent(t)
	client, err := svid.NewClient(svid.ClientConfig{Servers: []string{address}, Timeout: first})
	if err != nil {
		t.Fatal(err)
	}
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	token := svid.JoinToken{
		TrustDomain: spiffeid.RequireTrustDomainFromString("mesh.test"), Servers: []string{address}, Host: "web-1", Type: "sidecar", Pairs: []profile.Pair{{Namespace: "shop", ServiceAccount: "web"}},
	}
	for i, want := range []time.Duration{first, 2 * first, 4 * first, 6 * first, 6 * first} {
		began := time.Now()
		if _, err := client.Join(t.Context(), token, key); err == nil {
			t.Fatal("joined with nobody")
		}
		if got := time.Since(began); got < want {
			t.Errorf("request %d waited %s, want %s", i+1, got, want)
		}
	}
}
