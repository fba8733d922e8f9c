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
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Istio's labels of a workload, by which metrics name it.
const (
	labelApp               = "app"
	labelVersion           = "version"
	labelCanonicalName     = "service.istio.io/canonical-name"
	labelCanonicalRevision = "service.istio.io/canonical-revision"
)

// collector makes what collects the metrics of requests and connections of an Envoy.
func (a *Agent) collector(node bootstrap.Node, envoy *proxy.Process, guard *peercred.Guard) (*metrics.Collector, error) {
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
			return metrics.Process{PID: s.PID, Since: s.Since, Adopted: s.Adopted}
		},
		Workload: func() metrics.Workload { return a.measured(node) },
	})
}

// measured is the workload of this host as metrics name it.
func (a *Agent) measured(node bootstrap.Node) metrics.Workload {
	w := metrics.Workload{
		Name: node.WorkloadName, Namespace: node.Namespace, Cluster: node.ClusterID,
		App: node.Labels[labelApp], Version: node.Labels[labelVersion],
		CanonicalName: node.Labels[labelCanonicalName], CanonicalRevision: node.Labels[labelCanonicalRevision],
	}
	// As Istio does without the canonical labels.
	if w.CanonicalName == "" {
		w.CanonicalName = w.App
	}
	if w.CanonicalName == "" {
		w.CanonicalName = w.Name
	}
	if w.CanonicalRevision == "" {
		w.CanonicalRevision = w.Version
	}
	if id := a.workload.Load(); id != nil {
		w.Principal = id.ID.String()
	}
	return w
}

// StatsHandler serves the metrics of Envoy, of the application at app, which may be nil, and
// those of own on one page.
func (a *Agent) StatsHandler(own prometheus.Gatherer, app *url.URL) (*metrics.Handler, error) {
	return metrics.NewHandler(metrics.HandlerConfig{
		Logger: a.c.Logger, Own: own, App: app,
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
