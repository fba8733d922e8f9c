package consul

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

func TestMain(m *testing.M) { os.Exit(meshtest.Main(m)) }

const (
	apiHost = "api.service.consul"
	apiPort = 9080
)

// together bounds how many meshes run at once: each has two Envoys and up to
// three Consuls.
var together = make(chan struct{}, 3)

// fleet is a mesh over a catalog: a client, whose application is the test, and
// the service api with three instances, two of which have no agent of ours.
type fleet struct {
	*meshtest.Mesh
	t      *testing.T
	consul *consultest.Cluster
	// local is the Consul agent beside the control plane; nil where that asks the
	// servers.
	local *consultest.Agent
	// secured says that the API is HTTPS with ACLs, and so a watch for each
	// service; otherwise it is plain HTTP.
	secured   bool
	token     consultest.Token
	tokenFile string
	agents    map[string]*meshtest.Process
	client    *meshtest.Client
	url       string
}

// ways runs a test over one server by plain HTTP, whose changes are found by
// table watches, and over a cluster of three by HTTPS with ACLs, with a watch for each
// service.
func ways(t *testing.T, test func(f *fleet)) {
	t.Helper()
	t.Parallel()
	for name, secured := range map[string]bool{"tables": false, "watches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newFleet(t, secured))
		})
	}
}

// newFleet starts everything and waits until every instance of api has answered.
func newFleet(t *testing.T, secured bool) *fleet {
	t.Helper()
	f := prepare(t, secured)
	f.start()
	return f
}

// prepare starts Consul and fills it.
func prepare(t *testing.T, secured bool) *fleet {
	t.Helper()
	envoytest.Binary(t)
	consultest.Binary(t)
	together <- struct{}{}
	t.Cleanup(func() { <-together })
	f := &fleet{
		Mesh: meshtest.New(t, "internal/e2e/consul/testdata/mesh", map[string]int{"api-3": 18081, "bare": 18082}),
		t:    t, secured: secured, agents: map[string]*meshtest.Process{}, client: meshtest.NewClient(t, apiHost),
	}
	f.url = fmt.Sprintf("http://%s/", net.JoinHostPort(f.Address(11), "9080"))
	if secured {
		f.consul = consultest.StartCluster(t, consultest.ClusterOptions{ACL: true, TLS: true})
		f.tokenFile = filepath.Join(f.Dir, "consul.token")
		f.newToken()
	} else {
		f.consul = consultest.Start(t, consultest.Options{Persistent: true}).Cluster()
	}
	f.fill()
	return f
}

// start starts the control plane and the hosts.
func (f *fleet) start() {
	f.t.Helper()
	f.StartServer(f.serverArgs()...)
	f.equal()
	f.startHosts()
}

// serverArgs are what the control plane is told of Consul.
func (f *fleet) serverArgs() []string {
	at := f.consul.Address()
	if f.local != nil {
		at = f.local.Address()
	}
	args := []string{"--consul-address", at, "--consul-mesh-namespace", "shop", "--consul-loopback"}
	if f.secured {
		args = append(args, "--consul-ca-file", f.consul.CAFile, "--consul-token-file", f.tokenFile)
	}
	return args
}

