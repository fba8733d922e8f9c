package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
)

// agentPage are the agent's own metrics, and the page with all metrics of the host.
type agentPage struct {
	// shared are the metrics of both.
	shared   prometheus.Registerer
	own, all http.Handler
}

// newAgentPage makes both pages. Metrics of the process are istio_agent_… on the page with all
// metrics, as in Istio: an application has some of the same names.
func newAgentPage(a *agent.Agent, app *url.URL) (*agentPage, error) {
	shared, process, prefixed := prometheus.NewRegistry(), prometheus.NewRegistry(), prometheus.NewRegistry()
	all, err := a.StatsHandler(prometheus.Gatherers{shared, prefixed}, app)
	if err != nil {
		return nil, err
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "istio_build", Help: "The agent's version. It is always 1.", ConstLabels: prometheus.Labels{"component": "proxy", "tag": version},
	})
	build.Set(1)
	shared.MustRegister(newAgentCollector(a.Status), all, build)
	for _, r := range []prometheus.Registerer{process, prometheus.WrapRegistererWithPrefix("istio_agent_", prefixed)} {
		r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	return &agentPage{
		shared: shared, own: promhttp.HandlerFor(prometheus.Gatherers{shared, process}, promhttp.HandlerOpts{}), all: all,
	}, nil
}

// usualAgentHTTP is where the agent serves health and metrics: Istio's port.
const usualAgentHTTP = "127.0.0.1:15020"

// agentHTTP is where the agent serves health and metrics: the flag wins if it is given, then the
// statusPort of the ProxyConfig, which is 0 if there is none.
func agentHTTP(flag string, given bool, statusPort uint16) string {
	if given || statusPort == 0 {
		return flag
	}
	return fmt.Sprintf("127.0.0.1:%d", statusPort)
}

// newAgentAdmin serves an agent's administration. If its address is in use and nobody chose it,
// it takes a free port there: several agents may run on one host.
func newAgentAdmin(ctx context.Context, c admin.Config, chosen bool) (*admin.Server, error) {
	s, err := admin.New(ctx, c)
	if chosen || !errors.Is(err, syscall.EADDRINUSE) {
		return s, err
	}
	host, _, splitErr := net.SplitHostPort(c.Address)
	if splitErr != nil {
		return nil, err
	}
	usual := c.Address
	c.Address = net.JoinHostPort(host, "0")
	s, again := admin.New(ctx, c)
	if again != nil {
		return nil, again
	}
	c.Logger.WarnContext(ctx, "port for metrics is in use, using a free port", "usual", usual, "address", s.Address(), "flag", "--http-address", "err", err)
	return s, nil
}

// agentCollector makes metrics of the agent's status when they are collected.
type agentCollector struct {
	status                                               func() agent.Status
	expiry, start, running, connected, rejected, unsaved *prometheus.Desc
	refused, closed                                      *prometheus.Desc
	rotations, unrotated, removed, dropped               *prometheus.Desc
	reports                                              *prometheus.Desc
	queries, names, nameservers, loops                   *prometheus.Desc
	credentials, credentialEnd, credentialState          *prometheus.Desc
}

