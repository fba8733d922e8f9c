package consultest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// patience is how long anything may take that Consul does by itself. An election
// takes one to three seconds; the rest is for a machine that does much else.
const patience = 45 * time.Second

// Agent is one Consul process. It ends with its test.
type Agent struct {
	// Name is its node's name.
	Name string

	tb      testing.TB
	of      *Cluster
	bin     string
	client  bool   // no server
	address string // without a port
	ports   ports
	dir     string // holds the configuration and the data
	config  map[string]any
	args    []string

	log  *tail
	cmd  *exec.Cmd
	done chan struct{}
}

// ports are those of one agent, the same for all agents of a cluster. That of xDS is -1 without
// Connect.
type ports struct{ http, serfLAN, serfWAN, server, xds int }

// Address is where the agent's API is, as a URL: http://HOST:PORT or
// https://HOST:PORT.
func (a *Agent) Address() string { return a.of.scheme() + "://" + a.HostPort() }

// HostPort is where the agent's API is.
func (a *Agent) HostPort() string { return net.JoinHostPort(a.address, strconv.Itoa(a.ports.http)) }

// XDS is where the agent serves Envoys by gRPC, with [Options.Connect].
func (a *Agent) XDS() string { return net.JoinHostPort(a.address, strconv.Itoa(a.ports.xds)) }

// Client asks this agent, with the management token where there are ACLs.
func (a *Agent) Client() *api.Client {
	a.tb.Helper()
	return a.of.client(a.HostPort(), a.of.Management)
}

// ClientWith asks this agent with another token; empty means none.
func (a *Agent) ClientWith(token string) *api.Client {
	a.tb.Helper()
	return a.of.client(a.HostPort(), token)
}

// Cluster is what the agent belongs to; that of [Start] has one server.
func (a *Agent) Cluster() *Cluster { return a.of }

// PID is the process id.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// Log is the end of what the agent has printed.
func (a *Agent) Log() string { return a.log.String() }

// Running reports whether the process is there.
func (a *Agent) Running() bool {
	if a.cmd == nil {
		return false
	}
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// Kill ends the process at once, as kill -9 does, and waits for it.
func (a *Agent) Kill() {
	if a.Running() {
		_ = a.cmd.Process.Kill()
		<-a.done
	}
}

// Stop asks the process to end and waits for it. A server does not leave its
// cluster by that, as Consul has it by default.
func (a *Agent) Stop() {
	a.tb.Helper()
	if !a.Running() {
		return
	}
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-a.done:
	case <-time.After(patience):
		a.tb.Errorf("%s does not end on SIGTERM", a.Name)
		a.Kill()
	}
}

// Start starts the process again, on its old addresses and with the data it has
// on disk, and waits until the cluster can be read through it.
func (a *Agent) Start() {
	a.tb.Helper()
	a.launch()
	a.Await()
}

// Wipe removes the data of an agent that does not run.
func (a *Agent) Wipe() {
	a.tb.Helper()
	if a.Running() {
		a.tb.Fatalf("wiping the data of %s, which runs", a.Name)
	}
	if err := os.RemoveAll(a.data()); err != nil {
		a.tb.Fatal(err)
	}
}

func (a *Agent) data() string { return filepath.Join(a.dir, "data") }

// Await waits until the agent gives a consistent reading of a cluster with a
// leader.
func (a *Agent) Await() {
	a.tb.Helper()
	c := a.Client()
	envoytest.Eventually(a.tb, patience, func() error {
		if !a.Running() {
			a.tb.Fatalf("%s ended: %v\n%s", a.Name, a.cmd.ProcessState, a.Log())
		}
		return a.readable(c)
	})
}

func (a *Agent) readable(c *api.Client) error {
	leader, err := c.Status().Leader()
	if err != nil {
		return err
	}
	if leader == "" {
		return errors.New("no leader")
	}
	if a.of.options.ACL {
		if _, _, err := c.ACL().TokenReadSelf(nil); err != nil {
			return err
		}
	}
	nodes, _, err := c.Catalog().Nodes(&api.QueryOptions{RequireConsistent: true})
	if err != nil {
		return err
	}
	for _, n := range nodes {
		if n.Node == a.Name {
			return nil
		}
	}
	return fmt.Errorf("%s is not among %d nodes", a.Name, len(nodes))
}

// launch starts the process and waits for nothing.
func (a *Agent) launch() {
	a.tb.Helper()
	if a.Running() {
		a.tb.Fatalf("%s runs already", a.Name)
	}
	content, err := json.MarshalIndent(a.config, "", "  ")
	if err != nil {
		a.tb.Fatal(err)
	}
	path := filepath.Join(a.dir, "config.json")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		a.tb.Fatal(err)
	}
	a.cmd = exec.Command(a.bin, append([]string{"agent", "-config-file", path}, a.args...)...)
	// A group of its own: what the terminal sends to the tests is not for it.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	a.cmd.Stdout, a.cmd.Stderr = a.log, a.log
	a.cmd.Dir = a.dir
	// What the user's shell says of another Consul is not for this one.
	a.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + a.dir}
	a.done = make(chan struct{})
	if err := a.cmd.Start(); err != nil {
		a.tb.Fatal(err)
	}
	go func(cmd *exec.Cmd, done chan struct{}) {
		defer close(done)
		_ = cmd.Wait()
	}(a.cmd, a.done)
}

// tail keeps the end of what a process prints. mu guards all following fields.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailBytes = 16 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*tailBytes {
		t.buf = append([]byte(nil), t.buf[len(t.buf)-tailBytes:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-tailBytes):])
}
