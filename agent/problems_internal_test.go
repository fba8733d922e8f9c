package agent

import (
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/agent/collectors"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// exampleOf has an argument for each verb of the texts.
func exampleOf(kind problemKind, text string) problem {
	t := problemTexts()[kind]
	p := problemOf(kind)
	for i := 1; ; i++ {
		verb := regexp.MustCompile(`%\[` + string(rune('0'+i)) + `\]([ds])`).FindStringSubmatch(t.says + t.cure)
		switch {
		case verb == nil:
			return p
		case verb[1] == "d":
			p.args = append(p.args, 4711)
		default:
			p.args = append(p.args, text)
		}
	}
}

// TestEachProblemHasACure: each text says what is wrong and what to do, in the report, too, which has a
// limit. Those that say nothing of what to do are not reported by this way, with the reason.
func TestEachProblemHasACure(t *testing.T) {
	t.Parallel()
	seen := map[string]problemKind{}
	for kind, text := range problemTexts() {
		kind := problemKind(kind)
		if text.says == "" || text.cure == "" && text.elsewhere == "" {
			t.Errorf("problem %d (%q) has no words, or no cure", kind, text.says)
		}
		p := exampleOf(kind, strings.Repeat("ä", 500))
		var report bootstrap.Credentials
		report.SetProblems([]string{p.forControlPlane()})
		is, cure := report.Problems[0], p.forControlPlane()
		if cure = cure[len(cure)-min(len(cure), 30):]; text.elsewhere == "" && (!strings.HasSuffix(is, cure) || !strings.Contains(is, "; ")) {
			t.Errorf("the report lacks the cure: %q", is)
		}
		if strings.Contains(is+p.String(), "%!") {
			t.Errorf("arguments of %q: %q", text.says, is)
		}
		if other, twice := seen[p.same()]; twice {
			t.Errorf("problems %d and %d cannot be told apart", kind, other)
		}
		seen[p.same()] = kind
	}
	for _, l := range []collectors.Losses{{Unanswered: 1}, {Failed: 1}} {
		for _, text := range (collectors.Status{Collectors: []collectors.Collector{{Name: "otel:4317", Failing: &l}}}).Problems() {
			if !strings.Contains(text, ". Find out ") && !strings.Contains(text, ". Look whether ") {
				t.Errorf("%q has no cure", text)
			}
		}
	}
}

// TestLimitIsAskedOnlyWhereThereIsOne: without a limit, Envoy is not asked at all, and with
// one at most once in a while.
func TestLimitIsAskedOnlyWhereThereIsOne(t *testing.T) {
	t.Parallel()
	limits := bootstrap.Limits{MaxHeap: 1 << 30, MaxConnections: 10}
	for stats, want := range map[string]string{
		"overload.envoy.overload_actions.stop_accepting_connections.active: 1\n": "Envoy refuses new connections: it uses nearly all of the 1024 MiB that it may have; raise --envoy-max-heap-mib",
		"overload.envoy.overload_actions.stop_accepting_requests.active: 1\n":    "Envoy answers new requests with 503",
		"overload.envoy.overload_actions.stop_accepting_connections.active: 0\n": "",
		"server.total_connections: 9\n":                                          "",
		"server.total_connections: 10\n":                                         "Envoy closes new connections: it has the 10 that it may have; raise --envoy-max-connections",
	} {
		got := strings.Join(asTexts(overloadOf(stats, limits)), "\n")
		if !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%q: %q, want %q", stats, got, want)
		}
	}
	var asked atomic.Int32
	envoy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = io.WriteString(w, "server.total_connections: 10\n")
	}))
	defer envoy.Close()
	a := &Agent{admin: proxy.NewAdmin("tcp", envoy.Listener.Addr().String())}
	if got := a.overloaded(t.Context()); len(got) > 0 || asked.Load() > 0 {
		t.Errorf("without a limit, Envoy was asked %d times: %v", asked.Load(), got)
	}
	a.envoyLimits = limits
	for range 3 {
		if got := a.overloaded(t.Context()); len(got) != 1 || got[0].kind != connectionsClosed || asked.Load() != 1 {
			t.Errorf("with a limit, Envoy was asked %d times: %v", asked.Load(), got)
		}
	}
}
