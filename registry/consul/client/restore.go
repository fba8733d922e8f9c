package client

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// restoreWatches is how many queries wait for a restored snapshot at the same time: one
	// is at Consul while another one is sent again.
	restoreWatches = 2
	// restoreWait is how long one of them waits. It is short, so a proxy or Consul's
	// max_query_time does not end it earlier, and so an index that is lower is seen soon.
	restoreWait = 8 * time.Second
	// restoreHeld is the least time after which the end of a query before its time is
	// evidence: a proxy that does not hold queries answers sooner.
	restoreHeld = time.Second
	// restoreIndex is an index that Consul never reaches.
	restoreIndex = math.MaxInt64
	// restoresInRow bounds the restarts while no query is held for its whole time: then
	// something else ends them.
	restoresInRow = 3
	// restorePause is the pause after a query that failed or was not held.
	restorePause = 5 * time.Second
	// leaderOnly is how long no stale answers are used after a restart: Consul's followers
	// get the snapshot after the leader.
	leaderOnly = time.Minute
	// noNode is a node that does not exist.
	noNode = "fairlead.io-none"
)

// restoreWatch notices that Consul's state was replaced by that of a snapshot.
//
// Consul ends all blocking queries then, with the answers that they had before. Whoever
// asks again with the index of such an answer waits until its time is over: all tables have
// the snapshot's indexes, and Consul answers when the index is higher. So there are queries
// with an index that is never reached. Consul answers these after their time, or when the
// state that they read is not used any more.
type restoreWatch struct {
	c *Client

	mu     sync.Mutex // guards all following fields
	inRow  int        // restarts since a query was held for its whole time
	gaveUp bool       // that there are too many is logged
}

// run waits for restored snapshots until ctx is done.
func (w *restoreWatch) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i := range restoreWatches {
		wg.Go(func() {
			if sleep(ctx, time.Duration(i)*restoreWait/restoreWatches, nil) != nil {
				return
			}
			w.repeat(ctx)
		})
	}
	wg.Wait()
}

// repeat asks again and again.
func (w *restoreWatch) repeat(ctx context.Context) {
	var (
		last    uint64 // the index of the latest answer
		of      *generation
		suspect bool // the latest one came at once: it is evidence if the next one is held
	)
	for ctx.Err() == nil {
		gen, began := w.c.currentGeneration(), time.Now()
		if gen != of {
			of, last, suspect = gen, 0, false
		}
		evidence := suspect
		held := time.AfterFunc(restoreHeld, func() {
			if evidence {
				w.restored(ctx, gen)
			}
		})
		index, err := w.ask(ctx, gen)
		atOnce, took := held.Stop(), time.Since(began)
		switch {
		case gen.over():
		case err == nil && (index < last || !atOnce && took < restoreWait):
			w.restored(ctx, gen)
		case err != nil, evidence && atOnce:
			_ = sleep(ctx, jitter(restorePause), gen.ended) // the loop looks at ctx
		case !atOnce:
			w.onTime()
		}
		suspect = atOnce && err == nil && !evidence
		if err == nil {
			last = index
		}
	}
}

// ask sends one query. It counts as none of the client's: Consul's checks of a node that does
// not exist cost it nothing, and the index is that of all checks.
func (w *restoreWatch) ask(ctx context.Context, gen *generation) (uint64, error) {
	ctx, leave := gen.context(ctx)
	defer leave()
	ctx, cancel := context.WithTimeout(context.WithValue(ctx, bodyKey{}, readTimeout), restoreWait+restoreWait/8+readTimeout)
	defer cancel()
	_, m, err := w.c.api.Health().Node(noNode, (&api.QueryOptions{WaitIndex: restoreIndex, WaitTime: restoreWait}).WithContext(ctx))
	if err != nil {
		return 0, Classify(err)
	}
	return m.LastIndex, nil
}

// onTime notes that a query was held for its whole time.
func (w *restoreWatch) onTime() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inRow, w.gaveUp = 0, false
}

// restored restarts all queries of a generation, unless this was done already.
func (w *restoreWatch) restored(ctx context.Context, gen *generation) {
	w.mu.Lock()
	if gen.over() || ctx.Err() != nil {
		w.mu.Unlock()
		return
	}
	w.inRow++
	over, logged := w.inRow > restoresInRow, w.gaveUp
	w.gaveUp = over
	w.mu.Unlock()
	if over {
		if !logged {
			w.c.log.WarnContext(ctx, "blocking queries end early: a snapshot that Consul restores may be noticed late",
				"waited_for", restoreWait.String())
		}
		return
	}
	again := w.c.restart(gen, func() {
		w.c.counts.restores.Add(1)
		w.c.leaderOnly.Store(time.Now().Add(leaderOnly).UnixNano())
	})
	if !again {
		return
	}
	w.c.log.WarnContext(ctx, "Consul restored a snapshot: restarting blocking queries and reading all again", "restores", w.c.counts.restores.Load())
}
