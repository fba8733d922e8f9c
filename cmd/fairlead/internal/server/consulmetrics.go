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

	reads, sweeps, fragments, throttled, failed, resets *prometheus.Desc
}

func newConsulCollector(sources *catalogs) *consulCollector {
	d := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_"+name, help, []string{"source"}, nil)
	}
	return &consulCollector{
		sources:     sources,
		available:   d("consul_available", "1 where the catalog can be read."),
		age:         d("source_age_seconds", "How long ago what is in force of a source was known to be true."),
		fromDisk:    d("source_from_disk", "1 where what is in force is what the state directory had at the start."),
		services:    d("consul_services", "Services of the catalog."),
		instances:   d("consul_instances", "Instances of the catalog."),
		notes:       d("consul_notes", "What of the catalog was left out or is not as it was meant."),
		denied:      d("consul_denied_rules", "Rules that the token lacks."),
		unreadable:  d("consul_unreadable_services", "Services of which the answer cannot be used."),
		watches:     d("consul_watches", "Questions that wait at Consul for a change."),
		connections: d("consul_connections", "Connections to Consul."),
		reads:       d("consul_reads_total", "Whole answers of Consul."),
		sweeps:      d("consul_sweeps_total", "Looks at all services."),
		fragments:   d("consul_fragments_total", "Pictures of the catalog that differed from the one before."),
		throttled:   d("consul_throttled_total", "Questions that Consul refused for a limit of its rate."),
		failed:      d("consul_failed_total", "Questions that got no answer."),
		resets:      d("consul_index_resets_total", "Indexes that went backwards."),
	}
}

// Describe implements [prometheus.Collector].
func (c *consulCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.available, c.age, c.fromDisk, c.services, c.instances, c.notes, c.denied, c.unreadable, c.watches, c.connections,
		c.reads, c.sweeps, c.fragments, c.throttled, c.failed, c.resets,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *consulCollector) Collect(ch chan<- prometheus.Metric) {
	now := time.Now()
	picture := func(source string, read time.Time, disk bool) {
		if !read.IsZero() {
			ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, max(0, now.Sub(read).Seconds()), source)
		}
		ch <- prometheus.MustNewConstMetric(c.fromDisk, prometheus.GaugeValue, one(disk), source)
	}
	for _, st := range c.sources.texts() {
		picture(st.Source, st.Read, st.FromDisk)
	}
	for _, st := range c.sources.status() {
		picture(st.Source, st.Read, st.FromDisk)
		for d, v := range map[*prometheus.Desc]float64{
			c.available: one(st.State == consul.Live), c.services: float64(st.Services), c.instances: float64(st.Instances),
			c.notes: float64(st.NoteCount), c.denied: float64(st.DeniedCount), c.unreadable: float64(st.UnreadableCount), c.watches: float64(st.Watches), c.connections: float64(st.Connections),
		} {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, st.Source)
		}
		for d, v := range map[*prometheus.Desc]uint64{
			c.reads: st.Reads, c.sweeps: st.Sweeps, c.fragments: st.Fragments, c.throttled: st.Throttled, c.failed: st.Failed, c.resets: st.Resets,
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
