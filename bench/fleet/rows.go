package main

import (
	"github.com/fairlead/fairlead/bench/fleet/internal/report"
)

// The quoted figures are of istiod (master, August 2026) and of go-control-plane
// with its best cache, measured in one place on two cores shared with the
// client, over plaintext loopback.

func mainTable() report.Table {
	return report.Table{
		Title: "1,000 services of 10 endpoints, 1,000 proxies",
		Text: "Times are to the last stream: of a cold fleet from the first connection, of a change from the decision to push.\n" +
			"CPU time and memory are the server's. Peers serve our resources and generate nothing; their route tables are whole.",
		Peers: []report.Subject{report.Linear, report.Snapshot, report.Limit}, Quoted: true,
		Rows: []report.Row{
			{ID: "cold.last", Name: "Cold fleet, last stream complete", Unit: report.Seconds, Budget: 4, Istiod: "74–122 s (15.7 s with a warm cache)", Peer: "7.4 s"},
			{ID: "cold.cpu", Name: "Cold fleet, CPU", Unit: report.CPU, Budget: 4, Istiod: "135–139 CPU s (19 CPU s warm)", Peer: "7.8 CPU s"},
			{ID: "cold.peak", Name: "Cold fleet, peak memory", Unit: report.MB, Budget: 600, Istiod: "4.4 GB"},
			{ID: "cold.bytes", Name: "Cold fleet, bytes a proxy", Unit: report.KB, Budget: 2500, Istiod: "4.2 MB", Peer: "4.3 MB"},
			{ID: "route.last", Name: "VirtualService edited", Unit: report.Seconds, Budget: 0.15, Istiod: "4.6 s", Peer: "0.32 s"},
			{ID: "route.cpu", Name: "VirtualService edited, CPU", Unit: report.CPU, Budget: 0.2, Istiod: "9.3 CPU s", Peer: "0.27 CPU s"},
			{ID: "route.bytes", Name: "VirtualService edited, bytes of all", Unit: report.MB, Budget: 8, Istiod: "604 MB", Peer: "558 MB"},
			{ID: "route.first", Name: "VirtualService edited, first stream", Unit: report.Seconds, Budget: report.None},
			{ID: "route.median", Name: "VirtualService edited, median stream", Unit: report.Seconds, Budget: report.None},
			{ID: "route.p99", Name: "VirtualService edited, 99th percentile", Unit: report.Seconds, Budget: report.None},
			{ID: "endpoint.last", Name: "Endpoint replaced", Unit: report.Seconds, Budget: 0.06, Istiod: "0.18 s", Peer: "1.0 s"},
			{ID: "endpoint.cpu", Name: "Endpoint replaced, CPU", Unit: report.CPU, Budget: 0.1, Istiod: "1.5 CPU s", Peer: "2.3 CPU s"},
			{ID: "endpoint.bytes", Name: "Endpoint replaced, bytes of all", Unit: report.MB, Budget: report.None},
			{ID: "endpoint.first", Name: "Endpoint replaced, first stream", Unit: report.Seconds, Budget: report.None},
			{ID: "endpoint.median", Name: "Endpoint replaced, median stream", Unit: report.Seconds, Budget: report.None},
			{ID: "endpoint.p99", Name: "Endpoint replaced, 99th percentile", Unit: report.Seconds, Budget: report.None},
			{ID: "decision", Name: "File renamed to decision to push, no debounce", Unit: report.Seconds, Budget: 0.02, Istiod: "0.9 s"},
			{ID: "idle.rss", Name: "Resident, idle", Unit: report.MB, Budget: 200, Istiod: "1.2 GB", Peer: "0.9 GB"},
			{ID: "idle.more", Name: "Resident, one stream more, with everything", Unit: report.KB, Budget: 60, Istiod: "–"},
			{ID: "idle.stream", Name: "Resident a stream, with its share of the mesh", Unit: report.KB, Budget: report.None},
			{ID: "again", Name: "Resources sent that the stream had", Budget: 0},
			{ID: "rejects", Name: "Responses refused", Budget: 0},
		},
		Notes: "The limit's messages are of the size of ours, but for a peak and resident memory that know no mesh.",
	}
}

