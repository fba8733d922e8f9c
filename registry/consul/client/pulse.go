package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// beat is how often the pulse looks, and downBeat how often while nothing
	// answers.
	beat     = time.Second
	downBeat = 200 * time.Millisecond
	// beatFor is how long it waits for an answer, and silence how long nothing at
	// all may have answered before the connections are given up.
	beatFor = 2 * time.Second
	silence = 5 * time.Second
	// hurryFor is for how long the pulse looks more often after a failure that it
	// did not see itself.
	hurryFor = 10 * time.Second
	// healEvery bounds how often all who wait are woken.
	healEvery = 250 * time.Millisecond
)

var errLeaderless = errors.New("it has no leader")

// turn is a time in which answers continue one another: one token, one leader, no
// outage. When it ends, restarting blocking queries.
type turn struct {
	number uint64
	ended  chan struct{} // closed at its end

	mu      sync.Mutex                     // guards the following field
	cancels map[*context.CancelFunc]func() // of what is asked in it; nil after its end
}

func newTurn(number uint64) *turn {
	return &turn{number: number, ended: make(chan struct{}), cancels: map[*context.CancelFunc]func(){}}
}

func (t *turn) over() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// with returns a context that ends with the turn, too. It needs no goroutine:
// there may be very many. The func gives it up.
func (t *turn) with(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancels == nil {
		cancel()
		return ctx, cancel
	}
	t.cancels[&cancel] = cancel
	return ctx, func() {
		t.mu.Lock()
		delete(t.cancels, &cancel)
		t.mu.Unlock()
		cancel()
	}
}

// end ends it, and whatever is asked in it.
func (t *turn) end() {
	t.mu.Lock()
	cancels := t.cancels
	t.cancels = nil
	close(t.ended) // before anything fails for it
	t.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
}

// present is the turn of now.
func (c *Client) present() *turn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.turn
}

// Renew has everything that is followed asked anew, and answered at once.
func (c *Client) Renew() {
	c.counts.turns.Add(1)
	c.mu.Lock()
	old := c.turn
	c.turn = newTurn(old.number + 1)
	heal := c.heal
	c.heal = make(chan struct{})
	c.mu.Unlock()
	close(heal)
	old.end()
}

// healing is closed when something that failed works again.
func (c *Client) healing() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heal
}

// works wakes all who wait after a failure.
func (c *Client) works() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.healed) > healEvery {
		c.healed = now
		close(c.heal)
		c.heal = make(chan struct{})
	}
}

// look asks the pulse to look now.
func (c *Client) look() {
	select {
	case c.probe <- struct{}{}:
	default:
	}
}

// join counts a follower; the first one starts the pulse.
func (c *Client) join(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followers++; c.followers > 1 {
		return
	}
	ctx, c.stopPulse = context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	c.pulseDone = done
	go func() {
		defer close(done)
		c.pulse(ctx)
	}()
}

// leave counts a follower less; the last one ends the pulse and the connections.
func (c *Client) leave() {
	c.mu.Lock()
	c.followers--
	last := c.followers == 0
	done := c.pulseDone
	if last {
		c.stopPulse()
	}
	c.mu.Unlock()
	if last {
		<-done
		c.pool.drop()()
	}
}

// pulse looks every second whether Consul answers, who leads, and whether the
// token or the certificate is another one. It is what tells all questions that
// wait on a connection that is dead, or at a server that lost its leader, to be
// asked anew.
func (c *Client) pulse(ctx context.Context) {
	p := &pulse{c: c}
	p.token, _ = c.token.current() // if there is none, asking says so
	for {
		now := time.Now()
		wait := p.beat(ctx, now)
		if now.Before(p.hurry) {
			wait = min(wait, jitter(downBeat))
		}
		select {
		case <-ctx.Done():
			return
		case <-c.probe:
			p.hurry = time.Now().Add(hurryFor)
		case <-time.After(wait):
		}
	}
}

// pulse is the state of the goroutine of that name.
type pulse struct {
	c      *Client
	token  string
	leader string
	tidied time.Time
	hurry  time.Time // until when it looks more often
	began  time.Time // of the present silence, or zero
}

// beat looks once, and returns when to look again.
func (p *pulse) beat(ctx context.Context, now time.Time) time.Duration {
	c := p.c
	if now.Sub(p.tidied) > idleTimeout/4 {
		p.tidied = now
		c.pool.closeIdle(now)
	}
	renew := ""
	if token, err := c.token.current(); err == nil && token != p.token {
		p.token, renew = token, "another token"
	}
	if c.at.scheme == "https" {
		if _, changed, err := c.tls.current(); err == nil && changed {
			renew = "another certificate"
			defer c.pool.drop()() // after its questions were asked anew
		}
	}
	leader, err := p.ask(ctx)
	switch {
	case ctx.Err() != nil:
		return beat
	case err != nil || leader == "":
		p.silent(err, now)
		if renew != "" {
			c.Renew()
		}
		return jitter(downBeat)
	case c.down.Load():
		renew = "it answers again"
	case p.leader != "" && leader != p.leader:
		renew = "another leader"
	}
	c.down.Store(false)
	p.leader, p.began = leader, time.Time{}
	if renew != "" {
		c.log.InfoContext(ctx, "restarting blocking queries", "reason", renew)
		c.Renew()
	}
	return jitter(beat)
}

func (p *pulse) ask(ctx context.Context) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, beatFor)
	defer cancel()
	leader, err = p.c.api.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	return leader, Classify(err)
}

// silent judges that the pulse got no answer. A server that is only slow still
// answers something; one that refuses, or has no leader, does not.
func (p *pulse) silent(err error, now time.Time) {
	c := p.c
	if p.began.IsZero() {
		p.began = now
	}
	if errors.Is(err, context.DeadlineExceeded) {
		heard := time.Unix(0, c.heard.Load())
		if now.Sub(heard) < silence || now.Sub(p.began) < silence {
			return
		}
		c.pool.drop()() // packets are lost: what waits would wait for ever
		p.began = now
	}
	if !c.down.Swap(true) {
		if err == nil {
			err = errLeaderless
		}
		c.log.Warn("Consul unreachable", "err", err)
	}
}
