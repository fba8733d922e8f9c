package traffic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	authv3 "github.com/envoyproxy/go-control-plane/envoy/service/auth/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/fairlead/fairlead/internal/meshtest"
)

// judgeApp is the application of an authorization server in the mesh, behind an Envoy of its own.
// It serves HTTP and gRPC.
type judgeApp struct {
	authv3.UnimplementedAuthorizationServer

	http, grpc string // addresses

	mu     sync.Mutex // guards all following fields
	denies bool
	caller string // x-forwarded-client-cert of the last question, by the Envoy before it
}

func newJudgeApp(t *testing.T) *judgeApp {
	t.Helper()
	j := &judgeApp{}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if j.judge(r.Header.Get("X-Forwarded-Client-Cert")) {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(h.Close)
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	authv3.RegisterAuthorizationServer(g, j)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.Serve(l) })
	t.Cleanup(func() { g.Stop(); serving.Wait() })
	j.http, j.grpc = h.Listener.Addr().String(), l.Addr().String()
	return j
}

// Check implements authv3.AuthorizationServer.
func (j *judgeApp) Check(ctx context.Context, _ *authv3.CheckRequest) (*authv3.CheckResponse, error) {
	md, _ := metadata.FromIncomingContext(ctx)
	code := codes.OK
	if j.judge(strings.Join(md.Get("x-forwarded-client-cert"), ",")) {
		code = codes.PermissionDenied
	}
	return &authv3.CheckResponse{Status: &statuspb.Status{Code: int32(code)}}, nil
}

func (j *judgeApp) judge(caller string) (denies bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.caller = caller
	return j.denies
}

// set says what it answers from now on, and forgets who has asked.
func (j *judgeApp) set(denies bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.denies, j.caller = denies, ""
}

func (j *judgeApp) asked() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.caller
}

// judgeMesh is the host of the authorization server: it takes mTLS only, and only echo may ask it.
const judgeMesh = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: judge, namespace: auth}
spec:
  hosts: [judge.auth.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 9000, name: http, protocol: HTTP}, {number: 9001, name: grpc, protocol: GRPC}]
  workloadSelector: {labels: {app: judge}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: judge, namespace: auth}
spec: {address: 127.0.0.13, labels: {app: judge}, serviceAccount: judge}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: judge, namespace: auth}
spec:
  workloadSelector: {labels: {app: judge}}
  ingress:
  - {port: {number: 9000, name: http, protocol: HTTP}, bind: 127.0.0.13, defaultEndpoint: "HTTP"}
  - {port: {number: 9001, name: grpc, protocol: GRPC}, bind: 127.0.0.13, defaultEndpoint: "GRPC"}
  egress: [{hosts: ["~/*"]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: judge, namespace: auth}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: judge, namespace: auth}
spec: {rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/echo]}}]}]}
`

// TestProviderInTheMesh: an authorization server that is a workload of the mesh is asked by mTLS,
// with the identity of who asks. While its host is away, nothing passes that it is asked about.
func TestProviderInTheMesh(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	j := newJudgeApp(t)
	config := filepath.Join(t.TempDir(), "mesh.yaml")
	const settings = `extensionProviders:
- {name: http, envoyExtAuthzHttp: {service: judge.auth.internal, port: 9000, timeout: 2s}}
- {name: grpc, envoyExtAuthzGrpc: {service: judge.auth.internal, port: 9001, timeout: 2s}}
`
	if err := os.WriteFile(config, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Write("judge.yaml", strings.NewReplacer("HTTP\"", j.http+"\"", "GRPC\"", j.grpc+"\"").Replace(judgeMesh))
	p.StartServer("--mesh-config", config)
	p.startHosts()
	host := meshtest.Host{Name: "judge", Workload: "auth/judge", Address: 13, Agent: []string{"--drain-time", "1s"}}
	_, agent := p.StartHost(host)
	p.AwaitLive("judge")

	target := p.at(12, 9080)
	awaitStatus := func(want int) {
		t.Helper()
		settle(t, func() error {
			if code := newKeptClient().ask(t, target); code != want {
				return fmt.Errorf("status %d, want %d", code, want)
			}
			return nil
		})
	}
	for _, c := range []struct {
		provider string
		denied   int
	}{{"http", http.StatusUnauthorized}, {"grpc", http.StatusForbidden}} {
		j.set(true)
		p.Write("authz.yaml", asking(c.provider))
		p.accepts(t, map[string]string{extAuthzSlot: "ext_authz." + c.provider + "|judge.auth.internal"})
		settle(t, func() error {
			if j.asked() == "" {
				newKeptClient().ask(t, target)
				return errors.New("it is not asked yet")
			}
			return nil
		})
		awaitStatus(c.denied)
		if got := j.asked(); !strings.Contains(got, "URI="+echoID) {
			t.Errorf("%s: who asks is %q, want %s", c.provider, got, echoID)
		}
		j.set(false)
		awaitStatus(http.StatusOK)
		if j.asked() == "" {
			t.Errorf("%s: a request has passed without a question", c.provider)
		}
	}

	// Others may not ask it, with mTLS or without.
	if _, err := askHTTP(t.Context(), p.at(13, 9000), nil); err == nil {
		t.Error("the authorization server answers without mTLS")
	}

	// Its host goes away, and comes back.
	agent.Stop()
	awaitStatus(http.StatusForbidden)
	j.set(false)
	awaitStatus(http.StatusForbidden)
	if got := j.asked(); got != "" {
		t.Errorf("asked by %q, although its host is away", got)
	}
	p.StartAgent(host, "")
	p.AwaitLive("judge")
	awaitStatus(http.StatusOK)
	if got := j.asked(); !strings.Contains(got, "URI="+echoID) {
		t.Errorf("after the return, who asks is %q", got)
	}
}
