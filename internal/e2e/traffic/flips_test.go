package traffic

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// The load of a flip: so many clients with one connection each, and so many requests a second of
// each. A machine that is too slow sends fewer.
const (
	flipClients = 5
	flipRate    = 100
)

// flipGrace is how long after the acknowledgement a request may meet the rules from before.
const flipGrace = 100 * time.Millisecond

// flip is a state of echo's policies.
type flip struct {
	name   string
	policy string // its spec; empty means that there is none
	action string
	refuse []string // paths
}

// flipPaths are the paths of the load. Every state allows the first.
func flipPaths() []string { return []string{"/ok", "/a", "/b"} }

func flips() []flip {
	paths := func(list string) string { return "[{to: [{operation: {paths: [" + list + "]}}]}]" }
	return []flip{
		{name: "first-deny", action: "DENY", policy: paths("/a"), refuse: []string{"/a"}},
		{name: "more-deny", action: "DENY", policy: paths("/a, /b"), refuse: []string{"/a", "/b"}},
		{name: "other-deny", action: "DENY", policy: paths("/b"), refuse: []string{"/b"}},
		{name: "last-deny"},
		{name: "first-allow", action: "ALLOW", policy: paths("/ok, /b"), refuse: []string{"/a"}},
		{name: "less-allow", action: "ALLOW", policy: paths("/ok"), refuse: []string{"/a", "/b"}},
		{name: "more-allow", action: "ALLOW", policy: paths("/ok, /a, /b")},
		{name: "allow-to-deny", action: "DENY", policy: paths("/a"), refuse: []string{"/a"}},
		{name: "deny-to-allow", action: "ALLOW", policy: paths("/ok"), refuse: []string{"/a", "/b"}},
		{name: "allow-to-deny-again", action: "DENY", policy: paths("/a, /b"), refuse: []string{"/a", "/b"}},
		{name: "deny-to-custom", action: "CUSTOM", policy: paths("/a"), refuse: []string{"/a"}},
		{name: "custom-to-deny", action: "DENY", policy: paths("/a"), refuse: []string{"/a"}},
		{name: "deny-to-custom-again", action: "CUSTOM", policy: paths("/a, /b"), refuse: []string{"/a", "/b"}},
		{name: "custom-to-allow", action: "ALLOW", policy: paths("/ok"), refuse: []string{"/a", "/b"}},
		{name: "allow-to-custom", action: "CUSTOM", policy: paths("/a"), refuse: []string{"/a"}},
		{name: "last"},
	}
}

func (f flip) manifest() string {
	if f.policy == "" {
		return "# none\n"
	}
	provider := ""
	if f.action == "CUSTOM" {
		provider = ", provider: {name: nobody}" // which cannot be asked, and denies
	}
	return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + f.name + ", namespace: shop}\n" +
		"spec: {selector: {matchLabels: {app: echo}}, action: " + f.action + provider + ", rules: " + f.policy + "}\n"
}

// flipStep is a state, with when it was written and when the product's status said that the proxy
// had acknowledged it; zero means not yet.
type flipStep struct {
	flip
	written, acknowledged time.Time
}

// flipAnswer is a request and what became of it.
type flipAnswer struct {
	path         string
	sent, answer time.Time
	code         int // 0 means that it failed, with err
	err          error
}

// flipLoad is a load on kept connections.
type flipLoad struct {
	wg   sync.WaitGroup
	stop chan struct{}

	mu      sync.Mutex // guards all following fields
	answers []flipAnswer
}

func startFlipLoad(t *testing.T, target string) *flipLoad {
	t.Helper()
	l := &flipLoad{stop: make(chan struct{})}
	for i := range flipClients {
		client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}, Timeout: patience}
		l.wg.Go(func() {
			defer client.CloseIdleConnections()
			tick := time.NewTicker(time.Second / flipRate)
			defer tick.Stop()
			for n := i; ; n++ {
				select {
				case <-l.stop:
					return
				case <-tick.C:
				}
				a := flipAsk(t, client, target, flipPaths()[n%len(flipPaths())])
				l.mu.Lock()
				l.answers = append(l.answers, a)
				l.mu.Unlock()
			}
		})
	}
	return l
}

func flipAsk(t *testing.T, client *http.Client, target, path string) flipAnswer {
	t.Helper()
	a := flipAnswer{path: path, sent: time.Now()}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+target+path, http.NoBody)
	if err != nil {
		t.Error(err)
		return a
	}
	req.Host = echoHost
	res, err := client.Do(req)
	if err == nil {
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	if a.answer, a.err = time.Now(), err; err == nil {
		a.code = res.StatusCode
	}
	return a
}

// after waits for so many requests for each path that were sent after a time.
func (l *flipLoad) after(t *testing.T, since time.Time, n int) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, path := range flipPaths() {
			have := 0
			for _, a := range slices.Backward(l.answers) {
				if a.path == path && a.sent.After(since) {
					have++
				}
			}
			if have < n {
				return fmt.Errorf("%d requests for %s", have, path)
			}
		}
		return nil
	})
}