func newAgentCollector(status func() agent.Status) *agentCollector {
	return &agentCollector{
		status:    status,
		expiry:    prometheus.NewDesc("istio_agent_cert_expiry_timestamp", "Expiry of a certificate in Unix seconds, by SPIFFE ID (resource_name).", []string{"resource_name"}, nil),
		start:     prometheus.NewDesc("fairlead_agent_cert_start_timestamp", "Beginning of the validity of a certificate in Unix seconds, by SPIFFE ID (resource_name).", []string{"resource_name"}, nil),
		running:   prometheus.NewDesc("istio_agent_envoy_running", "1 if Envoy runs, else 0.", nil, nil),
		connected: prometheus.NewDesc("fairlead_agent_connected", "1 if the agent is connected to a control plane, else 0.", nil, nil),
		rejected:  prometheus.NewDesc("fairlead_agent_rejected_resources", "xDS resources that Envoy rejects (NACK) now.", nil, nil),
		unsaved:   prometheus.NewDesc("fairlead_agent_unsaved_files", "Files of the state directory that are outdated because saving failed. A restart would use the old content.", nil, nil),
		refused:   prometheus.NewDesc("fairlead_agent_refused_calls_total", "gRPC calls at the agent's sockets for Envoy that were rejected because they have no valid token.", nil, nil),
		closed:    prometheus.NewDesc("fairlead_agent_closed_connections_total", "Connections to the agent's sockets for Envoy that were closed because they showed no valid token.", nil, nil),
		rotations: prometheus.NewDesc("fairlead_agent_access_log_rotations_total", "Rotations of access logs that Envoy writes to files, and of Envoy's output.", nil, nil),
		unrotated: prometheus.NewDesc("fairlead_agent_access_log_problems", "Problems for which a log of Envoy is not rotated now and may grow without limit.", nil, nil),
		removed:   prometheus.NewDesc("fairlead_agent_access_log_removed_early_total", "Rotated files of Envoy's logs that were removed before their time because their file system was full.", nil, nil),
		dropped:   prometheus.NewDesc("fairlead_agent_access_log_dropped_bytes_total", "Bytes of Envoy's output that were dropped: no room, or the agent's standard output did not take them.", nil, nil),
		reports: prometheus.NewDesc("fairlead_agent_reports_dropped_total",
			"What collectors of spans and logs did not take, and Envoy dropped: calls and requests with spans or logs (calls), lines for access log services (log_entries), segments for SkyWalking (spans).", []string{"what"}, nil),
		queries:     prometheus.NewDesc("fairlead_agent_dns_queries_total", "DNS queries, by answer: mesh (from the names of the mesh), forwarded (as a nameserver answered), refused (not allowed), failed (SERVFAIL). Only with --dns.", []string{"answer"}, nil),
		names:       prometheus.NewDesc("fairlead_agent_dns_names", "Host names of the mesh that the agent answers. Only with --dns.", nil, nil),
		nameservers: prometheus.NewDesc("fairlead_agent_dns_nameserver_failures_total", "Queries that a nameserver of the host did not answer, since resolv.conf named it. Only with --dns.", []string{"nameserver"}, nil),
		credentials: prometheus.NewDesc("fairlead_agent_credentials", "Credentials that Envoy has asked for, by whether they are ready (state); authorities count for themselves.", []string{"state"}, nil),
		credentialEnd: prometheus.NewDesc("fairlead_agent_credential_expiry_timestamp",
			"Expiry of the credential that Envoy has, in Unix seconds, by name; that of authorities ends in -cacert. At most 256: those that are not ready, and then those that end first.", []string{"credential"}, nil),
		credentialState: prometheus.NewDesc("fairlead_agent_credential_problem",
			"1 for each credential that is not ready, by name and state (missing, unreadable, broken, mismatch, expired, early, rejected). Bounded as the expiry is.", []string{"credential", "state"}, nil),
		loops: prometheus.NewDesc("fairlead_agent_dns_loops", "Nameservers that send queries back to the agent, and are left out. Only with --dns.", nil, nil),
	}
}

// Describe implements [prometheus.Collector].
func (c *agentCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.expiry
	ch <- c.start
	ch <- c.running
	ch <- c.connected
	ch <- c.rejected
	ch <- c.unsaved
	ch <- c.refused
	ch <- c.closed
	ch <- c.rotations
	ch <- c.unrotated
	ch <- c.removed
	ch <- c.dropped
	ch <- c.reports
	ch <- c.credentials
	ch <- c.credentialEnd
	ch <- c.credentialState
	ch <- c.queries
	ch <- c.names
	ch <- c.nameservers
	ch <- c.loops
}

