package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// heartbeatInterval is the time between two heartbeats, and downInterval the time
	// while Consul does not answer.
	heartbeatInterval = time.Second
	downInterval      = 200 * time.Millisecond
	// heartbeatTimeout bounds a heartbeat. After silenceTimeout without any answer the
	// connections are closed.
	heartbeatTimeout = 2 * time.Second
	silenceTimeout   = 5 * time.Second
	// fastFor is how long heartbeats come with downInterval after another query failed.
	fastFor = 10 * time.Second
	// recoveryInterval bounds how often a recovery wakes those who back off.
	recoveryInterval = 250 * time.Millisecond
)

var errLeaderless = errors.New("it has no leader")

// generation is a time in which answers continue one another: one token, one leader,
// no outage. At its end, all queries restart.
type generation struct {
	number uint64
	ended  chan struct{} // closed at its end

	mu      sync.Mutex                     // guards the following field
	cancels map[*context.CancelFunc]func() // of what is asked in it; nil after its end
}

func newGeneration(number uint64) *generation {
	return &generation{number: number, ended: make(chan struct{}), cancels: map[*context.CancelFunc]func(){}}
}

func (t *generation) over() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// context returns a context that ends with the generation, too. It needs no goroutine:
// there may be very many. The func releases it.
func (t *generation) context(ctx context.Context) (context.Context, func()) {
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
func (t *generation) end() {
	t.mu.Lock()
	cancels := t.cancels
	t.cancels = nil
	close(t.ended) // before anything fails for it
	t.mu.Unlock()
	for _, cancel := range cancels {
		cancel()
	}
}

// currentGeneration is the present generation.
func (c *Client) currentGeneration() *generation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.generation
}

// Restart restarts all queries; each is answered at once.
func (c *Client) Restart() { c.restart(nil, func() {}) }

// restart restarts all queries of a generation, or of the present one, and reports whether
// they were not restarted yet. It calls note before any query is sent again; note must not
// block.
func (c *Client) restart(of *generation, note func()) bool {
	c.mu.Lock()
	old := c.generation
	if of != nil && of != old {
		c.mu.Unlock()
		return false
	}
	c.counts.restarts.Add(1)
	note()
	c.generation = newGeneration(old.number + 1)
	heal := c.recovered
	c.recovered = make(chan struct{})
	c.mu.Unlock()
	close(heal)
	old.end()
	return true
}

// recovery is closed when something that failed works again.
func (c *Client) recovery() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recovered
}

// noteRecovery wakes all who back off.
func (c *Client) noteRecovery() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.recoveredAt) > recoveryInterval {
		c.recoveredAt = now
		close(c.recovered)
		c.recovered = make(chan struct{})
	}
}

// checkNow asks for a heartbeat now.
func (c *Client) checkNow() {
	select {
	case c.check <- struct{}{}:
	default:
	}
}

// addFollower adds a follower; the first one starts the heartbeat and the watch for restored
// snapshots.
func (c *Client) addFollower(ctx context.Context) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followers++; c.followers > 1 {
		return
	}
	ctx, c.stopHeartbeat = context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	c.heartbeatDone = done
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		wg.Go(func() { (&restoreWatch{c: c}).run(ctx) })
		c.runHeartbeat(ctx)
		wg.Wait()
	}()
}

// removeFollower removes a follower; the last one ends the heartbeat and the
// connections.
func (c *Client) removeFollower() {
	c.mu.Lock()
	c.followers--
	last := c.followers == 0
	done := c.heartbeatDone
	if last {
		c.stopHeartbeat()
	}
	c.mu.Unlock()
	if last {
		<-done
		c.pool.drop()()
	}
}

// runHeartbeat asks every second who leads, and checks whether the token or the
// certificate is another one. It restarts queries that wait on a dead connection, or
// at a server that lost its leader.
func (c *Client) runHeartbeat(ctx context.Context) {
	p := &heartbeat{c: c}
	p.token, _ = c.token.current() // if there is none, asking says so
	for {
		now := time.Now()
		wait := p.beat(ctx, now)
		if now.Before(p.fastUntil) {
			wait = min(wait, jitter(downInterval))
		}
		select {
		case <-ctx.Done():
			return
		case <-c.check:
			p.fastUntil = time.Now().Add(fastFor)
		case <-time.After(wait):
		}
	}
}

// heartbeat is the state of runHeartbeat.
type heartbeat struct {
	c            *Client
	token        string
	leader       string
	idleClosedAt time.Time
	fastUntil    time.Time // when downInterval ends after a failure
	silentSince  time.Time // since when no heartbeat is answered, or zero
}

// beat asks for the leader once, and returns the time until the next heartbeat.
func (p *heartbeat) beat(ctx context.Context, now time.Time) time.Duration {
	c := p.c
	if now.Sub(p.idleClosedAt) > idleTimeout/4 {
		p.idleClosedAt = now
		c.pool.closeIdle(now)
	}
	renew := ""
	if token, err := c.token.current(); err == nil && token != p.token {
		p.token, renew = token, "another token"
	}
	if c.target.scheme == "https" {
		if _, changed, err := c.tls.current(); err == nil && changed {
			renew = "another certificate"
			defer c.pool.drop()() // after the restart
		}
	}
	leader, err := p.ask(ctx)
	switch {
	case ctx.Err() != nil:
		return heartbeatInterval
	case err != nil || leader == "":
		p.noAnswer(err, now)
		if renew != "" {
			c.Restart()
		}
		return jitter(downInterval)
	case c.down.Load():
		renew = "it answers again"
	case p.leader != "" && leader != p.leader:
		renew = "another leader"
	}
	c.down.Store(false)
	p.leader, p.silentSince = leader, time.Time{}
	if renew != "" {
		c.log.InfoContext(ctx, "restarting blocking queries", "reason", renew)
		c.Restart()
	}
	return jitter(heartbeatInterval)
}

func (p *heartbeat) ask(ctx context.Context) (leader string, err error) {
	ctx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	leader, err = p.c.api.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	return leader, Classify(err)
}

// noAnswer takes a heartbeat without an answer. A server that is only slow still
// answers something; one that refuses, or has no leader, does not.
func (p *heartbeat) noAnswer(err error, now time.Time) {
	c := p.c
	if p.silentSince.IsZero() {
		p.silentSince = now
	}
	if errors.Is(err, context.DeadlineExceeded) {
		heard := time.Unix(0, c.lastAnswer.Load())
		if now.Sub(heard) < silenceTimeout || now.Sub(p.silentSince) < silenceTimeout {
			return
		}
		c.pool.drop()() // packets are lost: what waits would wait for ever
		p.silentSince = now
	}
	if !c.down.Swap(true) {
		if err == nil {
			err = errLeaderless
		}
		c.log.Warn("Consul unreachable", "err", err)
	}
}
