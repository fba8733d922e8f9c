package report

import (
	"encoding/xml"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func samples(id string, values ...float64) *Samples {
	s := &Samples{}
	for _, v := range values {
		s.Add(Ours, id, v)
	}
	return s
}

func TestFigure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		row           Row
		values        []float64
		want          Figure
		text, verdict string
	}{
		"odd":    {Row{Unit: Seconds, Budget: 2}, []float64{9, 1, 2}, Figure{2, 1, 9, 3}, "2.00 s", "met"},
		"even":   {Row{Unit: CPU, Budget: 1}, []float64{4, 1, 2, 1}, Figure{1.5, 1, 4, 4}, "1.50 CPU s", "**missed**"},
		"zero":   {Row{Budget: 0}, []float64{0, 0}, Figure{0, 0, 0, 2}, "0", "met"},
		"once":   {Row{Budget: 0}, []float64{0, 0, 1}, Figure{0, 0, 1, 3}, "0", "**missed**"},
		"shown":  {Row{Unit: MB, Budget: None}, []float64{12.4}, Figure{12.4, 12.4, 12.4, 1}, "12 MB", ""},
		"small":  {Row{Unit: Seconds, Budget: 0.06}, []float64{0.0123}, Figure{0.0123, 0.0123, 0.0123, 1}, "0.012 s", "met"},
		"little": {Row{Unit: KB, Budget: None}, []float64{0.67}, Figure{0.67, 0.67, 0.67, 1}, "0.7 KB", ""},
	} {
		c.row.ID = name
		f, ok := samples(name, c.values...).Of(Ours, name)
		if !ok || f != c.want || c.row.Text(f.Median) != c.text || c.row.Verdict(f) != c.verdict {
			t.Errorf("%s: %+v, %q, %q", name, f, c.row.Text(f.Median), c.row.Verdict(f))
		}
	}
	if _, ok := samples("a", 1).Of(Limit, "a"); ok {
		t.Error("a figure of a subject that was not measured")
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	s := samples("cold", 3, 1, 2)
	s.Add(Linear, "cold", 7)
	tab := Table{
		Title: "T", Rows: []Row{
			{ID: "cold", Name: "Cold", Unit: Seconds, Budget: 4, Istiod: "74 s"},
			{ID: "gone", Name: "Gone", Unit: Seconds, Budget: 4},
		}, Peers: []Subject{Linear, Limit}, Quoted: true,
	}
	got := tab.Markdown(s, &Baseline{Figures: map[string]Figure{"cold": {1, 1, 1.1, 3}}})
	for _, want := range []string{
		"| Cold | 2.00 s | 1.00 s to 3.00 s | 3 | ≤ 4.00 s | met | 7.00 s (1 run) | – | 74 s | – | 1.00 s, **worse** |",
		"| Gone | not measured |  |  | ≤ 4.00 s |  | – | – | – | – | new |",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	columns := -1
	for line := range strings.Lines(got) {
		if n := strings.Count(line, "|"); n > 0 && columns >= 0 && n != columns {
			t.Errorf("%d columns, not %d: %s", n, columns, line)
		} else if n > 0 {
			columns = n
		}
	}
}

func TestBaseline(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "baseline.json")
	rows := []Row{{ID: "a", Name: "A", Unit: CPU}, {ID: "b", Name: "B", Unit: CPU}}
	if b, err := ReadBaseline(path); b != nil || err != nil {
		t.Fatalf("%+v, %v", b, err)
	}
	both := samples("a", 1)
	both.Add(Ours, "b", 2)
	if err := (&Baseline{Machine: "m", Date: "d"}).Write(path, both, rows); err != nil {
		t.Fatal(err)
	}
	// What was not measured again stays.
	if err := (&Baseline{Machine: "m", Date: "e"}).Write(path, samples("a", 3), rows); err != nil {
		t.Fatal(err)
	}
	got, err := ReadBaseline(path)
	want := &Baseline{"m", "e", map[string]Figure{"a": {3, 3, 3, 1}, "b": {2, 2, 2, 1}}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Fatalf("%v\n%s", err, d)
	}
	if r := got.Regressions(samples("a", 3.1), rows); len(r) != 0 {
		t.Errorf("chance counts as worse: %q", r)
	}
	if r := got.Regressions(samples("a", 4), rows); len(r) != 1 || !strings.HasPrefix(r[0], "A: 4.00 CPU s, was 3.00 CPU s") {
		t.Errorf("%q", r)
	}
}

// TestWorse: what was seen before is no news, however far from the median.
func TestWorse(t *testing.T) {
	t.Parallel()
	r := Row{Unit: CPU}
	before := Figure{Median: 1, Min: 0.5, Max: 2}
	for now, want := range map[float64]bool{0.1: false, 1.2: false, 1.9: false, 2.1: true} {
		if got := r.Worse(Figure{Median: now}, before); got != want {
			t.Errorf("%v: %v", now, got)
		}
	}
	if count := (Row{}); !count.Worse(Figure{Median: 1}, Figure{}) {
		t.Error("one where there was none is not worse")
	}
}

func TestChart(t *testing.T) {
	t.Parallel()
	c := Chart{Title: "a < b", Budget: 4, BudgetText: "budget", Bars: []Bar{
		{Label: "ours", Value: 3, Low: 2, High: 4, Text: "3 s", Own: true},
		{Label: "theirs", Value: 300, Text: "300 s", Quoted: true},
		{Label: "nothing", Value: 0, Text: "0 s"},
	}}
	svg := c.SVG()
	if svg != c.SVG() {
		t.Error("the same bars give other bytes")
	}
	d := xml.NewDecoder(strings.NewReader(svg))
	for {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	for _, want := range []string{"a &lt; b", ">300 s<", ">budget<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q", want)
		}
	}
	if low, high := c.span(); low != 0 || high != 3 {
		t.Errorf("an axis from 10^%v to 10^%v", low, high)
	}
}
