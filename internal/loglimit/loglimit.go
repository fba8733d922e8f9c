package loglimit

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Limiter allows a burst of lines, and then one more each interval. The zero value allows
// none. It must not be copied.
type Limiter struct {
	// Burst is how many lines may be written at once. Constant.
	Burst int
	// Every is the interval after which one more is allowed. Constant.
	Every time.Duration

	mu      sync.Mutex // guards all following fields
	bucket  bucket
	omitted int
}

// Allow reports whether a line may be written now, and how many were omitted since the
// last one.
func (l *Limiter) Allow(now time.Time) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bucket.take(now, l.Burst, l.Every) {
		l.omitted++
		return 0, false
	}
	omitted = l.omitted
	l.omitted = 0
	return omitted, true
}

// Omit counts lines that the caller omitted itself.
func (l *Limiter) Omit(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.omitted += n
}

// Omitted is how many lines were omitted since the last one that was allowed.
func (l *Limiter) Omitted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.omitted
}

// TakeOmitted is like [Limiter.Allow], but only if lines were omitted: it reports them
// even if nothing else is logged.
func (l *Limiter) TakeOmitted(now time.Time) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.omitted == 0 || !l.bucket.take(now, l.Burst, l.Every) {
		return 0, false
	}
	omitted = l.omitted
	l.omitted = 0
	return omitted, true
}

// Idle reports whether the Limiter can be replaced by a new one: it allows as much, and no
// omitted lines are unreported.
func (l *Limiter) Idle(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.omitted == 0 && l.bucket.full(now, l.Burst)
}

// maxKeys bounds the keys of a [ByKey]. Further keys share one allowance.
const maxKeys = 1024

// ByKey is a [Limiter] for each key, and one for all keys together. The zero value of its
// fields allows no line. It must not be copied.
type ByKey struct {
	// Each is the allowance of one key, All that of all keys. Constant.
	Each, All Allowance

	mu      sync.Mutex // guards all following fields
	all     bucket
	keys    map[string]*bucket
	others  bucket
	omitted int
}

// Allowance is a burst, and the interval after which one more is allowed.
type Allowance struct {
	Burst int
	Every time.Duration
}

// Allow is like [Limiter.Allow]. A line that its key does not allow takes nothing from the
// others. The number of omitted lines is over all keys.
func (l *ByKey) Allow(key string, now time.Time) (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.of(key, now).take(now, l.Each.Burst, l.Each.Every) || !l.all.take(now, l.All.Burst, l.All.Every) {
		l.omitted++
		return 0, false
	}
	omitted = l.omitted
	l.omitted = 0
	return omitted, true
}

// of returns the bucket of a key. Full buckets need not be kept.
func (l *ByKey) of(key string, now time.Time) *bucket {
	if b := l.keys[key]; b != nil {
		return b
	}
	if len(l.keys) >= maxKeys {
		for k, b := range l.keys {
			if b.full(now, l.Each.Burst) {
				delete(l.keys, k)
			}
		}
	}
	if len(l.keys) >= maxKeys {
		return &l.others
	}
	if l.keys == nil {
		l.keys = map[string]*bucket{}
	}
	b := &bucket{}
	l.keys[key] = b
	return b
}

// bucket is an allowance of which something may be taken. The zero value is full.
type bucket struct{ limiter *rate.Limiter }

func (b *bucket) take(now time.Time, burst int, every time.Duration) bool {
	if b.limiter == nil {
		limit := rate.Every(every)
		if every <= 0 {
			limit = 0 // what is taken does not come back
		}
		b.limiter = rate.NewLimiter(limit, burst)
	}
	return b.limiter.AllowN(now, 1)
}

func (b *bucket) full(now time.Time, burst int) bool {
	return b.limiter == nil || b.limiter.TokensAt(now) >= float64(burst)
}
