package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/fairlead/fairlead/agent/health"
	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Istio's ports.
const (
	DefaultStatsPort  = 15090
	DefaultHealthPort = 15021
)

// assemble makes all components; nothing runs yet.
func (a *Agent) assemble(ctx context.Context, e *enrolled, binary proxy.Binary) (*parts, error) {
	uid := uint32(os.Geteuid())
	known, made := a.envoySecrets(ctx)
	paths := newAdminPaths(a.c.RunDir, known.AdminSocket)
	if err := paths.prepare(); err != nil {
		return nil, err
	}
	sdsGuard, sdsErr := a.guard(sdsSocket, known.Token, nil)
	alsGuard, alsErr := a.guard(alsSocket, known.Token, nil)
	xdsGuard, xdsErr := a.guard(xdsSocket, known.Token, a.mover(paths))
	if err := errors.Join(sdsErr, alsErr, xdsErr); err != nil {
		return nil, err
	}
	secrets, err := workload.New(workload.Config{
		Logger: a.c.Logger, Socket: a.inRun(sdsSocket), UID: uid, Guard: sdsGuard,
		CredentialsDir: a.c.CredentialsDir, SystemRootFiles: workload.SystemRootFiles(a.environment("SSL_CERT_FILE")), Private: []string{a.c.StateDir, a.c.RunDir},
	})
	if err != nil {
		return nil, err
	}
	ids, err := newIdentities(a, e, secrets)
	if err != nil {
		return nil, err
	}
	node := a.node(e)
	proto, err := node.Proto()
	if err != nil {
		return nil, err
	}
	a.restoreConfig(proto, e.address)
	envoy, running, err := a.envoy(ctx, node, binary, known, paths)
	if err != nil {
		return nil, err
	}
	if running && made {
		a.log.WarnContext(ctx, "restarting Envoy: it does not have the token of the agent's sockets (started by an earlier release, or the token was lost)")
	}
	names := a.describe(proto, e, binary.Version)
	r, err := relay.New(relay.Config{
		Logger: a.c.Logger, Node: proto, Servers: e.partsServers, Credentials: hostCredentials{a},
		Refused: a.notifyRejected, Answered: a.noteAnswered, Returned: a.noteReturned,
		Socket: a.inRun(xdsSocket), UID: uid, Guard: xdsGuard, StoreFile: a.inState(acceptedFile), EnvoyRunning: running,
		Inbound: takesRequests, Names: names, Stamp: a.stamp, Metadata: a.heldCertificate, Configure: func(body []byte) error { return a.configure(body, e.address) },
	})
	if err != nil {
		return nil, err
	}
	collector, err := a.collector(node, envoy, r, alsGuard)
	if err != nil {
		return nil, err
	}
	logs, err := a.rotator(envoy)
	if err != nil {
		return nil, err
	}
	reports, err := a.watchCollectors(envoy, r)
	if err != nil {
		return nil, err
	}
	p := &parts{ids: ids, secrets: secrets, relay: r, proxy: envoy, metrics: collector, logs: logs, reports: reports, health: reporter{r}}
	if a.c.Probe != nil {
		p.checker, err = health.New(health.Config{Logger: a.c.Logger, Envoy: envoyReadiness{a}, Reporter: p.health, Probe: *a.c.Probe})
		if err != nil {
			return nil, err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.relay, a.proxy, a.secrets, a.guards = r, envoy, secrets, []*peercred.Guard{xdsGuard, sdsGuard, alsGuard}
	a.metrics, a.logs, a.reports, a.nodeAddress = collector, logs, reports, node.Address
	a.status.Host, a.status.Workload, a.status.Node = e.Host, e.pair.String(), node.ID()
	a.status.EnvoyBinary, a.status.EnvoyVersion = binary.Path, binary.Version.String()
	return p, nil
}

// describe adds to the node what the server has to know of the agent and of its Envoy. It returns the
// table of names that the agent answers, or nil.
func (a *Agent) describe(proto *corev3.Node, e *enrolled, v proxy.Version) (names relay.NameTable) {
	proto.UserAgentName = "envoy"
	proto.ClientFeatures = append(proto.ClientFeatures, bootstrap.FeatureFileSecrets, bootstrap.FeatureFileLists, bootstrap.FeatureAccessLogService)
	proto.UserAgentVersionType = &corev3.Node_UserAgentBuildVersion{UserAgentBuildVersion: &corev3.BuildVersion{
		Version: &typev3.SemanticVersion{MajorNumber: uint32(v.Major), MinorNumber: uint32(v.Minor), Patch: uint32(v.Patch)},
	}}
	switch {
	case a.names == nil:
	case e.Type == bootstrap.TypeRouter:
		a.names.Absent()
	default:
		a.names.SetOthers(hostsOf(slices.Concat(e.servers, e.partsServers)))
		a.names.SetDomain(e.pair.Namespace + ".svc." + a.c.DNSDomain)
		names, proto.ClientFeatures = a.names, append(proto.ClientFeatures, bootstrap.FeatureNames)
	}
	if port := a.metricsPort.Load(); port > 0 {
		bootstrap.SetMetricsPort(proto, uint16(port))
	}
	return names
}

// guard requires the token at one of the agent's sockets.
func (a *Agent) guard(socket, token string, passed func()) (*peercred.Guard, error) {
	return peercred.NewGuard(peercred.GuardConfig{
		Logger: a.log, Socket: a.inRun(socket), Header: bootstrap.TokenHeader, Token: token, Passed: passed,
	})
}

// mover returns a function that moves Envoy's admin socket, for every connection of Envoy.
func (a *Agent) mover(paths adminPaths) func() {
	if a.c.AdminAddress.IsValid() {
		return nil
	}
	return func() {
		if err := paths.move(); err != nil {
			a.log.Error("renaming Envoy's admin socket to a random name failed: an endpoint of the mesh could reach it", "path", paths.made, "err", err)
		}
	}
}

// notifyRejected has the identities check whether the control plane still knows the host.
func (a *Agent) notifyRejected() {
	select {
	case a.refused <- struct{}{}:
	default:
	}
}

// noteReturned has renewals that failed repeated at once.
func (a *Agent) noteReturned() {
	select {
	case a.returned <- struct{}{}:
	default: // already signalled
	}
}

// noteAnswered records which server is connected.
func (a *Agent) noteAnswered(server string) {
	select {
	case a.answered <- server:
	default: // one is pending already
	}
}

// reporter gives health to the relay.
type reporter struct{ r *relay.Relay }

// ReportHealth implements health.Reporter.
func (r reporter) ReportHealth(healthy bool, message string) {
	r.r.SetHealth(relay.Health{Healthy: healthy, Message: message})
}

func (a *Agent) node(e *enrolled) bootstrap.Node {
	name := a.c.Name
	if name == "" {
		name = e.Host
	}
	interception := "NONE" // every listener binds
	if a.c.Capture && e.Type != bootstrap.TypeRouter {
		interception = "REDIRECT"
	}
	first, err := firstPort()
	if err != nil {
		a.log.Warn("cannot tell at which ports Envoy may listen, assuming at all", "err", err)
	}
	return bootstrap.Node{
		Type: e.Type, Address: e.address, Name: name, Namespace: e.pair.Namespace, Domain: a.c.DNSDomain,
		ServiceAccount: e.pair.ServiceAccount, Labels: a.c.Labels, WorkloadName: name,
		Interception: interception, MeshID: a.c.MeshID, ClusterID: a.c.ClusterID, Network: a.c.Network,
		HTTPProxyPort: a.c.HTTPProxyPort, Loopback: a.c.LoopbackAddresses, FirstPort: first,
		IPv6:     a.c.Capture && hasIPv6(),
		Locality: a.c.Locality, AgentVersion: a.c.Version,
	}
}

// hasIPv6 reports whether programs of the host can call addresses of IPv6. An address of a network is
// no condition: virtual addresses are reached without one, and at boot it may come later.
func hasIPv6() bool {
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// envoy writes the bootstrap and makes the process. It reports whether an Envoy
// is running already.
func (a *Agent) envoy(
	ctx context.Context, node bootstrap.Node, binary proxy.Binary, known envoySecrets, paths adminPaths,
) (*proxy.Process, bool, error) {
	path, state := a.inRun("envoy.json"), a.inRun("envoy.process.json")
	running := proxy.Running(state, path)
	ports, err := a.ports(ctx, node.Address, running)
	if err != nil {
		return nil, false, err
	}
	l := launcher{a: a, binary: binary, connected: a.envoyConnected, config: bootstrap.Config{
		Node: node, XDSSocket: a.inRun(xdsSocket), SDSSocket: a.inRun(sdsSocket), ALSSocket: a.inRun(alsSocket), Token: known.Token,
		AdminSocket: paths.made, MovedAdminSocket: paths.moved, AdminAddress: a.c.AdminAddress, StatsAddress: ports.Stats, HealthAddress: ports.Health,
		EnvoyVersion: envoyVersion(binary), IncludeStats: a.c.EnvoyIncludeStats, Limits: a.limits(ctx),
	}}
	start := a.startNow()
	first, err := l.launch(&start)
	if err != nil {
		return nil, false, err
	}
	// On a full disk, an agent starts with what it started with before.
	if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, first.Bootstrap) {
		if err := durable.WriteFile(durable.OS{}, path, first.Bootstrap, 0o600); err != nil {
			return nil, false, err
		}
	}
	a.mu.Lock()
	a.started = nil
	if running {
		a.started = &start // else it is replaced
	}
	a.known, a.envoyLimits = known, l.config.Limits
	// The socket of an Envoy that has not connected yet, or that an earlier release
	// started, was not moved.
	a.admin, a.adminPaths = proxy.NewAdmin("unix", paths.moved, paths.made), paths
	listens := []netip.AddrPort{}
	if a.c.AdminAddress.IsValid() {
		a.admin = proxy.NewAdmin("tcp", a.c.AdminAddress.String())
		listens = append(listens, a.c.AdminAddress)
	}
	admin := a.admin
	a.status.Ports = ports
	a.mu.Unlock()
	for _, at := range []netip.AddrPort{ports.Stats, ports.Health} {
		if at.IsValid() {
			listens = append(listens, at)
		}
	}
	p, err := proxy.New(proxy.Config{
		Logger: a.c.Logger, Binary: binary.Path, BootstrapPath: path, Bootstrap: first.Bootstrap, Admin: admin, StateFile: state,
		Save:    func(ctx context.Context, write func() error) { a.saveNow(ctx, state, write) },
		LogFile: a.c.EnvoyLog, LogBounded: a.c.AccessLogFiles > 0 || a.c.EnvoyOutput != nil,
		Fingerprint: first.Fingerprint, Args: first.Args, Env: first.Env, Listens: listens, DrainTime: a.drainNow(), LeaveRunning: a.c.LeaveRunning,
		Renew:   l.renew,
		Leaving: a.finishMetrics, Replacing: a.readReplaced,
	})
	return p, running, err
}

// environment is the value of a variable of the agent's environment, or empty.
func (a *Agent) environment(name string) string {
	for _, kv := range a.c.Environ {
		if key, value, _ := strings.Cut(kv, "="); key == name {
			return value
		}
	}
	return ""
}

func envoyVersion(b proxy.Binary) bootstrap.Version {
	v := b.Version
	return bootstrap.Version{Major: uint32(v.Major), Minor: uint32(v.Minor), Patch: uint32(v.Patch)}
}

// startedWith is the input of an Envoy's start. Of the environment only the variables that
// somebody named count: the usual ones may differ from shell to shell.
func (a *Agent) startedWith(bootstrap []byte, binary string, args []string) []byte {
	b := fmt.Appendf(slices.Clone(bootstrap), "%q %q", binary, args)
	if len(a.c.EnvoyEnv) > 0 {
		named := func(kv string) bool {
			name, _, _ := strings.Cut(kv, "=")
			return !slices.Contains(a.c.EnvoyEnv, name)
		}
		b = fmt.Appendf(b, " %q", slices.Sorted(slices.Values(slices.DeleteFunc(proxy.Environment(a.c.Environ, a.c.EnvoyEnv), named))))
	}
	return b
}

// Ports are the addresses of Envoy's static listeners; the zero value of one
// means none.
type Ports struct {
	Stats  netip.AddrPort `json:"stats"`
	Health netip.AddrPort `json:"health"`
}

// ports chooses the ports of the static listeners: those of a running Envoy, those of the
// flags, or the defaults, or free ports if those are in use.
func (a *Agent) ports(ctx context.Context, addr netip.Addr, running bool) (Ports, error) {
	note := a.inRun("ports.json")
	if running {
		var p Ports
		if b, err := os.ReadFile(note); err == nil && json.Unmarshal(b, &p) == nil && a.suits(p, addr) {
			return p, nil
		}
	}
	var p Ports
	var err error
	if p.Stats, err = a.port(ctx, "--stats-port", netip.AddrPortFrom(addr, DefaultStatsPort), a.c.StatsPort); err != nil {
		return p, err
	}
	if p.Health, err = a.port(ctx, "--health-port", netip.AddrPortFrom(addr, DefaultHealthPort), a.c.HealthPort); err != nil {
		return p, err
	}
	b, err := json.Marshal(p)
	if err != nil {
		return p, fmt.Errorf("recording the ports: %w", err)
	}
	a.saveNow(ctx, note, func() error { return durable.WriteFile(durable.OS{}, note, b, 0o600) })
	return p, nil
}

// suits reports whether a running Envoy's ports are those of the flags.
func (a *Agent) suits(p Ports, addr netip.Addr) bool {
	fits := func(at netip.AddrPort, want int) bool {
		switch {
		case want < 0:
			return !at.IsValid()
		case want > 0:
			return at == netip.AddrPortFrom(addr, uint16(want))
		default:
			return at.IsValid() && at.Addr() == addr
		}
	}
	return fits(p.Stats, a.c.StatsPort) && fits(p.Health, a.c.HealthPort)
}

func (a *Agent) port(ctx context.Context, flag string, usual netip.AddrPort, want int) (netip.AddrPort, error) {
	const highest = 65535
	switch {
	case want < 0:
		return netip.AddrPort{}, nil
	case want > highest:
		return netip.AddrPort{}, fmt.Errorf("%s: %d is not a port", flag, want)
	case want > 0:
		// Starting Envoy fails if it is in use.
		return netip.AddrPortFrom(usual.Addr(), uint16(want)), nil
	}
	taken := proxy.CheckFree(ctx, []netip.AddrPort{usual})
	if taken == nil {
		return usual, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", netip.AddrPortFrom(usual.Addr(), 0).String())
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("choosing a free port on %s: %w: --address must be an address of this host", usual.Addr(), err)
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	if err := l.Close(); err != nil {
		return netip.AddrPort{}, fmt.Errorf("choosing a free port: %w", err)
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("choosing a free port: %w", err)
	}
	a.log.WarnContext(ctx, "default port is in use, using a free port", "usual", usual, "port", at.Port(), "flag", flag, "err", taken)
	return at, nil
}

// envoyArgs are the arguments of Envoy that are not the agent's own.
func (a *Agent) envoyArgs() []string {
	if a.c.EnvoyArgs == nil {
		return proxy.LogArgs("warning")
	}
	return a.c.EnvoyArgs
}

// hostsOf are the names, not the addresses, among HOST:PORT.
func hostsOf(servers []string) (out []string) {
	for _, s := range servers {
		host, _, err := net.SplitHostPort(s)
		if _, isAddress := netip.ParseAddr(host); err == nil && isAddress != nil && host != "" {
			out = append(out, host)
		}
	}
	return out
}