// newToken makes a token for the control plane and writes it where it reads it.
func (f *fleet) newToken() {
	f.t.Helper()
	f.token = f.consul.ReadToken()
	next := f.tokenFile + ".new"
	if err := os.WriteFile(next, []byte(f.token.Secret+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(next, f.tokenFile); err != nil {
		f.t.Fatal(err)
	}
}

// startHosts starts the instances of api, and the agents of those that have one.
func (f *fleet) startHosts() {
	f.t.Helper()
	_, app := f.Binaries()
	for _, i := range apis() {
		if i.agent {
			continue
		}
		at := net.JoinHostPort(f.Address(i.host), strconv.Itoa(i.port))
		f.Start(i.id, app, "--name", i.id, "--listen", at).Eventually(envoytest.Patience, func() error {
			c, err := net.Dial("tcp", at)
			if err != nil {
				return err
			}
			return c.Close()
		})
	}
	for name, h := range f.hosts() {
		_, f.agents[name] = f.StartHost(h)
	}
	f.t.Cleanup(func() {
		for _, p := range f.agents { // each drains: all at once, before each is waited for
			if !p.Ended() {
				_ = syscall.Kill(p.PID(), syscall.SIGTERM)
			}
		}
	})
	f.AwaitLive("client", "api-3")
	f.awaitAll()
}

// hosts are those with an agent of ours, by name.
func (f *fleet) hosts() map[string]meshtest.Host {
	args := []string{"--drain-time", "1s"}
	return map[string]meshtest.Host{
		"client": {Name: "client", Workload: "shop/client", Address: 11, Agent: args},
		"api-3":  {Name: "api-3", Workload: "shop/api", Address: 14, App: []string{}, Agent: args},
	}
}

// load starts requests and waits until some have been answered.
func (f *fleet) load() *meshtest.Load {
	f.t.Helper()
	l := f.client.StartLoad(f.t, f.url, 100)
	l.Wait(f.t, 20)
	return l
}

// unharmed ends a load and fails the test if any request has failed, or an Envoy
// has refused anything.
func (f *fleet) unharmed(l *meshtest.Load) {
	f.t.Helper()
	r := l.Stop()
	f.t.Logf("%d requests, %d failed", r.Good+r.Failed, r.Failed)
	if r.Failed > 0 {
		f.t.Errorf("%d of %d requests failed, from %s to %s: %v", r.Failed, r.Good+r.Failed,
			r.FirstFailure.Format(time.TimeOnly+".000"), r.LastFailure.Format(time.TimeOnly+".000"), r.Errors)
	}
	for h := range f.agents {
		stats, err := f.EnvoyAdmin(h, "/stats?filter=update_rejected")
		if err != nil {
			f.t.Error(err)
		}
		for line := range strings.Lines(stats) {
			if !strings.HasSuffix(strings.TrimSpace(line), ": 0") {
				f.t.Errorf("the Envoy of %s: %s", h, line)
			}
		}
	}
}

// awaitTraffic waits until a request is answered.
func (f *fleet) awaitTraffic() {
	f.t.Helper()
	envoytest.Eventually(f.t, envoytest.Patience, func() error {
		_, err := f.client.Get(f.t.Context(), f.url)
		return err
	})
}

// awaitAnswerBy waits until an answer says which route it took.
func (f *fleet) awaitAnswerBy(route string) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error {
		req, err := http.NewRequestWithContext(f.t.Context(), http.MethodGet, f.url, http.NoBody)
		if err != nil {
			return err
		}
		req.Host = apiHost
		res, err := (&http.Client{Timeout: patience}).Do(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if got := res.Header.Get("X-Route"); got != route {
			return fmt.Errorf("the answer took route %q", got)
		}
		return nil
	})
}

// awaitAll waits until every instance of api has answered, the one with an agent
// of ours by mTLS.
func (f *fleet) awaitAll() {
	f.t.Helper()
	for _, i := range apis() {
		a := f.awaitAnswerOf(i.id)
		want := ""
		if i.agent {
			want = "spiffe://cluster.local/ns/shop/sa/client"
		}
		if a.Caller != want {
			f.t.Errorf("%s was called by %q, not %q", i.id, a.Caller, want)
		}
	}
}

// awaitAnswerOf waits until an instance of api has answered.
func (f *fleet) awaitAnswerOf(id string) (a *meshtest.Answer) {
	f.t.Helper()
	envoytest.Eventually(f.t, envoytest.Patience, func() (err error) {
		a, err = f.client.Get(f.t.Context(), f.url)
		switch {
		case err != nil:
			return err
		case a.Name != id:
			return fmt.Errorf("%s answers", a.Name)
		default:
			return nil
		}
	})
	return a
}

// awaitNoneOf waits until an instance of api answers nothing any more.
func (f *fleet) awaitNoneOf(id string) {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error {
		for range 20 {
			a, err := f.client.Get(f.t.Context(), f.url)
			if err != nil {
				return err
			}
			if a.Name == id {
				return errors.New(id + " answers")
			}
		}
		return nil
	})
}

// patience separates slow from broken.
const patience = envoytest.Patience
