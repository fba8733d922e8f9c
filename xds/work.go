package xds

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/xds/cache"
	"github.com/fairlead/fairlead/xds/stream"
)

// Work counts what was done since the start of a server, or for one rollout, so that the
// cost of a change can be measured.
type Work struct {
	// ViewsBuilt are views that differ from what the proxy had, ViewsKept those that are
	// the same. Classes are distinct configurations, over all proxies.
	ViewsBuilt, ViewsKept, Classes uint64
	// Built are resources that were built and encoded, by type. Each is encoded once for
	// all proxies.
	Built map[stream.TypeURL]Amount
	// Sent are resources in responses, and the bytes of those; not counted for a Rollout.
	Sent map[stream.TypeURL]Amount
}

// Amount is a number of resources and of bytes.
type Amount struct{ Resources, Bytes uint64 }

// since is what was done after an earlier time, without types of which nothing was done.
func (w Work) since(o Work) Work {
	w.ViewsBuilt -= o.ViewsBuilt
	w.ViewsKept -= o.ViewsKept
	w.Classes -= o.Classes
	w.Built = sinceAmounts(w.Built, o.Built)
	w.Sent = sinceAmounts(w.Sent, o.Sent)
	return w
}

func sinceAmounts(now, before map[stream.TypeURL]Amount) map[stream.TypeURL]Amount {
	out := map[stream.TypeURL]Amount{}
	for t, a := range now {
		a.Resources -= before[t].Resources
		a.Bytes -= before[t].Bytes
		if a != (Amount{}) {
			out[t] = a
		}
	}
	return out
}

// Work counts what was done since the start.
func (s *Server) Work() Work {
	made := &s.cache.Work
	out := Work{
		ViewsBuilt: made.ViewsBuilt.Load(), ViewsKept: made.ViewsKept.Load(), Classes: made.Resources.Load(),
		Built: map[stream.TypeURL]Amount{}, Sent: map[stream.TypeURL]Amount{},
	}
	for _, t := range cache.Types() {
		out.Built[t], out.Sent[t] = amountOf(made.Encoded.Of(t)), amountOf(s.sent.Of(t))
	}
	return out
}

func amountOf(c *cache.Counter) Amount { return Amount{c.Resources.Load(), c.Bytes.Load()} }

// workCollectors are the counters for Prometheus.
func workCollectors(made *cache.Work, sent *cache.ByType) []prometheus.Collector {
	var out []prometheus.Collector
	add := func(name, help, label, value string, of *atomic.Uint64) {
		out = append(out, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels{label: value},
		}, func() float64 { return float64(of.Load()) }))
	}
	const views = "Views of proxies that were computed after changes of the mesh, by result: built, or kept because nothing in the view differs."
	add("fairlead_xds_views_total", views, "result", "built", &made.ViewsBuilt)
	add("fairlead_xds_views_total", views, "result", "kept", &made.ViewsKept)
	for _, t := range cache.Types() {
		add("fairlead_xds_resources_built_total", "Resources that were built and encoded, by type (cds, eds, lds, rds, vhds). Each is encoded once for all proxies.", "type", label(t), &made.Encoded.Of(t).Resources)
		add("fairlead_xds_bytes_encoded_total", "Bytes of resources that were built and encoded, by type (cds, eds, lds, rds, vhds).", "type", label(t), &made.Encoded.Of(t).Bytes)
		add("fairlead_xds_bytes_sent_total", "Bytes of xDS responses sent, by type (cds, eds, lds, rds, vhds).", "type", label(t), &sent.Of(t).Bytes)
	}
	return out
}
