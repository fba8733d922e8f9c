package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// launcher makes what Envoy is started with, from what is fixed for a run of the agent and from
// the ProxyConfig as it is at that time.
type launcher struct {
	a      *Agent
	binary proxy.Binary
	config bootstrap.Config
	// connected is when an Envoy connected to the agent last.
	connected func() time.Time
	// tried is the fingerprint of the last launch by a ProxyConfig, at triedAt; failures counts
	// how often Envoy ended with it before it connected.
	tried    string
	triedAt  time.Time
	failures int
}

// launch is what Envoy is started with for some settings.
func (l *launcher) launch(s *startSettings) (proxy.Launch, error) {
	c := l.config
	c.Stats = bootstrap.StatsSettings{Prefixes: s.Matcher.Prefixes, Suffixes: s.Matcher.Suffixes, Regexps: s.Matcher.Regexps, Tags: s.Tags}
	if who, known := l.a.Workload(); known {
		c.Node.ServiceCluster = who.ServiceName()
	}
	b, err := bootstrap.Marshal(c)
	if err != nil {
		return proxy.Launch{}, err
	}
	// Removed listeners drain as Istio's do; the drain time of a stop is another setting.
	args, named := []string{"--drain-time-s", strconv.Itoa(int(s.Drain / time.Second)), "--drain-strategy", "immediate"}, l.a.envoyArgs()
	const threads = "--concurrency"
	if s.Concurrency > 0 && !slices.Contains(named, threads) {
		args = append(args, threads, strconv.Itoa(int(s.Concurrency)))
	}
	args = append(args, named...)
	sum := sha256.Sum256(l.a.startedWith(b, l.binary.Path, args))
	return proxy.Launch{Bootstrap: b, Args: args, Env: l.environ(), Fingerprint: hex.EncodeToString(sum[:16])}, nil
}

// environ is Envoy's environment: what it inherits, and who the workload is, for spans. A variable
// that somebody named wins.
func (l *launcher) environ() []string {
	const attributes = "OTEL_RESOURCE_ATTRIBUTES"
	inherited := proxy.Environment(l.a.c.Environ, l.a.c.EnvoyEnv)
	who, known := l.a.Workload()
	if !known {
		return inherited
	}
	var named string
	inherited = slices.DeleteFunc(inherited, func(kv string) bool {
		value, found := strings.CutPrefix(kv, attributes+"=")
		if found {
			named = value
		}
		return found
	})
	// Of two with one name the last one counts.
	return append(who.TraceEnviron(l.a.c.MeshID, named), inherited...)
}

// renew is what the next Envoy is started with. If Envoy has ended twice with the ProxyConfig's
// settings before it connected to the agent, it is started without them: a host must not lose its
// Envoy by what somebody wrote for the mesh.
func (l *launcher) renew(ctx context.Context) (proxy.Launch, error) {
	l.a.awaitConfig(ctx)
	s, usual := l.a.startNow(), defaultStart()
	next, err := l.launch(&s)
	if len(s.differs(&usual)) > 0 && (err != nil || l.failed(next.Fingerprint)) {
		l.a.log.ErrorContext(ctx, "Envoy does not start with the ProxyConfig; starting it without what that says of statistics, threads and draining", "err", err)
		s = usual
		next, err = l.launch(&s)
	}
	if err == nil {
		l.a.mu.Lock()
		l.a.started = &s
		l.a.mu.Unlock()
	}
	return next, err
}

// failed reports whether Envoy has failed twice with this launch, and counts the next start.
func (l *launcher) failed(fingerprint string) bool {
	switch {
	case fingerprint != l.tried:
		l.tried, l.failures = fingerprint, 0
	case l.failures >= maxFailures:
		return true
	case !l.connected().After(l.triedAt):
		l.failures++
	default:
		l.failures = 0
	}
	l.triedAt = time.Now()
	return l.failures >= maxFailures
}

// maxFailures is how often Envoy may fail with a ProxyConfig until it is started without.
const maxFailures = 2

// envoyConnected is when an Envoy connected to the agent last; zero if none did.
func (a *Agent) envoyConnected() time.Time {
	a.mu.Lock()
	r := a.relay
	a.mu.Unlock()
	if r == nil {
		return time.Time{}
	}
	return r.Status().LastEnvoy
}
