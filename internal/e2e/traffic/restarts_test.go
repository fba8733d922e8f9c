package traffic

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// flushInterval is how often Envoy hands over what it has counted: histograms, and, at least as
// often, entries of access logs.
const flushInterval = 5 * time.Second

// pace is the time between two requests of a steady load.
const pace = 10 * time.Millisecond

// steady asks back through the client's Envoy until it is stopped.
type steady struct {
	stop func()

	mu       sync.Mutex
	answered []time.Time
	// broken had no answer, so that Envoy may have counted them or not.
	broken int
}

func (r *row) steady() *steady {
	s := &steady{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		ticker := time.NewTicker(pace)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-stop:
				return
			}
			err := r.once()
			s.mu.Lock()
			if err != nil {
				s.broken++
			} else {
				s.answered = append(s.answered, time.Now())
			}
			s.mu.Unlock()
		}
	})
	s.stop = sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	r.t.Cleanup(s.stop)
	return s
}

// between is the number of answers in a time.
func (s *steady) between(from, to time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, at := range s.answered {
		if !at.Before(from) && !at.After(to) {
			n++
		}
	}
	return n
}

// more waits for so many further answers.
func (s *steady) more(t *testing.T, n int) {
	t.Helper()
	from := time.Now()
	envoytest.Eventually(t, 2*envoytest.Patience, func() error {
		if now := s.between(from, time.Now()); now < n {
			return fmt.Errorf("%d of %d requests are answered", now, n)
		}
		return nil
	})
}

// once asks back through the client's Envoy; any answer will do.
func (r *row) once() error {
	_, err := r.get(r.t.Context(), r.at(11, 9080), "retried.shop.internal", "/known")
	return err
}

// ask has so many requests answered.
func (r *row) ask(n int) {
	r.t.Helper()
	for range n {
		if err := r.once(); err != nil {
			r.t.Fatal(err)
		}
	}
}

// awaitWay waits until the client's Envoy takes requests.
func (r *row) awaitWay() {
	r.t.Helper()
	settle(r.t, func() error {
		code, err := r.get(r.t.Context(), r.at(11, 9080), "retried.shop.internal", "/known")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("status %d", code)
		}
		return err
	})
}

// byClient is the sum of a metric of the client.
func (r *row) byClient(metric string, labels ...string) (float64, error) {
	samples, err := r.Metrics(11)
	if err != nil {
		return 0, err
	}
	if len(samples.Matching("envoy_server_live")) == 0 {
		return 0, errors.New("the page does not have Envoy's part")
	}
	return samples.Sum(metric, labels...), nil
}

const requestsOf = "istio_requests_total"

// still is the number of requests that the client has counted, once it does not change any more.
func (r *row) still() float64 {
	r.t.Helper()
	last, began := -1.0, time.Now()
	envoytest.Eventually(r.t, 2*envoytest.Patience, func() error {
		now, err := r.byClient(requestsOf)
		if err != nil {
			return err
		}
		if now != last {
			last, began = now, time.Now()
		}
		if time.Since(began) < quiet {
			return errors.New("it is not quiet yet")
		}
		return nil
	})
	return last
}

// awaitCounted waits until the client has counted exactly n requests more than before, in all
// metrics of them.
func (r *row) awaitCounted(before map[string]float64, n int64) {
	r.t.Helper()
	for metric, was := range before {
		envoytest.Eventually(r.t, envoytest.Patience, func() error {
			now, err := r.byClient(metric)
			if err == nil && now-was != float64(n) {
				err = fmt.Errorf("%s: %v requests are counted, want %d", metric, now-was, n)
			}
			return err
		})
	}
}

// lost checks how often counts may have been lost.
func (r *row) lost(envoy, agent float64) {
	r.t.Helper()
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		const metric = "fairlead_agent_request_counter_losses_total"
		byEnvoy, err := r.byClient(metric, "process", "envoy")
		if err != nil {
			return err
		}
		if byAgent, err := r.byClient(metric, "process", "agent"); err != nil || byEnvoy != envoy || byAgent != agent {
			return fmt.Errorf("losses: envoy %v, agent %v, want %v, %v: %w", byEnvoy, byAgent, envoy, agent, err)
		}
		return nil
	})
}

