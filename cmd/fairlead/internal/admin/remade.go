package admin

import (
	"maps"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
)

// remadeSockets is the metric of sockets that were made again because somebody had removed
// them.
type remadeSockets struct{ s *Server }

func (remadeSockets) desc() *prometheus.Desc {
	return prometheus.NewDesc("fairlead_remade_sockets_total",
		"How often a socket in the run directory was made again because something had removed it, by its name (socket).", []string{"socket"}, nil)
}

// Describe implements [prometheus.Collector].
func (r remadeSockets) Describe(ch chan<- *prometheus.Desc) { ch <- r.desc() }

// Collect implements [prometheus.Collector].
func (r remadeSockets) Collect(ch chan<- prometheus.Metric) {
	counts := map[string]uint64{}
	if r.s.cfg.Sockets != nil {
		maps.Copy(counts, r.s.cfg.Sockets())
	}
	if r.s.remade != nil {
		counts[filepath.Base(r.s.cfg.Socket)] = r.s.remade()
	}
	for name, n := range counts {
		ch <- prometheus.MustNewConstMetric(r.desc(), prometheus.CounterValue, float64(n), name)
	}
}
