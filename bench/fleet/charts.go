package main

import (
	"github.com/fairlead/fairlead/bench/fleet/internal/report"
)

// quote is a figure of somebody else's in a chart.
type quote struct {
	label string
	value float64
}

// drawing is a chart of one row.
type drawing struct {
	name, title string
	row         report.Row
	quotes      []quote
}

// row finds one of a table.
func row(t report.Table, id string) report.Row {
	for _, r := range t.Rows {
		if r.ID == id {
			return r
		}
	}
	return report.Row{ID: id}
}

func drawings() []drawing {
	m, w := mainTable(), wideTable()
	return []drawing{
		{"cold-time", "Cold fleet of 1,000: until the last stream is complete", row(m, "cold.last"), []quote{{"istiod", 98}}},
		{"cold-cpu", "Cold fleet of 1,000: CPU seconds of the server", row(m, "cold.cpu"), []quote{{"istiod", 137}}},
		{"cold-bytes", "Cold fleet of 1,000: kilobytes a proxy", row(m, "cold.bytes"), []quote{{"istiod", 4200}}},
		{"route-time", "VirtualService edited: until the last of 1,000 streams has it", row(m, "route.last"), []quote{{"istiod", 4.6}}},
		{"route-bytes", "VirtualService edited: megabytes to 1,000 streams", row(m, "route.bytes"), []quote{{"istiod", 604}}},
		{"endpoint-time", "Endpoint replaced: until the last of 1,000 streams has it", row(m, "endpoint.last"), []quote{{"istiod", 0.18}}},
		{"endpoint-cpu", "Endpoint replaced: CPU seconds of the server", row(m, "endpoint.cpu"), []quote{{"istiod", 1.5}}},
		{"memory", "1,000 proxies connected, nothing happens: megabytes resident", row(m, "idle.rss"), []quote{{"istiod", 1200}}},
		{"wide-route-time", "100 services, 5,000 proxies: VirtualService edited", row(w, "wide.route.last"), []quote{{"istiod", 3.7}}},
	}
}

func chartNames() []string {
	var out []string
	for _, d := range drawings() {
		out = append(out, d.name)
	}
	return out
}

// charts draws what was measured, and beside it what others measured of others.
func charts(s *report.Samples) map[string]report.Chart {
	out := map[string]report.Chart{}
	for _, d := range drawings() {
		c := report.Chart{Title: d.title, Subtitle: "Logarithmic. Pale bars are quoted, the others were measured in one run.", Budget: d.row.Budget, BudgetText: "budget"}
		for _, subject := range []report.Subject{report.Ours, report.Linear, report.Snapshot, report.Limit} {
			f, ok := s.Of(subject, d.row.ID)
			if !ok {
				continue
			}
			c.Bars = append(c.Bars, report.Bar{
				Label: subject.Heading(), Value: f.Median, Low: f.Min, High: f.Max, Text: d.row.Text(f.Median), Own: subject == report.Ours,
			})
		}
		for _, q := range d.quotes {
			c.Bars = append(c.Bars, report.Bar{Label: q.label + ", quoted", Value: q.value, Text: d.row.Text(q.value), Quoted: true})
		}
		out[d.name] = c
	}
	return out
}
