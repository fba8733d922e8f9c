package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// askEnvoyFor is how long Envoy may take to say how it is: a person waits for the answer, and the
// commands that ask the agent give up after seconds.
const askEnvoyFor = 1500 * time.Millisecond

// notReadyError says in words for people why Envoy is not ready.
type notReadyError struct {
	problem problem
	err     error
}

func (e *notReadyError) Error() string { return e.problem.String() }
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
	var p problem
	state := &proxy.StateError{}
	switch {
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		p = problemOf(noDescriptors, descriptorLimit())
	case process != nil && process.Ending():
		p = problemOf(endsEnvoy)
	case errors.As(err, &state) && state.State == "DRAINING":
		p = problemOf(drainedByOthers)
	case errors.As(err, &state):
		p = problemOf(noConfiguration)
	case errors.Is(err, proxy.ErrNoAdminSocket):
		p = problemOf(noAdminSocket)
	case errors.Is(err, syscall.ECONNREFUSED):
		p = problemOf(adminSocketRefuses)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, syscall.EAGAIN): // its queue of connections is full
		p = problemOf(hangs(proc), status.PID)
	case errors.Is(err, context.Canceled):
		return err
	default:
		p = problemOf(envoyUnknown, err.Error())
	}
	return &notReadyError{problem: p, err: err}
}

// hangs says by the state of a process why it may not answer.
func hangs(proc int) problemKind {
	switch state, _ := proxy.ProcessState(proc); state {
	case "T", "t":
		return envoyStopped
	case "D":
		return envoyWaits
	case "R":
		return envoyBusy
	default:
		return envoyFrozen
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
func notRunning(s *Status) problem {
	switch {
	case s.Envoy.LastError != "":
		return problemOf(envoyCannotStart, s.Envoy.LastError)
	case s.Envoy.LastExit != "":
		return problemOf(envoyExited, s.Envoy.LastExit)
	default:
		return problemOf(envoyStarts)
	}
}

// overloadPeriod is how old what is known of Envoy's overload may be: Envoy looks through all of its
// statistics for an answer. A limit is reported after two readings in a row, so within half a minute.
const overloadPeriod = 10 * time.Second

// overload keeps what Envoy said last of its limits.
type overload struct {
	mu       sync.Mutex // guards all following fields
	at       time.Time
	problems []problem // one at most
}

// set takes a reading. The second one in a row with the same limit has lasted: it is no moment's load.
func (o *overload) set(problems []problem, now time.Time) {
	for i := range problems {
		problems[i].lasted = slices.ContainsFunc(o.problems, func(p problem) bool { return p.kind == problems[i].kind })
	}
	o.at, o.problems = now, problems
}

// overloaded says what Envoy refuses because it is at a limit; nothing if it refuses nothing, or has no
// limit.
func (a *Agent) overloaded(ctx context.Context) []problem {
	a.mu.Lock()
	admin, limits := a.admin, a.envoyLimits
	a.mu.Unlock()
	if admin == nil || limits.MaxHeap == 0 && limits.MaxConnections <= 0 {
		return nil
	}
	o := &a.overload
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.at) >= overloadPeriod {
		ctx, cancel := context.WithTimeout(ctx, askEnvoyFor)
		defer cancel()
		b, err := admin.Get(ctx, "/stats?type=Gauges&filter="+`^(overload\.|server\.total_connections$)`)
		if err != nil {
			return nil // that it does not answer is said elsewhere
		}
		o.set(overloadOf(string(b), limits), time.Now())
	}
	return slices.Clone(o.problems)
}

// overloadOf reads Envoy's statistics.
func overloadOf(stats string, limits bootstrap.Limits) []problem {
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
	switch {
	case value(actions+"stop_accepting_connections.active") > 0:
		return []problem{problemOf(connectionsRefused, limits.MaxHeap/mebibyte)}
	case value(actions+"stop_accepting_requests.active") > 0:
		return []problem{problemOf(requestsRefused, limits.MaxHeap/mebibyte)}
	case limits.MaxConnections > 0 && value("server.total_connections") >= limits.MaxConnections:
		return []problem{problemOf(connectionsClosed, limits.MaxConnections)}
	}
	return nil
}

// hostProblems are what the control plane should know of this host, because requests fail or will. What
// it knows otherwise is not among them: the credentials in files, and which listeners Envoy rejects. That
// the workload's own certificate has expired, it learns only here.
func (a *Agent) hostProblems(ctx context.Context) (out []problem) {
	if a.stopping.Load() {
		return nil
	}
	texts := problemTexts()
	s := a.Status()
	for _, p := range append(a.notReady(ctx), s.socketProblems...) {
		if texts[p.kind].elsewhere == "" {
			out = append(out, p)
		}
	}
	for _, u := range s.Unsaved {
		why := u.Err // its file names differ each time
		if at := strings.LastIndex(why, ": "); at >= 0 {
			why = why[at+2:]
		}
		out = append(out, problemOf(fileUnsaved, filepath.Base(u.Path), why, filepath.Dir(u.Path)))
	}
	return out
}