func oldTable() report.Table {
	return report.Table{
		Title: "The same for proxies without VHDS (Envoy before 1.38)",
		Peers: []report.Subject{report.Linear, report.Snapshot, report.Limit}, Quoted: true,
		Rows: []report.Row{
			{ID: "old.cold.last", Name: "Cold fleet, last stream complete", Unit: report.Seconds, Budget: report.None},
			{ID: "old.cold.cpu", Name: "Cold fleet, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "old.cold.bytes", Name: "Cold fleet, bytes a proxy", Unit: report.KB, Budget: 2500, Istiod: "4.2 MB", Peer: "4.3 MB"},
			{ID: "old.route.last", Name: "VirtualService edited", Unit: report.Seconds, Budget: 0.45, Istiod: "4.6 s", Peer: "0.32 s"},
			{ID: "old.route.cpu", Name: "VirtualService edited, CPU", Unit: report.CPU, Budget: 0.5, Istiod: "9.3 CPU s", Peer: "0.27 CPU s"},
			{ID: "old.route.bytes", Name: "VirtualService edited, bytes of all", Unit: report.MB, Budget: report.None, Istiod: "604 MB", Peer: "558 MB"},
			{ID: "old.again", Name: "Resources sent that the stream had", Budget: 0},
		},
	}
}

// heavyTable is of a mesh of which istiod's generators give a proxy 5.44 MB, not
// 4.26.
func heavyTable() report.Table {
	return report.Table{
		Title:  "The same with twice the rules",
		Text:   "30 services of 100 have a VirtualService and a DestinationRule, not 14: 1,904 clusters, not 1,404. The budget of bytes is in proportion to istiod's.",
		Quoted: true,
		Rows: []report.Row{
			{ID: "heavy.cold.last", Name: "Cold fleet, last stream complete", Unit: report.Seconds, Budget: report.None},
			{ID: "heavy.cold.cpu", Name: "Cold fleet, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "heavy.cold.bytes", Name: "Cold fleet, bytes a proxy", Unit: report.KB, Budget: 3190, Istiod: "5.4 MB"},
			{ID: "heavy.route.last", Name: "VirtualService edited", Unit: report.Seconds, Budget: report.None},
			{ID: "heavy.route.cpu", Name: "VirtualService edited, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "heavy.endpoint.last", Name: "Endpoint replaced", Unit: report.Seconds, Budget: report.None},
			{ID: "heavy.endpoint.cpu", Name: "Endpoint replaced, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "heavy.idle.rss", Name: "Resident, idle", Unit: report.MB, Budget: report.None},
		},
	}
}

func wideTable() report.Table {
	return report.Table{
		Title: "100 services, 5,000 proxies",
		Text:  "Each service has as many endpoints as it has proxies: 50, not the 10 of the quoted figures. Five streams share a connection: without TLS, a server accepts 1,024.",
		Peers: []report.Subject{report.Linear, report.Limit}, Quoted: true,
		Rows: []report.Row{
			{ID: "wide.cold.last", Name: "Cold fleet, last stream complete", Unit: report.Seconds, Budget: 5, Istiod: "35 s", Peer: "9.5 s"},
			{ID: "wide.cold.cpu", Name: "Cold fleet, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "wide.cold.bytes", Name: "Cold fleet, bytes a proxy", Unit: report.KB, Budget: report.None},
			{ID: "wide.route.last", Name: "VirtualService edited", Unit: report.Seconds, Budget: 0.35, Istiod: "3.7 s", Peer: "0.8 s"},
			{ID: "wide.route.cpu", Name: "VirtualService edited, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "wide.route.bytes", Name: "VirtualService edited, bytes of all", Unit: report.MB, Budget: report.None},
			{ID: "wide.idle.rss", Name: "Resident, idle", Unit: report.MB, Budget: 350, Istiod: "1.5 GB", Peer: "1.0 GB"},
		},
	}
}

// knownTable puts what people know of istiod on big machines beside what was
// measured here, on two cores shared with the fleet.
func knownTable() report.Table {
	return report.Table{
		Title:  "Compared with known figures of istiod on large machines",
		Text:   "A VirtualService is edited, up to the 99th percentile of 500 proxies and to the last of 5,000. Ours is on two cores shared with the fleet.",
		Quoted: true,
		Rows: []report.Row{
			{ID: "crowd.before", Name: "500 proxies pushed", Unit: report.Seconds, Budget: report.None, Istiod: "under 2 s"},
			{ID: "wide.route.last", Name: "5,000 proxies pushed", Unit: report.Seconds, Budget: report.None, Istiod: "under 10 s, three replicas"},
			{ID: "idle.twice", Name: "2,000 proxies, resident", Unit: report.MB, Budget: report.None, Istiod: "2–4 GB"},
		},
	}
}

func smallTable() report.Table {
	return report.Table{
		Title: "A small mesh: 10 services, 4 hosts",
		Text:  "The agent's figure is from the quickstart's mesh, as in RESULTS.md, with a real Envoy.",
		Rows: []report.Row{
			{ID: "small.server", Name: "Server, resident", Unit: report.MB, Budget: 60},
			{ID: "small.agent", Name: "Agent, resident", Unit: report.MB, Budget: 30},
		},
		Notes: "Others, quoted: istiod 94 MB; Consul 118 MB; Kuma 121 MB, and 73 MB beside each application.",
	}
}

// tlsFactor is by how much the budgets grow with TLS 1.3.
const tlsFactor = 2.2

func tlsTable() report.Table {
	return report.Table{
		Title: "With TLS 1.3, as it is run",
		Text:  "Every host has an identity from the control plane, with 64 proxies on a host. Budgets are 2.2 times those without TLS.",
		Peers: []report.Subject{report.Limit},
		Rows: []report.Row{
			{ID: "tls.cold.last", Name: "Cold fleet, last stream complete", Unit: report.Seconds, Budget: 4 * tlsFactor},
			{ID: "tls.cold.cpu", Name: "Cold fleet, CPU", Unit: report.CPU, Budget: 4 * tlsFactor},
			{ID: "tls.cold.peak", Name: "Cold fleet, peak memory", Unit: report.MB, Budget: 600 * tlsFactor},
			{ID: "tls.route.last", Name: "VirtualService edited", Unit: report.Seconds, Budget: 0.15 * tlsFactor},
			{ID: "tls.route.cpu", Name: "VirtualService edited, CPU", Unit: report.CPU, Budget: 0.2 * tlsFactor},
			{ID: "tls.endpoint.last", Name: "Endpoint replaced", Unit: report.Seconds, Budget: 0.06 * tlsFactor},
			{ID: "tls.endpoint.cpu", Name: "Endpoint replaced, CPU", Unit: report.CPU, Budget: 0.1 * tlsFactor},
			{ID: "tls.idle.rss", Name: "Resident, idle", Unit: report.MB, Budget: 200 * tlsFactor},
			{ID: "tls.idle.stream", Name: "Resident a stream, with its share of the mesh", Unit: report.KB, Budget: 60 * tlsFactor},
		},
	}
}

// faultsTable is about failures. The ids "crowd" and "stall" are keys of baseline.json.
func faultsTable() report.Table {
	return report.Table{
		Title: "Restarts, joining proxies, and stalled readers",
		Text: "1,000 services and 1,000 proxies. The server is killed (SIGKILL) and started again while all have everything;\n" +
			"VirtualServices are edited while a half of the fleet connects cold; a tenth of it is stopped (SIGSTOP) while everything is changed eight times, and then 20 are edited.",
		Rows: []report.Row{
			{ID: "restart.again", Name: "Restart: resources sent again, of all types", Budget: 0},
			{ID: "restart.serving", Name: "Restart: until the server serves", Unit: report.Seconds, Budget: report.None},
			{ID: "restart.back", Name: "Restart: from then until the last stream is answered", Unit: report.Seconds, Budget: report.None},
			{ID: "restart.cpu", Name: "Restart: CPU", Unit: report.CPU, Budget: report.None},
			{ID: "restart.peak", Name: "Restart: peak memory", Unit: report.MB, Budget: report.None},
			{ID: "restart.bytes", Name: "Restart: bytes a proxy", Unit: report.KB, Budget: report.None},
			{ID: "crowd.before", Name: "500 served: 99th percentile of an edit, before", Unit: report.Seconds, Budget: report.None},
			{ID: "crowd.during", Name: "500 served: the same while 500 others connect cold", Unit: report.Seconds, Budget: report.None},
			{ID: "crowd.worst", Name: "500 served: the worst of these edits", Unit: report.Seconds, Budget: report.None},
			{ID: "crowd.joined", Name: "500 served: until the others have everything", Unit: report.Seconds, Budget: report.None},
			{ID: "stall.stream", Name: "Stopped: memory a stream", Unit: report.KB, Budget: report.None},
			{ID: "stall.before", Name: "Stopped: 99th percentile of the others, before", Unit: report.Seconds, Budget: report.None},
			{ID: "stall.during", Name: "Stopped: 99th percentile of the others, meanwhile", Unit: report.Seconds, Budget: report.None},
			{ID: "stall.changed", Name: "Stopped: resources that each of the others is sent meanwhile", Unit: report.Count, Budget: report.None},
			{ID: "stall.merged", Name: "Stopped: resources each is sent when it reads again", Unit: report.Count, Budget: report.None},
			{ID: "stall.caught", Name: "Stopped: until all have the newest again", Unit: report.Seconds, Budget: report.None},
		},
	}
}

func worstTable() report.Table {
	return report.Table{
		Title: "Worst cases, short",
		Text:  "The long versions are in WORST.md, by `make bench-worst`.",
		Rows: []report.Row{
			{ID: "many.last", Name: "A fifth of 1,000 services changed at once", Unit: report.Seconds, Budget: report.None},
			{ID: "many.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "many.bytes", Name: "The same, bytes of all", Unit: report.MB, Budget: report.None},
			{ID: "own.cold.last", Name: "A Sidecar of its own each, 200 proxies: cold", Unit: report.Seconds, Budget: report.None},
			{ID: "own.cold.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "own.route.last", Name: "The same, VirtualService edited that all see", Unit: report.Seconds, Budget: report.None},
			{ID: "own.route.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "own.idle.rss", Name: "The same, resident", Unit: report.MB, Budget: report.None},
			{ID: "churn.p99", Name: "100 endpoints and 5 routes a second for 20 s: 99th percentile", Unit: report.Seconds, Budget: 0.5},
			{ID: "churn.cpu", Name: "The same, cores in use", Unit: report.CPU, Budget: report.None},
			{ID: "churn.growth", Name: "The same, memory from the first to the last tenth", Unit: report.MB, Budget: report.None},
		},
	}
}

// kindsTable is what comes of each type.
func kindsTable() report.Table {
	t := report.Table{
		Title: "What a proxy of the first table is sent, by type",
		Peers: []report.Subject{report.Linear, report.Snapshot},
	}
	for _, e := range []struct{ id, name string }{{"cold", "Cold"}, {"route", "VirtualService edited"}, {"endpoint", "Endpoint replaced"}} {
		for _, k := range []string{"CDS", "EDS", "LDS", "RDS", "VHDS"} {
			if e.id == "route" && k != "RDS" && k != "VHDS" || e.id == "endpoint" && k != "EDS" {
				continue
			}
			id, name := e.id+"."+k+".", e.name+", "+k
			t.Rows = append(t.Rows,
				report.Row{ID: id + "bytes", Name: name, Unit: report.KB, Budget: report.None},
				report.Row{ID: id + "resources", Name: name + ", resources", Budget: report.None},
				report.Row{ID: id + "messages", Name: name + ", messages", Budget: report.None},
			)
		}
	}
	return t
}

func tables() []report.Table {
	return []report.Table{mainTable(), kindsTable(), oldTable(), heavyTable(), wideTable(), knownTable(), smallTable(), tlsTable(), faultsTable(), worstTable()}
}

// longTables are those of the long run.
func longTables() []report.Table {
	cold := func(id, name string) []report.Row {
		return []report.Row{
			{ID: id + ".cold.last", Name: name + ": cold, last stream", Unit: report.Seconds, Budget: report.None},
			{ID: id + ".cold.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: id + ".cold.bytes", Name: "The same, bytes a proxy", Unit: report.KB, Budget: report.None},
			{ID: id + ".cold.peak", Name: "The same, peak memory", Unit: report.MB, Budget: report.None},
			{ID: id + ".route.last", Name: "VirtualService edited", Unit: report.Seconds, Budget: report.None},
			{ID: id + ".route.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: id + ".endpoint.last", Name: "Endpoint replaced", Unit: report.Seconds, Budget: report.None},
			{ID: id + ".endpoint.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: id + ".decision", Name: "File renamed to decision to push", Unit: report.Seconds, Budget: report.None},
			{ID: id + ".start", Name: "Start of the server", Unit: report.Seconds, Budget: report.None},
			{ID: id + ".idle.rss", Name: "Resident, idle", Unit: report.MB, Budget: report.None},
		}
	}
	return []report.Table{
		{Title: "Every proxy its own class", Rows: cold("own1000", "1,000 services, 1,000 proxies, a Sidecar each")},
		{Title: "10,000 services, 100,000 endpoints", Rows: cold("services", "100 proxies")},
		{Title: "1,000 services of 100 endpoints", Rows: cold("endpoints", "500 proxies")},
		{Title: "10,000 streams", Rows: cold("streams", "200 services, four streams a connection")},
		{Title: "A fifth of all services changed at once", Rows: []report.Row{
			{ID: "checkout.last", Name: "1,000 services, 1,000 proxies: last stream", Unit: report.Seconds, Budget: report.None},
			{ID: "checkout.cpu", Name: "The same, CPU", Unit: report.CPU, Budget: report.None},
			{ID: "checkout.bytes", Name: "The same, bytes of all", Unit: report.MB, Budget: report.None},
			{ID: "checkout.peak", Name: "The same, peak memory", Unit: report.MB, Budget: report.None},
		}},
		{Title: "100 endpoints and 5 routes a second for five minutes", Text: "1,000 services, 1,000 proxies.", Rows: []report.Row{
			{ID: "long.p99", Name: "99th percentile of all streams and followed changes", Unit: report.Seconds, Budget: 0.5},
			{ID: "long.worst", Name: "The slowest stream of the slowest change", Unit: report.Seconds, Budget: report.None},
			{ID: "long.cpu", Name: "Cores in use", Unit: report.CPU, Budget: report.None},
			{ID: "long.bytes", Name: "Sent each second", Unit: report.MB, Budget: report.None},
			{ID: "long.rss.first", Name: "Resident after half a minute", Unit: report.MB, Budget: report.None},
			{ID: "long.rss.middle", Name: "Resident in the middle", Unit: report.MB, Budget: report.None},
			{ID: "long.rss.last", Name: "Resident at the end", Unit: report.MB, Budget: report.None},
		}},
	}
}
