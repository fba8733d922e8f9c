package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/agent/health"
	"github.com/fairlead/fairlead/agent/metrics"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// hostConfig is what the control plane says of this host's proxy: its ProxyConfig. Immutable.
type hostConfig struct {
	// workload is who the workload is for Istio's metrics.
	workload bootstrap.Workload
	start    startSettings
	// drain is how long a stop of Envoy waits for connections to end.
	drain time.Duration
	// probe says how to probe the application, or is nil; probed is what it was read from.
	probe  *health.Probe
	probed *networking.ReadinessProbe
	// app is where the application has its metrics, or nil.
	app *url.URL
	// statusPort is where the agent is to serve health and metrics; 0 means that nothing says so.
	statusPort uint16
}

// startSettings are what Envoy can only be started with. The names in the tags are those of the
// ProxyConfig.
type startSettings struct {
	// Concurrency is the number of worker threads; 0 means one for each core.
	Concurrency int32 `field:"concurrency"`
	// Drain is how long a listener drains that was changed or removed; whole seconds.
	Drain time.Duration `field:"drainDuration"`
	// Matcher and Tags are statistics and labels that Envoy has besides the usual ones.
	Matcher matcher  `field:"proxyStatsMatcher"`
	Tags    []string `field:"extraStatTags"`
}

type matcher struct{ Prefixes, Suffixes, Regexps []string }

// Defaults of a ProxyConfig (Istio's pkg/config/mesh, DefaultProxyConfig).
const (
	defaultDrain            = 45 * time.Second
	defaultTerminationDrain = 5 * time.Second
)

// Limits of a ProxyConfig: what is beyond them is rejected. The control plane reports the same
// beside the line where it is written.
const (
	maxConcurrency = 1024
	maxDrain       = time.Hour
	maxPatterns    = 256
	maxPattern     = 512  // bytes
	maxProgram     = 4096 // instructions; an Envoy does not start with a pattern of more than 32,768
	maxTags        = 64
	maxTag         = 128 // bytes
	// minStatusPort is the first port that needs no privilege.
	minStatusPort = 1024
)

