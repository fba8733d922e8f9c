package faults

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

const cutMesh = `apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: web, namespace: shop}
spec: {address: 127.0.0.11, labels: {app: web}, serviceAccount: web}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  ingress: [{port: {number: 8080, name: http, protocol: HTTP}, bind: 127.0.0.11, defaultEndpoint: "127.0.0.1:18080"}]
`

// cutPolicies refuse /one and /two, each by a policy of its own, and all that the third does not allow.
const cutPolicies = `# Who may ask web – and who may not.
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: one, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  action: DENY
  rules: [{to: [{operation: {paths: [/one]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: known, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  action: ALLOW
  rules: [{to: [{operation: {paths: [/, /one, /two]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: two, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  action: DENY
  rules: [{to: [{operation: {paths: [/two]}}]}]
`

// deniedPaths are refused by the policies of cutPolicies, each by another one.
func deniedPaths() []string { return []string{"/one", "/two", "/unknown"} }

// cuts is a host whose policies are in a file that is cut off.
type cuts struct {
	*meshtest.Mesh
	t      *testing.T
	host   meshtest.Host
	agent  *meshtest.Process
	client *http.Client
	url    string
	answer atomic.Int64 // requests of the load that were denied
}

// TestFileIsCutOff cuts a file of policies off at 50 bytes, one after the other, and restarts the server behind each
// cut: no request is answered that a policy of the file denies.
func TestFileIsCutOff(t *testing.T) {
	for name, c := range map[string]struct {
		content string
		// sizes are how much is left of the file.
		sizes []int
	}{
		"with_the_mark":    {cutPolicies + "...\n", spread(50, func(int) bool { return true })},
		"without_the_mark": {cutPolicies, spread(12, func(n int) bool { return n > 0 && cutPolicies[n-1] != '\n' })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			together <- struct{}{}
			t.Cleanup(func() { <-together })
			s := &cuts{
				Mesh: meshtest.New(t, "", map[string]int{"web": 18080}), t: t,
				host:   meshtest.Host{Name: "web", Workload: "shop/web", Address: 11, App: []string{}, Agent: []string{"--drain-time", "1s"}},
				client: &http.Client{Timeout: envoytest.Patience},
			}
			t.Cleanup(s.client.CloseIdleConnections)
			s.url = "http://" + s.Address(11) + ":8080"
			s.cutOff(c.content, c.sizes)
		})
	}
}

// spread chooses so many sizes, evenly, of all that a part of the policies, and of the mark, may have.
func spread(n int, may func(size int) bool) []int {
	var all, out []int
	for size := range len(cutPolicies) + len("...") {
		if size >= len(cutPolicies) && n < 50 || !may(size) {
			continue
		}
		all = append(all, size)
	}
	for i := range n {
		out = append(out, all[i*(len(all)-1)/(n-1)])
	}
	return out
}

func (s *cuts) cutOff(content string, sizes []int) {
	s.t.Helper()
	s.Write("web.yaml", cutMesh)
	s.Write("policies.yaml", content)
	s.startServer()
	_, s.agent = s.StartHost(s.host)
	s.AwaitLive("web")
	s.asks("before any cut")
	load := meshtest.StartLoad(s.t, 20, s.deniedNext())
	path := filepath.Join(s.ConfigDir, "policies.yaml")
	for i, size := range sizes {
		if err := os.Truncate(path, int64(size)); err != nil {
			s.t.Fatal(err)
		}
		at := fmt.Sprintf("cut %d, %d bytes are left", i, size)
		s.awaitFault(at, true)
		s.asks(at)
		stop, restart := s.Server.Kill, (*meshtest.Process).Kill
		if i%2 == 1 {
			stop = s.Server.Stop
		}
		stop()
		if i%10 == 4 {
			if i%20 == 4 {
				restart = (*meshtest.Process).Stop // which ends Envoy, too
			}
			restart(s.agent)
			s.agent = s.StartAgent(s.host, "")
		}
		s.startServer()
		s.AwaitLive("web")
		s.awaitFault(at+", after a restart", true)
		s.asks(at + ", after a restart")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			s.t.Fatal(err)
		}
		s.awaitFault(at+", written whole", false)
	}
	s.asks("after all cuts")
	r := load.Stop()
	s.t.Logf("%d cuts and restarts; %d requests, %d denied, %d answered", len(sizes), r.Good+r.Failed, s.answer.Load(), r.Failed)
	if r.Failed > 0 {
		s.t.Errorf("%d of %d denied requests were answered, at first at %s: %v", r.Failed, r.Good+r.Failed, r.FirstFailure.Format("15:04:05.000"), r.Errors)
	}
	if s.answer.Load() == 0 {
		s.t.Error("no request of the load reached a policy")
	}
}

// startServer starts the server so that it holds no removals back: a text alone decides.
func (s *cuts) startServer() {
	s.t.Helper()
	s.StartServer("--removal-share", "1", "--loss-after", "1s", "--scan-interval", "500ms")
}

// status is the code of an answer.
func (s *cuts) status(ctx context.Context, path string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := s.client.Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// deniedNext asks for the denied paths in turn: it fails when one is answered. Nobody answers while the Envoy restarts.
func (s *cuts) deniedNext() func(context.Context) error {
	var n atomic.Int64
	return func(ctx context.Context) error {
		paths := deniedPaths()
		path := paths[int(n.Add(1))%len(paths)]
		switch code, err := s.status(ctx, path); {
		case err == nil && code == http.StatusForbidden:
			s.answer.Add(1)
		case err == nil && code == http.StatusOK:
			return fmt.Errorf("%s was answered", path)
		}
		return nil
	}
}

// asks demands that what is denied is denied, and the rest is answered.
func (s *cuts) asks(when string) {
	s.t.Helper()
	for _, path := range append(deniedPaths(), "/") {
		want := http.StatusForbidden
		if path == "/" {
			want = http.StatusOK
		}
		envoytest.Eventually(s.t, envoytest.Patience, func() error {
			code, err := s.status(s.t.Context(), path)
			if err == nil && code == http.StatusOK && want != code {
				s.t.Fatalf("%s: %s was answered", when, path)
			}
			if err == nil && code != want {
				err = fmt.Errorf("%s: %s got %d, want %d", when, path, code, want)
			}
			return err
		})
	}
}

// awaitFault waits until the server says that the file has an error, or that it has none, and has sent all to the
// Envoy. It fails when a denied request is answered.
func (s *cuts) awaitFault(when string, want bool) {
	s.t.Helper()
	s.Server.Eventually(envoytest.Patience, func() error {
		for _, path := range deniedPaths() {
			if code, err := s.status(s.t.Context(), path); err == nil && code == http.StatusOK {
				s.t.Fatalf("%s: %s was answered", when, path)
			}
		}
		out, err := s.Admin("server", "/v1/sources")
		if err != nil {
			return err
		}
		if got := errorOfCut.MatchString(out); got != want {
			return fmt.Errorf("%s: the file has an error: %t\n%s", when, got, out)
		}
		return nil
	})
}

// errorOfCut matches a status of sources in which the file, the only one with policies, has an error.
var errorOfCut = regexp.MustCompile(`"Severity":\s*"error"`)