// Collect implements [prometheus.Collector].
func (c *agentCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	for _, id := range s.Identities {
		ch <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, float64(id.NotAfter.Unix()), id.ID)
		ch <- prometheus.MustNewConstMetric(c.start, prometheus.GaugeValue, float64(id.NotBefore.Unix()), id.ID)
	}
	ch <- prometheus.MustNewConstMetric(c.running, prometheus.GaugeValue, oneIf(s.Envoy.PID != 0))
	var r relay.Status // there is none before the host has its identity
	if s.Relay != nil {
		r = *s.Relay
	}
	ch <- prometheus.MustNewConstMetric(c.connected, prometheus.GaugeValue, oneIf(r.Upstream.Server != ""))
	ch <- prometheus.MustNewConstMetric(c.rejected, prometheus.GaugeValue, float64(len(r.Rejected)))
	ch <- prometheus.MustNewConstMetric(c.unsaved, prometheus.GaugeValue, float64(len(s.Unsaved)))
	ch <- prometheus.MustNewConstMetric(c.refused, prometheus.CounterValue, float64(s.RefusedCalls))
	ch <- prometheus.MustNewConstMetric(c.closed, prometheus.CounterValue, float64(s.ClosedConnections))
	ch <- prometheus.MustNewConstMetric(c.rotations, prometheus.CounterValue, float64(s.AccessLogs.Rotations))
	ch <- prometheus.MustNewConstMetric(c.unrotated, prometheus.GaugeValue, float64(len(s.AccessLogs.Problems)))
	ch <- prometheus.MustNewConstMetric(c.removed, prometheus.CounterValue, float64(s.AccessLogs.RemovedEarly))
	ch <- prometheus.MustNewConstMetric(c.dropped, prometheus.CounterValue, float64(s.AccessLogs.DroppedBytes))
	for what, n := range map[string]uint64{"calls": s.Reports.Calls, "log_entries": s.Reports.LogEntries, "spans": s.Reports.Spans} {
		ch <- prometheus.MustNewConstMetric(c.reports, prometheus.CounterValue, float64(n), what)
	}
	c.collectCredentials(ch, s.Credentials)
	if s.DNS == nil {
		return
	}
	for answer, n := range map[string]uint64{"mesh": s.DNS.Mesh, "forwarded": s.DNS.Forwarded, "refused": s.DNS.Refused, "failed": s.DNS.Failed} {
		ch <- prometheus.MustNewConstMetric(c.queries, prometheus.CounterValue, float64(n), answer)
	}
	ch <- prometheus.MustNewConstMetric(c.names, prometheus.GaugeValue, float64(s.DNS.Names))
	loops := 0.0
	for _, u := range s.DNS.Upstreams { // at most eight
		loops += oneIf(u.Loops)
		ch <- prometheus.MustNewConstMetric(c.nameservers, prometheus.CounterValue, float64(u.Failures), u.Address)
	}
	ch <- prometheus.MustNewConstMetric(c.loops, prometheus.GaugeValue, loops)
}

// maxCredentialSeries bounds the credentials with a series of their own.
const maxCredentialSeries = 256

func (c *agentCollector) collectCredentials(ch chan<- prometheus.Metric, list []workload.Credential) {
	list = workload.Foremost(list)
	counts := map[credential.State]int{credential.Ready: 0}
	seen := map[string]bool{} // two secrets may have one file
	for i, x := range list {
		counts[x.State]++
		if i >= maxCredentialSeries || seen[x.Name] {
			continue
		}
		seen[x.Name] = true
		if !x.NotAfter.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.credentialEnd, prometheus.GaugeValue, float64(x.NotAfter.Unix()), x.Name)
		}
		if x.State != credential.Ready {
			ch <- prometheus.MustNewConstMetric(c.credentialState, prometheus.GaugeValue, 1, x.Name, string(x.State))
		}
	}
	for state, n := range counts {
		ch <- prometheus.MustNewConstMetric(c.credentials, prometheus.GaugeValue, float64(n), string(state))
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
