package relay

import (
	"context"
	"crypto/tls"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
)

// Times of the network between this host and its servers.
const (
	// lookEvery is how often a host that waits with its next try looks whether a server can be
	// reached, and lookTime how long it takes at most. A look is one TCP handshake: ten thousand
	// hosts send ten thousand packets a second to a server that is away.
	lookEvery = time.Second
	lookTime  = time.Second
	// returnSpread is the time over which hosts spread that see together that the network is
	// back.
	returnSpread = 4 * time.Second
)

// lostAfter is when the kernel asks whether the other end of an idle connection is there, and how
// often: a server that lost its power is found after six to ten seconds, as gRPC sets the kernel's
// limit for unanswered data to the timeout of its pings. The kernel answers, so a server that is
// busy is not lost.
func lostAfter() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 3 * time.Second, Interval: time.Second, Count: 3}
}

// network is what a host knows of the way to its servers.
type network struct {
	// dial opens a connection; nil means that of package net.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// lost means that no server could be reached at the last look.
	lost bool
}

// rest waits for d. It returns sooner, and reports true, if a server can be reached after none
// could: then the cause of the failures before is probably gone. Hosts that see that together
// return at different times. A server that can be reached all the time and fails is not tried
// more often than its back-off says.
func (n *network) rest(ctx context.Context, d time.Duration, servers []string) (returned bool) {
	if d < lookEvery && !n.lost {
		sleep(ctx, d)
		return false
	}
	all := ctx
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for {
		up := n.look(ctx, servers)
		switch {
		case ctx.Err() != nil:
			return false
		case up && n.lost:
			n.lost = false
			return sleep(all, rand.N(returnSpread)) //nolint:gosec // spreads load
		}
		n.lost = !up
		if !sleep(ctx, lookEvery/2+rand.N(lookEvery)) { //nolint:gosec // spreads load
			return false
		}
	}
}

// look reports whether one of the servers accepts connections, as soon as one does: a server that
// is away does not answer, and must not delay a host that another can serve.
func (n *network) look(ctx context.Context, servers []string) bool {
	dial := n.dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	up := make(chan bool, len(servers))
	for _, s := range servers {
		go func() {
			c, err := dial(ctx, "tcp", s)
			if err == nil {
				_ = c.Close()
			}
			up <- err == nil
		}()
	}
	for range servers {
		if <-up {
			return true
		}
	}
	return false
}

// watched are TLS credentials for connections on which the kernel asks whether the other end is
// there.
type watched struct {
	credentials.TransportCredentials
}

func watchedTLS(c *tls.Config) credentials.TransportCredentials {
	return watched{credentials.NewTLS(c)}
}

// ClientHandshake implements [credentials.TransportCredentials].
func (w watched) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if c, ok := raw.(interface {
		SetKeepAliveConfig(c net.KeepAliveConfig) error
	}); ok {
		_ = c.SetKeepAliveConfig(lostAfter()) // else gRPC's pings find out
	}
	return w.TransportCredentials.ClientHandshake(ctx, authority, raw)
}

// Clone implements [credentials.TransportCredentials].
func (w watched) Clone() credentials.TransportCredentials {
	return watched{w.TransportCredentials.Clone()}
}
