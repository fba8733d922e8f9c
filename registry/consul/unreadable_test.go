package consul

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/consul/client"
)

var errBroken = fmt.Errorf("%w: status 500: broken", client.ErrUnavailable)

// failFrom has a service refused until a time, every second, while others are
// answered.
func (l *loop) failFrom(t *testing.T, from, to float64, name string, others ...string) {
	t.Helper()
	for s := from; s < to; s++ {
		l.started(task{name: name})
		l.wasRead(task{name: name}, &reading{name: name, err: errBroken}, at(s))
		for _, other := range others {
			l.wasRead(task{name: other}, l.answer(other, client.Meta{Generation: 2, Index: 200 + uint64(s), Fresh: true, Asked: at(s)}, "n1"), at(s+0.5))
		}
		l.step(t.Context(), at(s+0.6))
	}
}

// readyLoop makes a loop that knows everything but its services.
func readyLoop(t *testing.T) *loop {
	t.Helper()
	l := newTestLoop(t, t.TempDir(), "")
	l.defaultsKnown, l.proxyKnown = true, true
	return l
}

// TestUnreadableServiceDelaysNoOther: others wait for it for a while only, and what it
// had stays; when it can be read again, it is.
func TestUnreadableServiceDelaysNoOther(t *testing.T) {
	t.Parallel()
	l := readyLoop(t)
	l.listedNow(client.Meta{Generation: 1, Index: 10}, at(0), "api", "web", "db")
	for _, name := range []string{"api", "web", "db"} {
		l.wasRead(task{name: name}, l.answer(name, client.Meta{Generation: 1, Index: 100, Fresh: true, Asked: at(0)}, "n1", "n2"), at(0))
	}
	l.watchesOutdated = false
	l.step(t.Context(), at(0))
	l.listedNow(client.Meta{Generation: 2, Index: 10, Fresh: true, Asked: at(1)}, at(1), "api", "web", "db")
	l.watchesOutdated = false
	l.failFrom(t, 1, 6, "api", "web", "db")
	l.expectInstances(t, "web", 2)
	if l.live {
		t.Error("it is live while a service has just failed")
	}
	l.failFrom(t, 6, 14, "api", "web", "db")
	l.expectInstances(t, "web", 1)
	l.expectInstances(t, "db", 1)
	l.expectInstances(t, "api", 2)
	l.publishStatus(at(15))
	if st := l.s.Status(); !l.live || len(st.Unreadable) != 1 || !strings.Contains(st.Unreadable[0], `"api"`) {
		t.Errorf("live %t, unreadable %q", l.live, st.Unreadable)
	}
	l.failFrom(t, 15, 16, "api")
	if l.services["api"].wanted != readNone {
		t.Error("it is asked for all the time")
	}
	// Another list changes nothing.
	l.listedNow(client.Meta{Generation: 2, Index: 20, Asked: at(15)}, at(16), "api", "web", "db")
	l.watchesOutdated = false
	l.step(t.Context(), at(17))
	if !l.live {
		t.Error("it is waited for again")
	}
	l.step(t.Context(), at(30))
	if l.services["api"].wanted != readFull {
		t.Error("it is not asked for again")
	}
	l.wasRead(task{name: "api"}, l.answer("api", client.Meta{Generation: 2, Index: 300, Fresh: true, Asked: at(30)}, "n1"), at(31))
	l.step(t.Context(), at(31.1))
	l.step(t.Context(), at(33))
	l.expectInstances(t, "api", 1)
	if l.publishStatus(at(34)); len(l.s.Status().Unreadable) != 0 {
		t.Errorf("unreadable %q", l.s.Status().Unreadable)
	}
}

// TestOutageIsNotServiceFault: where nothing is answered, everything waits.
func TestOutageIsNotServiceFault(t *testing.T) {
	t.Parallel()
	l := readyLoop(t)
	l.listedNow(client.Meta{Generation: 2, Index: 10}, at(0), "api", "web")
	l.watchesOutdated = false
	for s := range 60 {
		for _, name := range []string{"api", "web"} {
			l.wasRead(task{name: name}, &reading{name: name, err: errBroken}, at(float64(s)))
		}
		l.step(t.Context(), at(float64(s)+0.5))
	}
	if l.live || l.delivered || len(l.stale) != 2 {
		t.Errorf("live %t, delivered %t, %d are waited for", l.live, l.delivered, len(l.stale))
	}
}

// TestRefusedFilterDeliversNothing: a filter that Consul does not take is reported,
// with its flag, and is no empty catalog.
func TestRefusedFilterDeliversNothing(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"filter":  fmt.Errorf("%w: status 500: Failed to create boolean expression evaluator: 1:6", client.ErrFilter),
		"refused": errors.New("asking Consul: status 400: bad request"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := readyLoop(t)
			var out strings.Builder
			l.s.log = slog.New(slog.NewTextHandler(&out, nil))
			l.listedNow(client.Meta{Generation: 1, Index: 10}, at(0), "api", "web")
			l.watchesOutdated = false
			for s := range 30 {
				for _, service := range []string{"api", "web"} {
					l.wasRead(task{name: service}, &reading{name: service, err: err}, at(float64(s)))
				}
				l.step(t.Context(), at(float64(s)+0.5))
			}
			l.publishStatus(at(31))
			st := l.s.Status()
			if l.live || l.delivered || l.out != nil || st.State != Starting {
				t.Errorf("live %t, delivered %t, sent %t, state %s", l.live, l.delivered, l.out != nil, st.State)
			}
			want, lines := "--consul-filter", 1
			if name == "refused" {
				want, lines = "status 400", 0
			}
			if !strings.Contains(st.Reason, want) {
				t.Errorf("the reason is %q", st.Reason)
			}
			if got := strings.Count(out.String(), "--consul-filter"); got != lines {
				t.Errorf("the log names the flag %d times: %s", got, out.String())
			}
		})
	}
}
