package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/registry/consul"
)

// consulCollector turns the status of the sources that read Consul into metrics
// when somebody asks. Its labels are sources, of which there are as many as
// settings name.
type consulCollector struct {
	sources *catalogs

	available, age, fromDisk, services, instances, notes, denied, unreadable, watches, connections *prometheus.Desc

	reads, sweeps, fragments, throttled, failed, resets, restores *prometheus.Desc
}

func newConsulCollector(sources *catalogs) *consulCollector {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_"+name, help, []string{"source"}, nil)
	}
	return &consulCollector{
		sources:     sources,
		available:   d("consul_available", "1 if the Consul catalog can be read, else 0, by source."),
		age:         d("source_age_seconds", "Seconds since the configuration of a Consul source was last confirmed by Consul, by source."),
		fromDisk:    d("source_from_disk", "1 if a source still serves the content of the state directory because it was not read since the start, else 0, by source."),
		services:    d("consul_services", "Services in the Consul catalog, by source."),
		instances:   d("consul_instances", "Service instances in the Consul catalog, by source."),
		notes:       d("consul_notes", "Registrations in the Consul catalog that are left out or changed (see `fairlead analyze`), by source."),
		denied:      d("consul_denied_rules", "ACL rules that the Consul token lacks, by source."),
		unreadable:  d("consul_unreadable_services", "Consul services whose last answer is unusable; their last known instances stay in force. By source."),
		watches:     d("consul_watches", "Blocking queries to Consul that are open, by source."),
		connections: d("consul_connections", "Open connections to Consul, by source."),
		reads:       d("consul_reads_total", "Complete answers of Consul, by source."),
		sweeps:      d("consul_sweeps_total", "Sweeps, which check the index of each Consul service, by source."),
		fragments:   d("consul_fragments_total", "Changes of the Consul catalog that were passed on to the mesh, by source."),
		throttled:   d("consul_throttled_total", "Queries that Consul rejected with status 429 (rate or connection limit), by source."),
		failed:      d("consul_failed_total", "Queries to Consul that failed, by source."),
		resets:      d("consul_index_resets_total", "Times that an index of Consul went backwards (restored or replaced servers), by source."),
		restores:    d("consul_restores_total", "Times that Consul restored a snapshot while it ran, so that all was read again, by source."),
	}
}

// Describe implements [prometheus.Collector].
func (c *consulCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.available, c.age, c.fromDisk, c.services, c.instances, c.notes, c.denied, c.unreadable, c.watches, c.connections,
		c.reads, c.sweeps, c.fragments, c.throttled, c.failed, c.resets, c.restores,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *consulCollector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	sourceAge := func(source string, read time.Time, disk bool) {
		if !read.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, max(0, now.Sub(read).Seconds()), source)
		}
		ch <- prometheus.MustNewConstMetric(c.fromDisk, prometheus.GaugeValue, one(disk), source)
	}
	for _, st := range c.sources.texts() {
		sourceAge(st.Source, st.Read, st.FromDisk)
	}
	for _, st := range c.sources.status() {
		sourceAge(st.Source, st.Read, st.FromDisk)
		for d, v := range map[*prometheus.Desc]float64{
			c.available: one(st.State == consul.Live), c.services: float64(st.Services), c.instances: float64(st.Instances),
			c.notes: float64(st.NoteCount), c.denied: float64(st.DeniedCount), c.unreadable: float64(st.UnreadableCount), c.watches: float64(st.Watches), c.connections: float64(st.Connections),
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, st.Source)
		}
		for d, v := range map[*prometheus.Desc]uint64{
			c.reads: st.Reads, c.sweeps: st.Sweeps, c.fragments: st.Fragments, c.throttled: st.Throttled, c.failed: st.Failed, c.resets: st.Resets, c.restores: st.Restores,
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), st.Source)
		}
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
