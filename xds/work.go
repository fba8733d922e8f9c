package xds

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/xds/stream"
)

// Work is what was done since the start of a server, or for one push: what a
// change costs is to be seen, not believed.
type Work struct {
	// ViewsBuilt are views that differ from what the proxy had, ViewsKept those
	// that are the same. Classes are different contents, over all proxies.
	ViewsBuilt, ViewsKept, Classes uint64
	// Built are resources that were made and encoded, by type. Each is encoded
	// once, whoever is sent it.
	Built map[stream.TypeURL]Amount
	// Sent are resources in responses, and the bytes of those; of a Rollout they
	// are not known.
	Sent map[stream.TypeURL]Amount
}

// Amount is a number of resources, and of bytes.
type Amount struct{ Resources, Bytes uint64 }

// since is what was done after an earlier moment; nothing that was not touched is
// in it.
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

// countedTypes are those that are counted each by itself.
//
//nolint:gochecknoglobals // a read-only table
var countedTypes = [...]stream.TypeURL{
	stream.ClusterType, stream.EndpointType, stream.ListenerType, stream.RouteType, stream.VirtualHostType, "",
}

func typeIndex(t stream.TypeURL) int {
	for i, c := range countedTypes {
		if c == t {
			return i
		}
	}
	return len(countedTypes) - 1
}

// work counts.
type work struct {
	views, kept, classes atomic.Uint64
	built, sent          [len(countedTypes)]amount
}

type amount struct{ resources, bytes atomic.Uint64 }

func (a *amount) add(resources, bytes int) {
	a.resources.Add(uint64(resources))
	a.bytes.Add(uint64(bytes))
}

func (w *work) read() Work {
	out := Work{
		ViewsBuilt: w.views.Load(), ViewsKept: w.kept.Load(), Classes: w.classes.Load(),
		Built: map[stream.TypeURL]Amount{}, Sent: map[stream.TypeURL]Amount{},
	}
	for i, t := range countedTypes {
		out.Built[t] = Amount{w.built[i].resources.Load(), w.built[i].bytes.Load()}
		out.Sent[t] = Amount{w.sent[i].resources.Load(), w.sent[i].bytes.Load()}
	}
	return out
}

// Work is what was done since the start.
func (s *Server) Work() Work { return s.classes.work.read() }

// collectors give the counters to Prometheus.
func (w *work) collectors() []prometheus.Collector {
	var out []prometheus.Collector
	add := func(name, help, label, value string, of *atomic.Uint64) {
		out = append(out, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels{label: value},
		}, func() float64 { return float64(of.Load()) }))
	}
	const views = "Views of proxies after a change: built anew, or kept because nothing in them differs."
	add("fairlead_xds_views_total", views, "result", "built", &w.views)
	add("fairlead_xds_views_total", views, "result", "kept", &w.kept)
	for i, t := range countedTypes {
		add("fairlead_xds_resources_built_total", "Resources that were made, by type.", "type", label(t), &w.built[i].resources)
		add("fairlead_xds_bytes_encoded_total", "Bytes of the resources that were made, by type.", "type", label(t), &w.built[i].bytes)
		add("fairlead_xds_bytes_sent_total", "Bytes of responses, by type.", "type", label(t), &w.sent[i].bytes)
	}
	return out
}
