package issue

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// By default a peer may ask 20 times a second, and 200 times at once: a fleet
// behind one address that joins together is not held up, and a key pair a
// request is still more work for the sender than a signature is for us.
const (
	defaultRate  = 20
	defaultBurst = 200
	// maxPeers bounds the memory that unauthenticated peers can take.
	maxPeers = 16_384
)

// limiter counts requests by peer.
type limiter struct {
	rate  rate.Limit
	burst int

	mu    sync.Mutex // guards peers
	peers map[string]*rate.Limiter
}

func newLimiter(perSecond float64, burst int) *limiter {
	if perSecond <= 0 {
		perSecond = defaultRate
	}
	if burst <= 0 {
		burst = defaultBurst
	}
	return &limiter{rate: rate.Limit(perSecond), burst: burst, peers: map[string]*rate.Limiter{}}
}

func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.peers[key]
	if p == nil {
		if len(l.peers) >= maxPeers && !l.sweep(now) {
			return false
		}
		p = rate.NewLimiter(l.rate, l.burst)
		l.peers[key] = p
	}
	return p.AllowN(now, 1)
}

// charge takes more of a peer that has been allowed something, up to a debt of its
// burst.
func (l *limiter) charge(key string, cost int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.peers[key]; p != nil {
		cost = min(cost, l.burst, l.burst+int(p.TokensAt(now)))
		p.ReserveN(now, max(0, cost))
	}
}

// sweep forgets the peers that have been quiet long enough to have all of their
// burst again, which changes nothing for them. It says whether there were any.
func (l *limiter) sweep(now time.Time) bool {
	for key, p := range l.peers {
		if p.TokensAt(now) >= float64(l.burst) {
			delete(l.peers, key)
		}
	}
	return len(l.peers) < maxPeers
}