func (l *flipLoad) end() []flipAnswer {
	close(l.stop)
	l.wg.Wait()
	return l.answers
}

// acknowledges waits until the product says that echo's Envoy has accepted the rules of a state, and
// no others.
func (p *pair) acknowledges(t *testing.T, f flip) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		body, err := p.Admin("server", "/v1/config/echo.shop?type=extension")
		if err != nil {
			return err
		}
		var list []sentResource
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			return err
		}
		var have []string
		for _, r := range list {
			if !r.Accepted {
				return fmt.Errorf("%s is not accepted", r.Name)
			}
			for _, other := range flips() {
				if strings.Contains(string(r.Resource), "policy["+other.name+"]") {
					have = append(have, other.name)
				}
			}
		}
		var want []string
		if f.policy != "" {
			want = append(want, f.name)
		}
		if len(list) == 0 || !slices.Equal(slices.Compact(have), want) {
			return fmt.Errorf("%d extensions, with %q", len(list), have)
		}
		return nil
	})
}

// TestPolicyFlips changes the policies of a workload under 500 requests a second on kept
// connections, with each release of Envoy: its first policy and its last, of each action, and from
// one action to another; then again after a restart of agent and Envoy without a server. No request
// that the rules refuse is answered 100 ms after the proxy has acknowledged them, and none that both
// the rules and those from before allow fails; what both refuse is never answered.
func TestPolicyFlips(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			p.echoH.Agent = append(p.echoH.Agent, "--envoy", envoytest.BinaryVersion(t, version))
			p.StartServer()
			p.StartApp(meshtest.Host{Name: "http", App: []string{"--protocol", "http"}})
			_, agent := p.StartHost(p.echoH)
			p.AwaitLive("echo")
			target := p.at(12, 9080)
			awaitFlip(t, target, http.StatusOK)
			p.flipAll(t, target)

			refusing := flips()[0]
			p.Write("authz.yaml", refusing.manifest())
			p.acknowledges(t, refusing)
			p.Server.Kill()
			agent.Kill()
			agent = p.StartAgent(p.echoH, "")
			agent.Eventually(envoytest.Patience, func() error {
				a := flipAsk(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}, target, "/a")
				if a.code == http.StatusOK {
					t.Error("a request was answered before the rules were there")
				}
				if a.code != http.StatusForbidden {
					return fmt.Errorf("answered with %d, %w", a.code, a.err)
				}
				return nil
			})
			awaitFlip(t, target, http.StatusOK)
			p.StartServer()
			p.AwaitLive("echo")
			p.flipAll(t, target)
		})
	}
}

// awaitFlip waits until the path that all states allow is answered.
func awaitFlip(t *testing.T, target string, code int) {
	t.Helper()
	envoytest.Eventually(t, envoytest.Patience, func() error {
		a := flipAsk(t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}, target, flipPaths()[0])
		if a.code != code {
			return fmt.Errorf("answered with %d, %w", a.code, a.err)
		}
		return nil
	})
}

// flipAll goes through all states, from that of no policy, and judges the answers.
func (p *pair) flipAll(t *testing.T, target string) {
	t.Helper()
	p.Write("authz.yaml", "# none\n")
	p.acknowledges(t, flip{})
	// What the rules from before refuse is answered from here on: nothing is asked of it.
	steps := []*flipStep{{written: time.Now(), acknowledged: time.Now()}}
	load := startFlipLoad(t, target)
	for _, f := range flips() {
		s := &flipStep{flip: f, written: time.Now()}
		p.Write("authz.yaml", f.manifest())
		p.acknowledges(t, f)
		s.acknowledged = time.Now()
		steps = append(steps, s)
		load.after(t, s.acknowledged.Add(flipGrace), 10)
	}
	judgeFlips(t, steps, load.end())
}

// judgeFlips compares each answer with the states that were, or may have been, in force.
func judgeFlips(t *testing.T, steps []*flipStep, answers []flipAnswer) {
	t.Helper()
	counts := map[string]int{}
	for _, a := range answers {
		// possible are the states that may have decided: those written before the answer, and not
		// replaced before the request was sent by one that had been acknowledged.
		var possible []*flipStep
		for i, s := range steps {
			replaced := i+1 < len(steps) && !a.sent.Before(steps[i+1].acknowledged.Add(flipGrace))
			if !replaced && !a.answer.Before(s.written) {
				possible = append(possible, s)
			}
		}
		refuse := 0
		for _, s := range possible {
			if slices.Contains(s.refuse, a.path) {
				refuse++
			}
		}
		last := possible[len(possible)-1].name
		counts[fmt.Sprint(a.path, " ", a.code)]++
		switch {
		case refuse == 0 && a.code != http.StatusOK:
			t.Errorf("%s: %s is allowed, and answered with %d, %v", last, a.path, a.code, a.err)
		case refuse == len(possible) && a.code != http.StatusForbidden:
			t.Errorf("%s: %s is refused, and answered with %d, %v, %s after the acknowledgement", last, a.path, a.code, a.err, a.sent.Sub(possible[len(possible)-1].acknowledged))
		}
	}
	t.Logf("answers: %v", counts)
}
