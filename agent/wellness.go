package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/agent/proxy"
)

// askEnvoyFor is how long Envoy may take to say how it is: a person waits for the answer, and the
// commands that ask the agent give up after seconds.
const askEnvoyFor = 1500 * time.Millisecond

// noConfiguration is so at each start.
const noConfiguration = "Envoy has no configuration yet"

// endsEnvoy is so at each replacement, and at the end.
const endsEnvoy = "Envoy is draining and ends connections: the agent stops or replaces it"

// notReadyError says in words for people why Envoy is not ready.
type notReadyError struct {
	text string
	err  error
}

func (e *notReadyError) Error() string { return e.text }
func (e *notReadyError) Unwrap() error { return e.err }

// explain finds out why Envoy's admin interface does not say that Envoy is live.
func (a *Agent) explain(err error) error {
	a.mu.Lock()
	process := a.proxy
	a.mu.Unlock()
	var status proxy.Status
	proc := 0
	if process != nil {
		status, proc = process.Status(), process.ProcID()
	}
	var text string
	state := &proxy.StateError{}
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		text = "the agent cannot open another file or connection" + descriptorLimit() + "; it cannot tell how Envoy is: raise LimitNOFILE (ulimit -n) and restart the agent, or end who keeps connections to it open"
	case process != nil && process.Ending():
		text = endsEnvoy
	case errors.As(err, &state) && state.State == "DRAINING":
		text = "Envoy is draining and ends connections, and not because of this agent: somebody told it to by its admin interface (/healthcheck/fail, /drain_listeners); restart the agent and its Envoy"
	case errors.As(err, &state):
		text = noConfiguration
	case errors.Is(err, proxy.ErrNoAdminSocket):
		text = "Envoy's admin socket does not exist, and Envoy has not connected to the agent: it starts, or the socket was removed; if this stays, restart the agent"
	case errors.Is(err, syscall.ECONNREFUSED):
		text = "Envoy does not listen at its admin interface: it has just ended, or another process made the socket anew; if this stays, restart the agent"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EAGAIN): // its queue of connections is full
		text = fmt.Sprintf("Envoy (process %d) does not answer%s", status.PID, hangs(proc, status.PID))
	case errors.Is(err, context.Canceled):
		return err
	default:
		text = "asking Envoy how it is: " + err.Error()
	}
	return &notReadyError{text: text, err: err}
}

// hangs says by the state of a process why it may not answer.
func hangs(proc, pid int) string {
	switch state, _ := proxy.ProcessState(proc); state {
	case "T", "t":
		return fmt.Sprintf(": it is stopped (by SIGSTOP, or a debugger) and serves nothing: `kill -CONT %d` lets it run, `kill -KILL %d` has it started anew", pid, pid)
	case "D":
		return ": it waits for a disk or for the kernel, or is frozen by its control group; `cat /proc/" + strconv.Itoa(pid) + "/wchan` (as root) says for what"
	case "R":
		return ": it is busy, or gets no CPU: check the load of the host and the CPU limit of the control group"
	default:
		return ": it is frozen or blocked; `kill -KILL " + strconv.Itoa(pid) + "` has it started anew"
	}
}

// descriptorLimit is how many descriptors this process may have.
func descriptorLimit() string {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return ""
	}
	return fmt.Sprintf(" (its limit is %d)", l.Cur)
}

// notRunning says why there is no Envoy.
func notRunning(s *Status) string {
	text := "Envoy is not running"
	switch {
	case s.Envoy.LastError != "":
		text += ": " + s.Envoy.LastError
	case s.Envoy.LastExit != "":
		text += ": its last exit was " + s.Envoy.LastExit + "; envoy.log says why"
	}
	return text
}

// overloadPeriod is how old what is known of Envoy's overload may be: Envoy looks through all of its
// statistics for an answer.
const overloadPeriod = 5 * time.Second

// overload keeps what Envoy said last of its limits.
type overload struct {
	mu   sync.Mutex // guards all following fields
	at   time.Time
	text string
}

// overloaded says what Envoy refuses because it is at a limit; empty if it refuses nothing.
func (a *Agent) overloaded(ctx context.Context) string {
	a.mu.Lock()
	admin, limits := a.admin, a.envoyLimits
	a.mu.Unlock()
	if admin == nil {
		return ""
	}
	o := &a.overload
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.at) >= overloadPeriod {
		ctx, cancel := context.WithTimeout(ctx, askEnvoyFor)
		defer cancel()
		b, err := admin.Get(ctx, "/stats?type=Gauges&filter="+`^(overload\.|server\.total_connections$)`)
		if err != nil {
			return "" // that it does not answer is said elsewhere
		}
		o.at, o.text = time.Now(), overloadText(string(b), limits.MaxHeap, limits.MaxConnections)
	}
	return o.text
}

// overloadText reads Envoy's statistics.
func overloadText(stats string, maxHeap uint64, maxConnections int64) string {
	value := func(name string) int64 {
		for line := range strings.Lines(stats) {
			if is, text, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && is == name {
				n, err := strconv.ParseInt(text, 10, 64)
				if err == nil {
					return n
				}
			}
		}
		return 0
	}
	const actions = "overload.envoy.overload_actions."
	heap := fmt.Sprintf("it uses nearly all of the %d MiB that it may have: raise --envoy-max-heap-mib, or give the host more memory", maxHeap>>20)
	switch {
	case value(actions+"stop_accepting_connections.active") > 0:
		return "Envoy refuses new connections: " + heap
	case value(actions+"stop_accepting_requests.active") > 0:
		return "Envoy answers new requests with 503: " + heap
	case maxConnections > 0 && value("server.total_connections") >= maxConnections:
		return fmt.Sprintf("Envoy closes new connections: it has the %d that it may have: raise --envoy-max-connections, or find out who keeps them open", maxConnections)
	}
	return ""
}

// hostProblems are what the control plane should know of this host, because requests fail or will. What
// it knows otherwise is not among them: the credentials in files, and which listeners Envoy rejects. That
// the workload's own certificate has expired, it learns only here.
func (a *Agent) hostProblems(ctx context.Context) (out []string) {
	if a.stopping.Load() {
		return nil
	}
	s := a.Status()
	for _, why := range a.NotReady(ctx) {
		switch {
		case why == noConfiguration, why == endsEnvoy, strings.HasPrefix(why, "no identity yet"): // a start, or an end
		case s.Relay != nil && s.Relay.Unserved != "" && strings.HasPrefix(why, s.Relay.Unserved): // the relay reports it
		default:
			out = append(out, why)
		}
	}
	out = append(out, s.SocketProblems...)
	for _, u := range s.Unsaved {
		why := u.Err // its file names differ each time
		if at := strings.LastIndex(why, ": "); at >= 0 {
			why = why[at+2:]
		}
		out = append(out, fmt.Sprintf("%s could not be saved (in use; lost by a restart): %s; free space on the disk of %s, or correct its rights", filepath.Base(u.Path), why, filepath.Dir(u.Path)))
	}
	return out
}
