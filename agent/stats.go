package agent

import (
	"context"
	"io"
	"net/netip"
	"net/url"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/agent/metrics"
	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// countersFile has the counters of requests while no agent runs.
const countersFile = "counters.json"

// lossesFile has how often counts of requests were lost.
const lossesFile = "counter-losses.json"

// collector makes what collects the metrics of requests and connections of an Envoy.
func (a *Agent) collector(node bootstrap.Node, envoy *proxy.Process, r *relay.Relay, guard *peercred.Guard) (*metrics.Collector, error) {
	return metrics.New(metrics.Config{
		Logger: a.c.Logger, Socket: a.inRun(alsSocket), UID: uint32(os.Geteuid()), Guard: guard, MaxSeries: a.c.MaxRequestSeries,
		Open: func(ctx context.Context, path string) (io.ReadCloser, error) {
			a.mu.Lock()
			admin := a.admin
			a.mu.Unlock()
			return admin.Open(ctx, path)
		},
		Process: func() metrics.Process {
			s := envoy.Status()
			return metrics.Process{PID: s.PID, Since: s.Since, Adopted: s.Adopted, Birth: envoy.Birth()}
		},
		Listeners: func() metrics.Listeners {
			changing := r.Status().Held > 0 // first: the listeners of an update are there before its end
			number, bodies := r.Listeners()
			return metrics.Listeners{Number: number, Bodies: bodies, Changing: changing}
		},
		Workload: func() metrics.Workload { return a.measured(node) }, StateFile: a.inState(countersFile), Owner: node.ID(), LossesFile: a.inState(lossesFile),
	})
}

// measured is the workload of this host as metrics name it: as the control plane says, and by
// the name of the node until it has said so once.
func (a *Agent) measured(node bootstrap.Node) metrics.Workload {
	w := metrics.Workload{Name: node.WorkloadName, Namespace: node.Namespace, CanonicalName: node.WorkloadName, Cluster: node.ClusterID}
	if who, known := a.Workload(); known {
		w = metrics.Workload{
			Name: who.Name, Namespace: who.Namespace, App: who.App, Version: who.Version,
			CanonicalName: who.CanonicalName, CanonicalRevision: who.CanonicalRevision, Cluster: who.Cluster,
		}
	}
	if id := a.workload.Load(); id != nil {
		w.Principal = id.ID.String()
	}
	return w
}

// ServeMetricsAt says at which port the page of metrics is, for the control plane's list of targets.
// chosen means that a ProxyConfig does not change it. It counts if it is called before Run.
func (a *Agent) ServeMetricsAt(port uint16, chosen bool) {
	a.metricsPort.Store(uint32(port))
	a.portChosen.Store(chosen)
}

// readReplaced reads the counters of an Envoy of an earlier agent before it is stopped.
func (a *Agent) readReplaced(ctx context.Context) {
	a.mu.Lock()
	c := a.metrics
	a.mu.Unlock()
	if c != nil {
		c.ReadReplaced(ctx)
	}
}

// finishMetrics saves the counters before Envoy is stopped or left.
func (a *Agent) finishMetrics(ctx context.Context, left bool) {
	a.mu.Lock()
	c := a.metrics
	a.mu.Unlock()
	if c != nil {
		c.Finish(ctx, left)
	}
}

// StatsHandler serves the metrics of Envoy, of the application, and those of own on one page. The
// application's are at app, or, if that is nil, where the workload's annotations say.
func (a *Agent) StatsHandler(own prometheus.Gatherer, app *url.URL) (*metrics.Handler, error) {
	return metrics.NewHandler(metrics.HandlerConfig{
		Logger: a.c.Logger, Own: own,
		App: func() *url.URL {
			if c := a.config.Load(); app == nil && c != nil {
				return c.app
			}
			return app
		},
		Collector: func() *metrics.Collector {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.metrics
		},
		Address: func() netip.Addr {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.nodeAddress
		},
	})
}
