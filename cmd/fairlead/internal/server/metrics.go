package server

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/registry/mesh"
)

// statusCollector makes metrics of the status of the sources when they are collected,
// so that there are no two copies of it.
type statusCollector struct {
	s *Server

	available, objects, faults, kept, held, generation, conflicts, agents *prometheus.Desc

	claims, claimConflicts, claimsRefused, claimsLost *prometheus.Desc
	hosts, unsaved, foreign                           *prometheus.Desc
	addresses, addressesMoved, addressesMissing       *prometheus.Desc
	addressesUnsaved                                  *prometheus.Desc
	unsavedSource, unwell, tables                     *prometheus.Desc
	build, info, uptime, services, virtualServices    *prometheus.Desc // as of istiod
	// work is what changes have cost so far.
	work workDescs
}

type workDescs struct {
	events, reads, decodes, decoded, fragments, compared, merged *prometheus.Desc
}

func (w *workDescs) all() []*prometheus.Desc {
	return []*prometheus.Desc{w.events, w.reads, w.decodes, w.decoded, w.fragments, w.compared, w.merged}
}

func newStatusCollector(s *Server) *statusCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("fairlead_"+name, help, labels, nil)
	}
	named := func(name, help string, constant prometheus.Labels) *prometheus.Desc {
		return prometheus.NewDesc(name, help, nil, constant)
	}
	version := cmp.Or(s.cfg.Version, "unknown")
	return &statusCollector{
		s: s,

		build:           named("istio_build", "1, with what runs (component) and its version (tag).", prometheus.Labels{"component": "pilot", "tag": version}),
		info:            named("pilot_info", "1, with the version of the server (version).", prometheus.Labels{"version": version}),
		uptime:          named("istiod_uptime_seconds", "Seconds since the server started.", nil),
		services:        named("pilot_services", "Services of the mesh.", nil),
		virtualServices: named("pilot_virt_services", "VirtualServices that are in force.", nil),

		available:        d("source_available", "1 if a source of files can be read completely, else 0, by source.", "source"),
		objects:          d("source_objects", "Objects that are in force, by source.", "source"),
		faults:           d("source_faults", "Faults in manifests, by source and severity (error, warning).", "source", "severity"),
		kept:             d("source_kept_objects", "Invalid objects whose last good version stays in force, by source.", "source"),
		held:             d("source_held_removals", "Objects whose removal is on hold until it is confirmed, by source.", "source"),
		generation:       d("snapshot_generation", "Number of the newest snapshot of the mesh, counted from the start of the server."),
		conflicts:        d("snapshot_conflicts", "Objects that are not in force, or only in some namespaces, because of a conflict with another object."),
		hosts:            d("host_grants", "Names that namespaces of bound sources have from before owners were decided by patterns."),
		unsaved:          d("host_grants_unsaved", "1 if these names cannot be saved, else 0."),
		addresses:        d("host_addresses", "Hosts that have virtual addresses from the server."),
		addressesMoved:   d("host_addresses_moved", "Hosts with an address that another server may not choose, because it was taken."),
		addressesMissing: d("host_addresses_missing", "Hosts for which no IPv4 address was left."),
		addressesUnsaved: d("host_addresses_unsaved", "1 if the record of host addresses cannot be saved, else 0."),
		foreign:          d("source_foreign_hosts", "Host names of other owners in objects of a bound source, which are in force in its own namespace only, by source.", "source"),
		agents:           d("refused_peers", "Clients that were rejected recently and are listed by `fairlead proxy-status`."),

		claims:         d("claims", "Workloads that are claimed by a host, by the proof of the claim (proof).", "proof"),
		claimConflicts: d("claim_conflicts", "Hosts that claimed a workload of another host in the last 10 minutes."),
		claimsRefused:  d("claims_refused_total", "xDS streams that were rejected because their workload is claimed by another host, or their claim has no proof."),
		claimsLost:     d("claims_lost_total", "Claims of workloads that a host lost to a host with a better proof."),
		unwell:         d("mesh_unwell", "Conditions that need a person, by reason (reason): `fairlead proxy-status` says what to do.", "reason"),
		tables:         d("proxy_hash_table_entries_largest", "Entries of all hash tables (consistentHash) of the connected proxy that has the most: 24 bytes each. `fairlead proxy-status` names the largest table."),
		unsavedSource:  d("source_unsaved", "1 if the configuration in force of a source is not saved in the state directory, else 0, by source.", "source"),
		work: workDescs{
			events:    d("source_file_events_total", "File system events, by source.", "source"),
			reads:     d("source_files_read_total", "Files that were read, by source.", "source"),
			decodes:   d("source_files_decoded_total", "Files whose content changed and was decoded, by source.", "source"),
			decoded:   d("source_objects_decoded_total", "Objects in decoded files, by source.", "source"),
			fragments: d("source_fragments_total", "Readings of a source that differed from the one before, by source.", "source"),
			compared:  d("registry_objects_compared_total", "Objects that differed between two readings of a source."),
			merged:    d("registry_objects_merged_total", "Objects that differed between two snapshots of the mesh."),
		},
	}
}

