package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
)

// Baseline is what was measured before.
type Baseline struct {
	// Machine is where; figures of another machine say little.
	Machine string            `json:"machine"`
	Date    string            `json:"date"`
	Figures map[string]Figure `json:"figures"`
}

// ReadBaseline reads one; nil if there is none.
func ReadBaseline(path string) (*Baseline, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // nothing to compare with is no error
	}
	if err != nil {
		return nil, fmt.Errorf("reading the baseline: %w", err)
	}
	b := &Baseline{}
	if err := json.Unmarshal(content, b); err != nil {
		return nil, fmt.Errorf("reading the baseline %q: %w", path, err)
	}
	return b, nil
}

// Write keeps a baseline: figures that were not measured now stay as they were.
func (b *Baseline) Write(path string, s *Samples, rows []Row) error {
	out := Baseline{Machine: b.Machine, Date: b.Date, Figures: map[string]Figure{}}
	if old, err := ReadBaseline(path); err == nil && old != nil {
		maps.Copy(out.Figures, old.Figures)
	}
	for _, r := range rows {
		if f, ok := s.Of(Ours, r.ID); ok {
			out.Figures[r.ID] = f
		}
	}
	content, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the baseline: %w", err)
	}
	if err := os.WriteFile(path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("writing the baseline: %w", err)
	}
	return nil
}

// slack is what a figure may grow by before it counts as worse: wall times move
// with whatever else the machine does, bytes and objects do not.
func (r Row) slack() (factor, floor float64) {
	switch r.Unit {
	case Seconds:
		return 1.5, 0.02
	case CPU:
		return 1.25, 0.02
	case Percent:
		return 1.5, 0.2
	case MB:
		return 1.15, 2
	case KB:
		return 1.02, 0.1
	default:
		return 1, 0
	}
}

// Worse reports whether a figure is worse than before, by more than chance: the
// median beyond the slack, and beyond all that was seen before.
func (r Row) Worse(now, before Figure) bool {
	factor, floor := r.slack()
	return now.Median > before.Median*factor+floor && now.Median > before.Max
}

func (b *Baseline) text(r Row, now Figure, measured bool) string {
	if b == nil {
		return "–"
	}
	before, ok := b.Figures[r.ID]
	switch {
	case !ok:
		return "new"
	case !measured:
		return r.Text(before.Median)
	case r.Worse(now, before):
		return r.Text(before.Median) + ", **worse**"
	case r.Worse(before, now):
		return r.Text(before.Median) + ", better"
	default:
		return r.Text(before.Median)
	}
}

// Regressions are the lines that say what got worse.
func (b *Baseline) Regressions(s *Samples, rows []Row) []string {
	if b == nil {
		return nil
	}
	var out []string
	for _, r := range rows {
		now, ok := s.Of(Ours, r.ID)
		before, known := b.Figures[r.ID]
		if ok && known && r.Worse(now, before) {
			out = append(out, fmt.Sprintf("%s: %s, was %s (%s)", r.Name, r.Text(now.Median), r.Text(before.Median), spread(r, before)))
		}
	}
	return out
}
