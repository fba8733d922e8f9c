package consultest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Cluster is the servers of one datacenter: three, or one that [Start] made.
type Cluster struct {
	Servers []*Agent
	// CAFile is the certificate of the authority behind TLS; CertFile and KeyFile
	// are what a client shows of itself. Empty without TLS.
	CAFile, CertFile, KeyFile string
	// Management is a token that may do all; empty without ACLs.
	Management string

	tb                    testing.TB
	options               ClusterOptions
	bin                   string
	prefix                string
	ports                 ports
	addresses             []string // that nobody has yet
	front                 *Proxy
	agentToken            string
	serverCert, serverKey string
}

// Start runs one server until the test ends, and returns when it can be read.
func Start(tb testing.TB, o Options) *Agent {
	tb.Helper()
	c := newCluster(tb, 1, ClusterOptions{
		Datacenter: o.Datacenter, ACL: o.ACL, TLS: o.TLS, VerifyIncoming: o.VerifyIncoming, JoinWAN: o.JoinWAN, Config: o.Config, connect: o.Connect,
	})
	a := c.Servers[0]
	if !o.Persistent {
		delete(a.config, "bootstrap_expect") // -dev has its own, and refuses both
		a.args = []string{"-dev"}
	}
	c.start()
	return a
}

// StartCluster runs three servers until the test ends, and returns when each of
// them can be read.
func StartCluster(tb testing.TB, o ClusterOptions) *Cluster {
	tb.Helper()
	c := newCluster(tb, 3, o)
	c.start()
	return c
}

func newCluster(tb testing.TB, n int, o ClusterOptions) *Cluster {
	tb.Helper()
	bin := Binary(tb)
	if o.Datacenter == "" {
		o.Datacenter = "dc1"
	}
	c := &Cluster{tb: tb, options: o, prefix: envoytest.Loopback(tb, 216, 253)}
	if o.ACL {
		c.Management, c.agentToken = nodeID(), nodeID()
	}
	var addresses []string
	for i := range n + maxAgents {
		addresses = append(addresses, c.prefix+strconv.Itoa(i+1))
	}
	if o.TLS {
		c.issue(tb.TempDir(), addresses)
	}
	p := freePorts(tb, addresses, 5)
	if !o.connect {
		p[4] = -1
	}
	c.ports, c.bin, c.addresses = ports{p[0], p[1], p[2], p[3], p[4]}, bin, addresses
	for i := range n {
		c.Servers = append(c.Servers, c.agent(fmt.Sprintf("%s-server-%d", o.Datacenter, i+1)))
	}
	for _, a := range c.Servers {
		a.config = c.configuration(a)
	}
	return c
}

// maxAgents is how many agents that are no servers a cluster may have.
const maxAgents = 8

// agent is another agent of the cluster, which does not run.
func (c *Cluster) agent(name string) *Agent {
	c.tb.Helper()
	if len(c.addresses) == 0 {
		c.tb.Fatalf("the cluster has no address for %s", name)
	}
	a := &Agent{Name: name, tb: c.tb, of: c, bin: c.bin, address: c.addresses[0], ports: c.ports, dir: c.tb.TempDir(), log: &tail{}}
	c.addresses = c.addresses[1:]
	c.tb.Cleanup(func() {
		a.Kill()
		if c.tb.Failed() {
			c.tb.Logf("end of the log of %s:\n%s", a.Name, a.Log())
		}
	})
	return a
}

// StartAgent runs an agent that is no server, as each host of a fleet has one,
// until the test ends, and returns when the cluster can be read through it.
func (c *Cluster) StartAgent(name string) *Agent {
	c.tb.Helper()
	a := c.agent(name)
	a.client = true
	a.config = c.configuration(a)
	a.Start()
	return a
}

// start starts all servers at once and waits until they can be read.
func (c *Cluster) start() {
	c.tb.Helper()
	for _, a := range c.Servers {
		if !a.Running() {
			a.launch()
		}
	}
	c.Await()
	c.agentTokens()
}

// Await waits until every server that runs gives a consistent reading.
func (c *Cluster) Await() {
	c.tb.Helper()
	for _, a := range c.Servers {
		if a.Running() {
			a.Await()
		}
	}
}

