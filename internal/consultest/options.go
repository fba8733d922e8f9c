package consultest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// Options say what one server is like. The zero value is a server as `consul
// agent -dev` runs it: everything in memory, plain HTTP, nothing asks for a token.
type Options struct {
	// Datacenter is its name; empty means dc1.
	Datacenter string
	// Persistent keeps its data on disk, so that a restart finds it. Otherwise it
	// comes back empty.
	Persistent bool
	// ACL asks for tokens and denies what no rule allows.
	ACL bool
	// TLS serves the API by HTTPS and by nothing else.
	TLS bool
	// VerifyIncoming asks clients of the API for a certificate.
	VerifyIncoming bool
	// JoinWAN are servers of other datacenters to know of.
	JoinWAN []*Agent
	// Connect turns Consul's own mesh on; its Envoys are served at [Agent.XDS].
	Connect bool
	// Config is put over the configuration made here, key by key.
	Config map[string]any
}

// ClusterOptions say what a cluster of three is like. Its servers keep their data
// on disk.
type ClusterOptions struct {
	// Datacenter is its name; empty means dc1.
	Datacenter string
	// ACL asks for tokens and denies what no rule allows.
	ACL bool
	// TLS serves the API by HTTPS and by nothing else, and the servers speak TLS
	// with each other.
	TLS bool
	// VerifyIncoming asks clients of the API for a certificate.
	VerifyIncoming bool
	// JoinWAN are servers of other datacenters to know of.
	JoinWAN []*Agent
	// Config is put over the configuration made here, key by key.
	Config map[string]any

	connect bool
}

// configuration is what an agent's file says.
func (c *Cluster) configuration(a *Agent) map[string]any {
	conf := map[string]any{
		"server": !a.client, "datacenter": c.options.Datacenter,
		"node_name": a.Name, "node_id": nodeID(), "data_dir": a.data(),
		"bind_addr": a.address, "client_addr": a.address,
		"retry_interval": "1s", "retry_interval_wan": "1s", "rejoin_after_leave": true,
		"log_level": "INFO", "disable_update_check": true, "disable_keyring_file": true,
		// Elections as short as Consul lets them be.
		"performance": map[string]any{"raft_multiplier": 1},
		// A server that a test has killed shall be missed, not forgotten.
		"autopilot": map[string]any{"cleanup_dead_servers": false},
		"connect":   map[string]any{"enabled": c.options.connect},
		"peering":   map[string]any{"enabled": false},
		"ports": map[string]any{
			"http": -1, "https": -1, "grpc": a.ports.xds, "grpc_tls": -1, "dns": -1,
			"serf_lan": a.ports.serfLAN, "serf_wan": a.ports.serfWAN, "server": a.ports.server,
			map[bool]string{false: "http", true: "https"}[c.options.TLS]: a.ports.http,
		},
	}
	var join, joinWAN []string
	for _, s := range c.Servers {
		if s != a {
			join = append(join, net.JoinHostPort(s.address, strconv.Itoa(s.ports.serfLAN)))
		}
	}
	for _, s := range c.options.JoinWAN {
		joinWAN = append(joinWAN, net.JoinHostPort(s.address, strconv.Itoa(s.ports.serfWAN)))
	}
	conf["retry_join"] = join
	if !a.client {
		conf["bootstrap_expect"], conf["retry_join_wan"] = len(c.Servers), joinWAN
	}
	if c.options.ACL {
		conf["acl"] = map[string]any{
			"enabled": true, "default_policy": "deny", "enable_token_persistence": true,
			"tokens": map[string]any{"initial_management": c.Management, "agent": c.agentToken},
		}
	}
	if c.options.TLS {
		conf["tls"] = map[string]any{
			"defaults": map[string]any{
				"ca_file": c.CAFile, "cert_file": c.serverCert, "key_file": c.serverKey,
				"verify_incoming": c.options.VerifyIncoming, "verify_outgoing": true,
			},
			"internal_rpc": map[string]any{"verify_incoming": true, "verify_server_hostname": true},
		}
	}
	maps.Copy(conf, c.options.Config)
	return conf
}

// nodeID is a UUID. It stays the same when an agent's data is wiped, as that of a
// host does.
func nodeID() string {
	return fmt.Sprintf("%08x-%04x-4%03x-a%03x-%012x", rand.Uint32(), rand.N(1<<16), rand.N(1<<12), rand.N(1<<12), rand.N(int64(1)<<48))
}

// freePorts are ports that nobody uses on any of some addresses, by TCP or UDP.
// The kernel gives none of them to a connection meanwhile: they are below those
// that it takes for that (ip_local_port_range).
func freePorts(tb testing.TB, addresses []string, n int) []int {
	tb.Helper()
	var out []int
	for tries := 0; len(out) < n; tries++ {
		port := 20_000 + rand.N(12_000)
		closers, err := listen(tb, addresses, port)
		if err == nil {
			out = append(out, port)
		} else if tries > 100*n {
			tb.Fatal(err)
		}
		// Those that are chosen stay open until all are, so that none comes twice.
		defer func() {
			for _, c := range closers {
				_ = c()
			}
		}()
	}
	return out
}

func listen(tb testing.TB, addresses []string, port int) (closers []func() error, err error) {
	tb.Helper()
	var lc net.ListenConfig
	for _, a := range addresses {
		at := net.JoinHostPort(a, strconv.Itoa(port))
		l, err := lc.Listen(tb.Context(), "tcp", at)
		if err != nil {
			return closers, err
		}
		closers = append(closers, l.Close)
		p, err := lc.ListenPacket(tb.Context(), "udp", at)
		if err != nil {
			return closers, err
		}
		closers = append(closers, p.Close)
	}
	return closers, nil
}