// readProxyConfig reads an encoded ProxyConfig. own is the address of the host. An error says
// what this agent cannot use; then none of it is.
func readProxyConfig(body []byte, own netip.Addr) (*hostConfig, error) {
	pc := &meshconfig.ProxyConfig{}
	if err := proto.Unmarshal(body, pc); err != nil {
		return nil, fmt.Errorf("reading the ProxyConfig: %w", err)
	}
	c := &hostConfig{drain: defaultTerminationDrain, start: defaultStart()}
	var errs []error
	var err error
	c.workload, err = bootstrap.WorkloadOf(pc.GetProxyMetadata())
	errs = append(errs, err)
	if text := bootstrap.AppMetricsOf(pc.GetProxyMetadata()); text != "" {
		c.app, err = metrics.ParseApp(text)
		errs = append(errs, err)
	}
	if c.start.Concurrency = pc.GetConcurrency().GetValue(); c.start.Concurrency < 0 || c.start.Concurrency > maxConcurrency {
		errs = append(errs, fmt.Errorf("concurrency: %d is not from 0 to %d", c.start.Concurrency, maxConcurrency))
	}
	if port := pc.GetStatusPort(); port != 0 && (port < minStatusPort || port > math.MaxUint16) {
		errs = append(errs, fmt.Errorf("statusPort: %d is not from %d to %d", port, minStatusPort, math.MaxUint16))
	} else {
		c.statusPort = uint16(port)
	}
	duration := func(name string, set bool, value time.Duration, to *time.Duration) {
		switch {
		case !set:
		case value < 0 || value > maxDrain:
			errs = append(errs, fmt.Errorf("%s: %s is not from 0s to %s", name, value, maxDrain))
		default:
			*to = value
		}
	}
	duration("drainDuration", pc.GetDrainDuration() != nil, pc.GetDrainDuration().AsDuration().Truncate(time.Second), &c.start.Drain)
	duration("terminationDrainDuration", pc.GetTerminationDrainDuration() != nil, pc.GetTerminationDrainDuration().AsDuration(), &c.drain)
	errs = append(errs, c.start.readStats(pc, own))
	if p := pc.GetReadinessProbe(); p != nil {
		c.probed = p
		if c.probe, err = health.FromIstio(p); err == nil {
			err = onThisHost(c.probe, own)
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("using the ProxyConfig: %w", err)
	}
	return c, nil
}

func defaultStart() startSettings { return startSettings{Drain: defaultDrain} }

func (s *startSettings) readStats(pc *meshconfig.ProxyConfig, own netip.Addr) error {
	var errs []error
	m := pc.GetProxyStatsMatcher()
	if n := len(m.GetInclusionPrefixes()) + len(m.GetInclusionSuffixes()) + len(m.GetInclusionRegexps()); n > maxPatterns {
		return fmt.Errorf("proxyStatsMatcher: %d patterns, at most %d are allowed", n, maxPatterns)
	}
	for _, list := range []struct {
		from []string
		to   *[]string
	}{
		{m.GetInclusionPrefixes(), &s.Matcher.Prefixes}, {m.GetInclusionSuffixes(), &s.Matcher.Suffixes}, {m.GetInclusionRegexps(), &s.Matcher.Regexps},
	} {
		for _, p := range list.from {
			if p == "" || len(p) > maxPattern {
				errs = append(errs, fmt.Errorf("proxyStatsMatcher: a pattern has %d bytes, and must have 1 to %d", len(p), maxPattern))
			}
			*list.to = append(*list.to, strings.ReplaceAll(p, "{pod_ip}", own.String())) // as Istio's agent
		}
	}
	for _, p := range s.Matcher.Regexps {
		if err := checkPattern(p); err != nil {
			errs = append(errs, fmt.Errorf("proxyStatsMatcher: %w", err))
		}
	}
	if n := len(pc.GetExtraStatTags()); n > maxTags {
		return fmt.Errorf("extraStatTags: %d tags, at most %d are allowed", n, maxTags)
	}
	for _, tag := range pc.GetExtraStatTags() {
		switch {
		case tag == "" || slices.Contains(s.Tags, tag):
		case !statTag.MatchString(tag):
			errs = append(errs, fmt.Errorf("extraStatTags: %.40q has more than letters, digits, '_' and '.', or more than %d bytes", tag, maxTag))
		default:
			s.Tags = append(s.Tags, tag)
		}
	}
	return errors.Join(errs...)
}

var statTag = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.]{0,` + strconv.Itoa(maxTag-1) + `}$`)

// checkPattern judges a regular expression by RE2's rules, and its size: Envoy does not start with
// one that it refuses.
func checkPattern(p string) error {
	re, err := syntax.Parse(p, syntax.Perl)
	if err != nil {
		return fmt.Errorf("%.40q is not a regular expression as RE2 reads them: %w", p, err)
	}
	prog, err := syntax.Compile(re.Simplify())
	if err != nil {
		return fmt.Errorf("%.40q is not a regular expression as RE2 reads them: %w", p, err)
	}
	if len(prog.Inst) > maxProgram {
		return fmt.Errorf("the regular expression %.40q is too large", p)
	}
	return nil
}

// onThisHost refuses a probe of another host: whoever can write a manifest must not have this one
// connect there. The flags of the agent may name any host.
func onThisHost(p *health.Probe, own netip.Addr) error {
	var host string
	if p.HTTP != nil {
		host = p.HTTP.Host
	} else {
		host = p.TCP.Host
	}
	addr, err := netip.ParseAddr(host)
	if host == "" || host == "localhost" || err == nil && (addr.Unmap().IsLoopback() || addr.Unmap() == own.Unmap()) {
		return nil
	}
	return fmt.Errorf("readinessProbe: host %.40q is not this host (%s); the flags --probe-http and --probe-tcp may name others", host, own)
}

// configure takes the ProxyConfig that the control plane sends; nil means that it has none. An
// error rejects it: the last one stays in force. It does not wait.
func (a *Agent) configure(body []byte, own netip.Addr) error {
	if body != nil {
		next, err := readProxyConfig(body, own)
		if err != nil {
			return err
		}
		a.apply(next)
		a.noteNamed()
	}
	select {
	case a.configured <- struct{}{}:
	default:
	}
	return nil
}

// apply puts a ProxyConfig in force, as far as that is possible without a restart of Envoy.
func (a *Agent) apply(next *hostConfig) {
	a.config.Store(next)
	a.mu.Lock()
	envoy, started := a.proxy, a.started
	a.mu.Unlock()
	if envoy != nil && a.c.DrainTime == 0 {
		envoy.SetDrainTime(next.drain)
	}
	if was := a.wantedPort.Swap(uint32(next.statusPort)); was != uint32(next.statusPort) && next.statusPort != 0 && a.metricsPort.Load() != uint32(next.statusPort) && !a.portChosen.Load() {
		a.log.Info("statusPort of the ProxyConfig changed; it is in force with the next start of the agent", "port", a.metricsPort.Load(), "next", next.statusPort)
	}
	if fields := next.start.differs(started); len(fields) > 0 {
		a.log.Info("the ProxyConfig changed; it is in force with the next start of Envoy", "names", fields)
	}
	select {
	case a.reprobe <- struct{}{}:
	default:
	}
}

// differs names the fields that differ from what Envoy was started with, which is nil as long as
// none was started.
func (s *startSettings) differs(started *startSettings) []string {
	if started == nil {
		return nil
	}
	var out []string
	now, was := reflect.ValueOf(*s), reflect.ValueOf(*started)
	for i := range now.NumField() {
		if !reflect.DeepEqual(now.Field(i).Interface(), was.Field(i).Interface()) {
			out = append(out, now.Type().Field(i).Tag.Get("field"))
		}
	}
	return out
}

// restoreConfig takes the ProxyConfig that was accepted last, so that this start does not depend
// on the control plane.
func (a *Agent) restoreConfig(node *corev3.Node, own netip.Addr) {
	body, stored := relay.StoredProxyConfig(a.inState(acceptedFile), node)
	a.config.Store(nil) // another workload's
	a.mayWait = !stored
	if body == nil {
		return
	}
	next, err := readProxyConfig(body, own)
	if err != nil {
		a.log.Warn("stored ProxyConfig is unusable; starting with the defaults until the control plane sends another", "err", err)
		return
	}
	a.config.Store(next)
	a.noteNamed()
}

// StatusPort is where the ProxyConfig that was accepted last has the agent serve health and metrics
// (statusPort); 0 if nothing says so.
func (a *Agent) StatusPort() uint16 {
	body, _ := relay.StoredProxyConfig(a.inState(acceptedFile), nil)
	pc := &meshconfig.ProxyConfig{}
	if err := proto.Unmarshal(body, pc); err != nil {
		return 0 // what reads the rest of it will say so
	}
	if port := pc.GetStatusPort(); port >= minStatusPort && port <= math.MaxUint16 {
		a.wantedPort.Store(uint32(port))
		return uint16(port)
	}
	return 0
}

// noteNamed has the identities check whether the certificate has the workload's name.
func (a *Agent) noteNamed() {
	select {
	case a.named <- struct{}{}:
	default:
	}
}

// firstConfigTime is how long the first Envoy of a host waits for the ProxyConfig. It has nothing
// to serve before the control plane answers.
const firstConfigTime = 5 * time.Second

// awaitConfig waits for the ProxyConfig before the first Envoy of a host is started, so that it need
// not be restarted at once. A host that has a configuration on disk does not wait.
func (a *Agent) awaitConfig(ctx context.Context) {
	if !a.mayWait {
		return
	}
	a.mayWait = false
	timer := time.NewTimer(firstConfigTime)
	defer timer.Stop()
	select {
	case <-a.configured:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// startNow is what Envoy is to be started with.
func (a *Agent) startNow() startSettings {
	if c := a.config.Load(); c != nil {
		return c.start
	}
	return defaultStart()
}

// drainNow is how long a stop of Envoy waits: the flag wins.
func (a *Agent) drainNow() time.Duration {
	d := defaultTerminationDrain
	if c := a.config.Load(); c != nil {
		d = c.drain
	}
	return cmp.Or(a.c.DrainTime, d)
}

// Workload is who the control plane says that the workload is; false until it has said so once.
// What it said last counts while it is away, and after a restart.
func (a *Agent) Workload() (bootstrap.Workload, bool) {
	c := a.config.Load()
	if c == nil || c.workload == (bootstrap.Workload{}) {
		return bootstrap.Workload{}, false
	}
	return c.workload, true
}

// runProbe probes the application as the ProxyConfig says, until ctx ends. The flags of the agent
// win: with them it is not called.
func (a *Agent) runProbe(ctx context.Context, r health.Reporter) error {
	for ctx.Err() == nil {
		now := a.config.Load()
		var probed *networking.ReadinessProbe
		if now != nil {
			probed = now.probed
		}
		same := func() bool {
			c := a.config.Load()
			return c != nil && proto.Equal(c.probed, probed) || c == nil && probed == nil
		}
		if err := a.probeWhile(ctx, now, same, r); err != nil {
			return err
		}
	}
	return nil
}

// probeWhile probes while the ProxyConfig has the same probe.
func (a *Agent) probeWhile(ctx context.Context, now *hostConfig, same func() bool, r health.Reporter) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	if now == nil || now.probe == nil {
		close(done)
	} else {
		checker, err := health.New(health.Config{Logger: a.c.Logger, Envoy: envoyReadiness{a}, Reporter: r, Probe: *now.probe})
		if err != nil {
			return err
		}
		go func() { done <- checker.Run(ctx) }()
	}
	for same() {
		select {
		case <-a.reprobe:
		case <-ctx.Done():
			return <-done
		}
	}
	cancel()
	err := <-done
	if c := a.config.Load(); c == nil || c.probe == nil { // nobody asks any more
		r.ReportHealth(true, "")
	}
	return err
}
