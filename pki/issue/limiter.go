package issue

import (
	"sync"
	"time"
)

// By default a peer may ask 20 times a second, and 200 times at once: a fleet
// behind one address that joins together is not held up, and a key pair a
// request is still more work for the sender than a signature is for us.
const (
	defaultRate  = 20
	defaultBurst = 200
	// maxBuckets bounds the memory that unauthenticated peers can take.
	maxBuckets = 16_384
)

// limiter counts requests by peer, in token buckets.
type limiter struct {
	rate  float64
	burst float64

	mu      sync.Mutex // guards buckets
	buckets map[string]bucket
}

type bucket struct {
	left float64
	at   time.Time
}

func newLimiter(rate float64, burst int) *limiter {
	if rate <= 0 {
		rate = defaultRate
	}
	if burst <= 0 {
		burst = defaultBurst
	}
	return &limiter{rate: rate, burst: float64(burst), buckets: map[string]bucket{}}
}

func (l *limiter) allow(key string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := l.buckets[key]
	if !ok {
		if len(l.buckets) >= maxBuckets && !l.sweep(now) {
			return false
		}
		b = bucket{left: l.burst, at: now}
	}
	b = l.fill(b, now)
	ok = b.left >= 1
	if ok {
		b.left--
	}
	l.buckets[key] = b
	return ok
}

// charge takes more of a peer that has been allowed something.
func (l *limiter) charge(key string, cost float64, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b, ok := l.buckets[key]; ok {
		b = l.fill(b, now)
		b.left = max(-l.burst, b.left-cost)
		l.buckets[key] = b
	}
}

func (l *limiter) fill(b bucket, now time.Time) bucket {
	if d := now.Sub(b.at); d > 0 {
		b.left = min(l.burst, b.left+d.Seconds()*l.rate)
	}
	b.at = now
	return b
}

// sweep forgets the peers that have been quiet long enough to have all of their
// burst again, which changes nothing for them. It says whether there were any.
func (l *limiter) sweep(now time.Time) bool {
	for key, b := range l.buckets {
		if l.fill(b, now).left >= l.burst {
			delete(l.buckets, key)
		}
	}
	return len(l.buckets) < maxBuckets
}