// startClient starts the client's agent, with further arguments, after it has ended.
func (r *row) startClient(args ...string) {
	r.t.Helper()
	h := r.hosts[0]
	h.Agent = append(append([]string{}, h.Agent...), args...)
	r.clientAgent = r.StartAgent(h, "")
}

// unread is more requests than a flush interval of a steady load has: who does not read Envoy
// before it ends misses more than the interval allows.
const unread = int(2 * flushInterval / pace)

// TestRestartsCountOn: a planned restart of an agent, with its Envoy or beside it, misses at most
// what Envoy counts between two flushes, and nothing that was counted before. When Envoy or the
// agent is killed, what was not read or not published is missing, and no more; the agent counts
// that, and says since when, and goes on with this number whoever is killed.
func TestRestartsCountOn(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := startRow(t, version)
			r.plannedQuiet()
			r.plannedUnderLoad()
			r.plannedBesideEnvoy()
			r.lost(0, 0)
			r.plannedReplaced(version)
			r.killedEnvoy()
			r.lost(1, 0)
			r.killedAgent(version)
			r.lost(1, 1)
			r.clientAgent.Stop()
			r.startClient("--leave-running")
			r.lost(1, 1)
		})
	}
}

// plannedQuiet: what was counted before a restart of agent and Envoy stays, in all metrics, and
// what comes after it is added.
func (r *row) plannedQuiet() {
	r.t.Helper()
	r.rest()
	before, asked := map[string]float64{}, r.asked.Load()
	for _, metric := range []string{requestsOf, "istio_request_duration_milliseconds_count", "istio_request_bytes_count", "istio_response_bytes_count"} {
		n, err := r.byClient(metric)
		if err != nil {
			r.t.Fatal(err)
		}
		before[metric] = n
	}
	r.ask(30)
	r.awaitCounted(before, 30)
	r.clientAgent.Stop()
	r.startClient()
	r.awaitWay()
	r.ask(20)
	r.awaitCounted(before, r.asked.Load()-asked)
}

// plannedUnderLoad: nobody reads the page for longer than a flush interval, and agent and Envoy are
// restarted. At most the answers of the last interval are missing.
func (r *row) plannedUnderLoad() {
	r.t.Helper()
	before, asked := r.still(), r.asked.Load()
	load := r.steady()
	load.more(r.t, unread)
	r.clientAgent.Stop()
	ended := time.Now()
	r.startClient("--leave-running")
	r.awaitWay()
	load.more(r.t, 10)
	load.stop()
	missing := float64(r.asked.Load()-asked) - (r.still() - before)
	last := ended
	for _, at := range load.answered {
		if at.Before(ended) {
			last = at // of the Envoy that was stopped
		}
	}
	if most := load.between(last.Add(-flushInterval), last); missing > float64(most) || missing < -float64(load.broken) {
		r.t.Errorf("a restart of agent and Envoy: %v requests are missing, want at most %d, and at least -%d", missing, most, load.broken)
	}
}

// plannedBesideEnvoy: the agent is restarted, and Envoy serves on. It goes on to count, so that
// nothing is missing; where the agent counts the entries of its access log, what comes meanwhile is
// in the overflow series.
func (r *row) plannedBesideEnvoy() {
	r.t.Helper()
	envoy := r.EnvoyPID("client")
	before, asked := r.still(), r.asked.Load()
	load := r.steady()
	load.more(r.t, 50)
	r.clientAgent.Stop()
	load.more(r.t, 50)
	r.startClient("--leave-running")
	r.lost(0, 0) // it serves its page
	load.more(r.t, 50)
	load.stop()
	if load.broken != 0 {
		r.t.Errorf("a restart of the agent beside its Envoy: %d requests had no answer", load.broken)
	}
	r.awaitCounted(map[string]float64{requestsOf: before}, r.asked.Load()-asked)
	if n := r.still() - before; n != float64(r.asked.Load()-asked) {
		r.t.Errorf("a restart of the agent beside its Envoy: %v requests are counted in the end, want %d", n, r.asked.Load()-asked)
	}
	if now := r.EnvoyPID("client"); now != envoy {
		r.t.Errorf("Envoy is process %d, was %d", now, envoy)
	}
}

