package consultest

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// register puts an instance of a service on a node of its own.
func register(c *api.Client, service string) error {
	_, err := c.Catalog().Register(&api.CatalogRegistration{
		Node: "host-of-" + service, Address: "127.0.0.1", Service: &api.AgentService{Service: service, Port: 80},
	}, nil)
	return err
}

// services are the names in the catalog, but Consul's own.
func services(c *api.Client) ([]string, error) {
	all, _, err := c.Catalog().Services(&api.QueryOptions{RequireConsistent: true})
	var out []string
	for s := range all {
		if s != "consul" {
			out = append(out, s)
		}
	}
	return out, err
}

func awaitServices(t *testing.T, c *api.Client, want ...string) {
	t.Helper()
	envoytest.Eventually(t, patience, func() error {
		got, err := services(c)
		if err == nil && fmt.Sprint(got) != fmt.Sprint(want) {
			err = fmt.Errorf("services are %v, not %v", got, want)
		}
		return err
	})
}

func TestOneServer(t *testing.T) {
	t.Parallel()
	for name, persistent := range map[string]bool{"in-memory": false, "persistent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := Start(t, Options{Persistent: persistent})
			if err := register(a.Client(), "web"); err != nil {
				t.Fatal(err)
			}
			awaitServices(t, a.Client(), "web")
			at := a.Address()
			a.Kill()
			if a.Running() {
				t.Error("runs although it was killed")
			}
			a.Start()
			if persistent {
				awaitServices(t, a.Client(), "web")
			} else {
				awaitServices(t, a.Client())
			}
			if a.Address() != at {
				t.Errorf("was at %s, is at %s", at, a.Address())
			}
			a.Stop()
			a.Wipe()
			a.Start()
			awaitServices(t, a.Client())
		})
	}
}

func TestTwoDatacenters(t *testing.T) {
	t.Parallel()
	one := Start(t, Options{})
	two := Start(t, Options{Datacenter: "dc2", JoinWAN: []*Agent{one}})
	if err := register(two.Client(), "web"); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, patience, func() error {
		got, _, err := one.Client().Catalog().Service("web", "", &api.QueryOptions{Datacenter: "dc2"})
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("%d instances", len(got))
		}
		return err
	})
}

func TestClusterOfThree(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{ACL: true, TLS: true})
	if err := register(c.Client(), "web"); err != nil {
		t.Fatal(err)
	}
	asked(t, c)

	t.Log("the leader is killed")
	killed := c.KillLeader()
	awaitServices(t, c.Client(), "web")
	if c.Leader() == killed {
		t.Errorf("%s leads, which was killed", killed.Name)
	}
	killed.Start()
	awaitServices(t, killed.Client(), "web")

	t.Log("all are restarted")
	c.RestartAll()
	awaitServices(t, c.Client(), "web")

	t.Log("all is lost, and restored")
	read := c.ReadToken()
	snapshot := c.Snapshot()
	c.Kill()
	c.Wipe()
	c.Start()
	awaitServices(t, c.Client())
	c.Restore(snapshot)
	awaitServices(t, c.Client(), "web")
	awaitServices(t, c.Servers[2].ClientWith(read.Secret), "web")
}

// asked shows that nobody reads without TLS or a token.
func asked(t *testing.T, c *Cluster) {
	t.Helper()
	read := c.ReadToken()
	reader := c.Servers[1].ClientWith(read.Secret)
	awaitServices(t, reader, "web")
	if err := register(reader, "other"); err == nil || !strings.Contains(err.Error(), "Permission denied") {
		t.Errorf("a token that may read has registered: %v", err)
	}
	awaitServices(t, c.Servers[1].ClientWith(""))
	c.RevokeToken(read)
	if _, err := services(reader); err == nil || !strings.Contains(err.Error(), "ACL not found") {
		t.Errorf("a revoked token reads: %v", err)
	}

	u, err := url.Parse(c.Address())
	if err != nil || u.Scheme != "https" {
		t.Fatalf("address %q: %v", c.Address(), err)
	}
	u.Scheme = "http"
	res, err := http.Get(u.JoinPath("/v1/status/leader").String())
	if err == nil {
		defer res.Body.Close()
		if res.StatusCode == http.StatusOK {
			t.Error("answers without TLS")
		}
	}
	through := c.client(c.Front().HostPort(), c.Management)
	for range 3 { // each of the servers, with one certificate
		if got, err := services(through); err != nil || fmt.Sprint(got) != "[web]" {
			t.Errorf("through the front: %v, %v", got, err)
		}
	}
}

// TestAgents: each host has one, whose registrations the servers have, and its loss
// is noticed.
func TestAgents(t *testing.T) {
	t.Parallel()
	c := StartCluster(t, ClusterOptions{ACL: true, TLS: true})
	a := c.StartAgent("host-1")
	write := c.CreateToken(`service_prefix "" { policy = "write" }`)
	err := a.ClientWith(write.Secret).Agent().ServiceRegister(&api.AgentServiceRegistration{Name: "web", Port: 80})
	if err != nil {
		t.Fatal(err)
	}
	awaitServices(t, c.Client(), "web")
	awaitServices(t, a.Client(), "web")
	status := func(want string) {
		t.Helper()
		envoytest.Eventually(t, patience, func() error {
			got, _, err := c.Client().Health().Service("web", "", false, nil)
			if err == nil && (len(got) != 1 || got[0].Checks.AggregatedStatus() != want) {
				err = fmt.Errorf("%+v", got)
			}
			return err
		})
	}
	status(api.HealthPassing)
	a.Kill()
	status(api.HealthCritical)
	a.Start()
	status(api.HealthPassing)
}

func TestVerifyIncoming(t *testing.T) {
	t.Parallel()
	a := Start(t, Options{TLS: true, VerifyIncoming: true})
	if _, err := services(a.Client()); err != nil {
		t.Error(err)
	}
	c := a.Cluster()
	c.CertFile, c.KeyFile = "", ""
	if _, err := services(a.Client()); err == nil {
		t.Error("a client without a certificate reads")
	}
}

func TestFreePorts(t *testing.T) {
	t.Parallel()
	p := envoytest.Loopback(t, 216, 253)
	seen := map[int]bool{}
	for _, port := range freePorts(t, []string{p + "1", p + "2"}, 20) {
		if seen[port] {
			t.Errorf("port %d comes twice", port)
		}
		seen[port] = true
		l, err := net.Listen("tcp", net.JoinHostPort(p+"2", strconv.Itoa(port)))
		if err != nil {
			t.Error(err)
			continue
		}
		_ = l.Close()
	}
}
