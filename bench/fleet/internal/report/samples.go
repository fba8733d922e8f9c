package report

import (
	"fmt"
	"slices"
)

// Subject is what was measured.
type Subject string

// The subjects, in the order of their columns.
const (
	Ours     Subject = "fairlead"
	Linear   Subject = "linear"
	Snapshot Subject = "snapshot"
	Limit    Subject = "limit"
)

// Unit is how a figure is written.
type Unit string

// The units; times and CPU time are in seconds, memory in MB of 10^6 bytes.
const (
	Seconds Unit = "s"
	CPU     Unit = "CPU s"
	MB      Unit = "MB"
	KB      Unit = "KB"
	Percent Unit = "%"
	Count   Unit = ""
)

// Row is one line of a table.
type Row struct {
	// ID names the figure, in the baseline too.
	ID string
	// Name is what people read.
	Name string
	Unit Unit
	// Budget is what the median must not exceed; negative means that there is
	// none. 0 means that not one run may have any.
	Budget float64
	// Istiod and Peer are what others measured, quoted.
	Istiod, Peer string
}

// None is the budget of a figure that has none.
const None = -1

// Samples are figures of several runs.
type Samples struct {
	by map[Subject]map[string][]float64
}

// Add adds the figure of one run.
func (s *Samples) Add(subject Subject, id string, value float64) {
	if s.by == nil {
		s.by = map[Subject]map[string][]float64{}
	}
	if s.by[subject] == nil {
		s.by[subject] = map[string][]float64{}
	}
	s.by[subject][id] = append(s.by[subject][id], value)
}

// Of is the figure of a subject; false if there is none.
func (s *Samples) Of(subject Subject, id string) (Figure, bool) {
	v := slices.Sorted(slices.Values(s.by[subject][id]))
	n := len(v)
	if n == 0 {
		return Figure{}, false
	}
	return Figure{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], Runs: n}, true
}

// Figure is what several runs say together.
type Figure struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Runs   int     `json:"runs"`
}

// Verdict says whether a figure keeps its budget.
func (r Row) Verdict(f Figure) string {
	switch {
	case r.Budget < 0:
		return ""
	case r.Budget == 0 && f.Max > 0, r.Budget > 0 && f.Median > r.Budget:
		return "**missed**"
	default:
		return "met"
	}
}

// Text writes a value of a row.
func (r Row) Text(v float64) string {
	switch r.Unit {
	case Percent:
		return fmt.Sprintf("%.2f %%", v)
	case Seconds, CPU:
		if v < 0.0995 {
			return fmt.Sprintf("%.3f %s", v, r.Unit)
		}
		return fmt.Sprintf("%.2f %s", v, r.Unit)
	case MB, KB:
		if v < 9.95 && v != 0 {
			return fmt.Sprintf("%.1f %s", v, r.Unit)
		}
		return fmt.Sprintf("%.0f %s", v, r.Unit)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// budget writes it.
func (r Row) budget() string {
	switch {
	case r.Budget < 0:
		return "–"
	case r.Budget == 0:
		return "0"
	default:
		return "≤ " + r.Text(r.Budget)
	}
}