// Describe implements [prometheus.Collector].
func (c *statusCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.available, c.objects, c.faults, c.kept, c.held, c.generation, c.conflicts, c.unsavedSource, c.agents, c.hosts, c.unsaved, c.addresses, c.addressesMoved, c.addressesMissing, c.addressesUnsaved, c.foreign, c.claims, c.claimConflicts, c.claimsRefused, c.claimsLost, c.unwell, c.tables, c.build, c.info, c.uptime, c.services, c.virtualServices} {
		ch <- d
	}
	for _, d := range c.work.all() {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *statusCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(c.build, 1)
	gauge(c.info, 1)
	gauge(c.uptime, time.Since(c.s.started).Seconds())
	services, virtualServices := 0, 0
	if snap := c.s.registry.Snapshot(); snap != nil {
		services, virtualServices = len(snap.Services), len(snap.VirtualServices)
	}
	gauge(c.services, float64(services))
	gauge(c.virtualServices, float64(virtualServices))
	st := c.s.registry.Status()
	counter(c.work.compared, st.Compared)
	counter(c.work.merged, st.Merged)
	gauge(c.generation, float64(st.Generation))
	gauge(c.conflicts, float64(len(st.Conflicts)))
	gauge(c.hosts, float64(len(st.Grants)))
	gauge(c.unsaved, one(st.GrantsUnsaved != ""))
	gauge(c.addresses, float64(st.Addresses.Hosts))
	gauge(c.addressesMoved, float64(st.Addresses.Moved))
	gauge(c.addressesMissing, float64(st.Addresses.Full))
	gauge(c.addressesUnsaved, one(st.AddressesUnsaved != ""))
	gauge(c.agents, float64(len(c.s.refused(time.Now()))))
	gauge(c.tables, float64(c.s.xds.LargestHashTables().Entries))
	collectUnwell(c.unwell, c.s.recentConditions(), func(m prometheus.Metric) { ch <- m })
	health := c.s.agents.Status()
	for _, p := range mesh.Proofs() {
		gauge(c.claims, float64(health.Proofs[p]), p.String())
	}
	gauge(c.claimConflicts, float64(len(health.Conflicts)))
	counter(c.claimsRefused, health.Contested)
	counter(c.claimsLost, health.Displaced)
	for _, src := range c.s.savedSources() {
		gauge(c.unsavedSource, one(src.Unsaved() != ""), src.Name())
	}
	for _, src := range st.Sources {
		gauge(c.objects, float64(src.Objects), src.Name)
		gauge(c.held, float64(src.HeldCount), src.Name)
		gauge(c.foreign, float64(src.ForeignHosts), src.Name)
	}
	for _, f := range c.s.fileStatus() {
		ok := 0.0
		if f.Reason == "" {
			ok = 1
		}
		gauge(c.available, ok, f.Source)
		gauge(c.kept, float64(len(f.Kept)), f.Source)
		counter(c.work.events, f.Counters.Events, f.Source)
		counter(c.work.reads, f.Counters.Reads, f.Source)
		counter(c.work.decodes, f.Counters.Decodes, f.Source)
		counter(c.work.decoded, f.Counters.Objects, f.Source)
		counter(c.work.fragments, f.Counters.Fragments, f.Source)
		count := map[string]int{"error": 0, "warning": 0}
		for _, x := range f.Faults {
			count[string(x.Severity)]++
		}
		for severity, n := range count {
			gauge(c.faults, float64(n), f.Source, severity)
		}
	}
}

// collectUnwell makes the metric of conditions: each reason has a value, mostly zero.
func collectUnwell(d *prometheus.Desc, list []Condition, give func(prometheus.Metric)) {
	count := byReason(list)
	for _, reason := range Reasons() {
		give(prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(count[reason]), reason))
	}
}