// Address is where the cluster's API is, as a URL: [Cluster.Front]'s.
func (c *Cluster) Address() string { return c.scheme() + "://" + c.Front().HostPort() }

// Front is a connection to the cluster that can be cut: whoever connects to it
// gets a server that runs. It is made at first use.
func (c *Cluster) Front() *Proxy {
	c.tb.Helper()
	if c.front == nil {
		var targets []string
		for _, a := range c.Servers {
			targets = append(targets, a.HostPort())
		}
		c.front = NewProxy(c.tb, net.JoinHostPort(c.prefix+frontAddress, "0"), targets...)
	}
	return c.front
}

// frontAddress is the last number of the address of [Cluster.Front].
const frontAddress = "100"

// Client asks a server that runs, with the management token where there are ACLs.
func (c *Cluster) Client() *api.Client {
	c.tb.Helper()
	for _, a := range c.Servers {
		if a.Running() {
			return a.Client()
		}
	}
	c.tb.Fatal("no server runs")
	return nil
}

// Leader is the server that leads now.
func (c *Cluster) Leader() *Agent {
	c.tb.Helper()
	var leader *Agent
	envoytest.Eventually(c.tb, patience, func() error {
		at, err := c.Client().Status().Leader()
		if err != nil {
			return err
		}
		for _, a := range c.Servers {
			if a.Running() && at == net.JoinHostPort(a.address, strconv.Itoa(a.ports.server)) {
				leader = a
				return nil
			}
		}
		return fmt.Errorf("%q leads, which does not run", at)
	})
	return leader
}

// KillLeader kills the server that leads and waits until the others have another
// leader. It returns the one that was killed.
func (c *Cluster) KillLeader() *Agent {
	c.tb.Helper()
	a := c.Leader()
	a.Kill()
	c.Await()
	c.Leader()
	return a
}

// Kill kills every server.
func (c *Cluster) Kill() {
	for _, a := range c.Servers {
		a.Kill()
	}
}

// Start starts every server that does not run and waits until all can be read.
func (c *Cluster) Start() {
	c.tb.Helper()
	c.start()
}

// RestartAll kills every server, then starts all again with the data they have.
func (c *Cluster) RestartAll() {
	c.tb.Helper()
	c.Kill()
	c.Start()
}

// Wipe removes the data of all servers, none of which may run.
func (c *Cluster) Wipe() {
	c.tb.Helper()
	for _, a := range c.Servers {
		a.Wipe()
	}
}

// Snapshot is what `consul snapshot save` writes. It asks again while a busy cluster has
// no leader.
func (c *Cluster) Snapshot() []byte {
	c.tb.Helper()
	var out []byte
	envoytest.Eventually(c.tb, patience, func() error {
		r, _, err := c.Client().Snapshot().Save(nil)
		if err != nil {
			return err
		}
		defer r.Close()
		out, err = io.ReadAll(r)
		return err
	})
	return out
}

// Restore gives the cluster what a snapshot has, as `consul snapshot restore` does. It
// tries again while a busy cluster has no leader.
func (c *Cluster) Restore(snapshot []byte) {
	c.tb.Helper()
	envoytest.Eventually(c.tb, patience, func() error {
		return c.Client().Snapshot().Restore(nil, bytes.NewReader(snapshot))
	})
	c.Await()
}

func (c *Cluster) scheme() string {
	if c.options.TLS {
		return "https"
	}
	return "http"
}

func (c *Cluster) client(hostPort, token string) *api.Client {
	c.tb.Helper()
	conf := api.DefaultConfig()
	*conf = api.Config{Address: hostPort, Scheme: c.scheme(), Token: token, Transport: conf.Transport}
	// Connections end with each answer: a server that is killed has none left, and
	// a test that looks for goroutines finds none of these.
	conf.Transport.DisableKeepAlives = true
	conf.Transport.ResponseHeaderTimeout = 10 * time.Minute
	if c.options.TLS {
		conf.TLSConfig = api.TLSConfig{CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
	}
	client, err := api.NewClient(conf)
	if err != nil {
		c.tb.Fatal(err)
	}
	return client
}

var errNoACL = errors.New("the cluster has no ACLs")