// plannedReplaced: an agent replaces an Envoy that was left running, because its bootstrap differs,
// as after an upgrade. What that Envoy has counted since is not lost. An Envoy that does not count
// by itself has nobody who gets its entries meanwhile.
func (r *row) plannedReplaced(version string) {
	r.t.Helper()
	const meanwhile = 40
	envoy := r.EnvoyPID("client")
	before, asked := r.still(), r.asked.Load()
	r.clientAgent.Stop()
	r.ask(meanwhile)
	r.startClient("--envoy-include-stats", "listener_manager.lds")
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		if now := r.EnvoyPID("client"); now == envoy || now == 0 {
			return errors.New("Envoy was not replaced")
		}
		return nil
	})
	r.awaitWay()
	r.ask(10)
	missing := float64(r.asked.Load()-asked) - (r.still() - before)
	if most := map[bool]float64{true: meanwhile}[version == envoytest.Oldest]; missing < 0 || missing > most {
		r.t.Errorf("an Envoy was replaced: %v requests are missing, want at most %v", missing, most)
	}
	r.lost(0, 0)
	r.clientAgent.Stop()
	r.startClient("--leave-running")
	r.awaitWay()
}

// killedEnvoy: what the agent has read stays, and what it has not is missing at most.
func (r *row) killedEnvoy() {
	r.t.Helper()
	const notRead = 40
	before, asked := r.still(), r.asked.Load()
	r.ask(notRead)
	envoy := r.EnvoyPID("client")
	if err := syscall.Kill(envoy, syscall.SIGKILL); err != nil {
		r.t.Fatal(err)
	}
	envoytest.Eventually(r.t, envoytest.Patience, func() error {
		if now := r.EnvoyPID("client"); now == envoy || now == 0 {
			return errors.New("Envoy is not back")
		}
		return nil
	})
	r.awaitWay()
	r.ask(20)
	if missing := float64(r.asked.Load()-asked) - (r.still() - before); missing < 0 || missing > notRead {
		r.t.Errorf("Envoy was killed: %v requests are missing, want at most %d", missing, notRead)
	}
	if log := r.clientAgent.Log(); strings.Count(log, "Envoy ended without a last reading") != 1 || !strings.Contains(log, "since=") {
		r.t.Errorf("the agent does not say once since when counts are missing:\n%s", log)
	}
}

// killedAgent: counters begin with 0, so that Prometheus adds what comes to what it has. What was
// counted between the last page and the first of the next agent is missing, and no more.
func (r *row) killedAgent(version string) {
	r.t.Helper()
	const notPublished, meanwhile, after = 20, 15, 30
	r.still()
	r.ask(notPublished)
	r.clientAgent.Kill()
	r.ask(meanwhile)
	r.startClient("--leave-running")
	r.lost(1, 1) // its first page: from now on it counts
	begun := r.still()
	if begun > notPublished+meanwhile || version != envoytest.Oldest && begun != 0 {
		r.t.Errorf("the next agent begins with %v requests", begun)
	}
	r.ask(after)
	if now := r.still(); now-begun != after {
		r.t.Errorf("%v requests are counted after the agent was killed, want %d", now-begun, after)
	}
	if log := r.clientAgent.Log(); strings.Count(log, "the agent before this one did not save its counters") != 1 || !strings.Contains(log, "since=") {
		r.t.Errorf("the agent does not say once since when counts are missing:\n%s", log)
	}
}
