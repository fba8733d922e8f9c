package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// figure is one line of the table.
type figure struct {
	name string
	// unit decides how values are written: s, ms, requests, MB or %.
	unit string
	// budget is what the median should stay below; limit is set where no run may
	// go beyond it, as for 0 failed requests.
	budget float64
	limit  bool
	// consul and kuma are what the peers were measured to do.
	consul, kuma string
	values       []float64
}

func (f *figure) add(v float64) { f.values = append(f.values, v) }

func (f *figure) median() float64 {
	v := slices.Sorted(slices.Values(f.values))
	n := len(v)
	if n%2 == 1 {
		return v[n/2]
	}
	return (v[n/2-1] + v[n/2]) / 2
}

func (f *figure) text(v float64) string {
	switch f.unit {
	case "s":
		return fmt.Sprintf("%.2f s", v)
	case "ms":
		return fmt.Sprintf("%.1f ms", v)
	case "MB":
		return fmt.Sprintf("%.0f MB", v)
	case "%":
		return fmt.Sprintf("%.1f %%", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

func (f *figure) budgetText() string {
	switch {
	case f.limit:
		return f.text(f.budget)
	case f.budget == 0:
		return "–"
	default:
		return "< " + f.text(f.budget)
	}
}

func (f *figure) result() string {
	switch {
	case f.budget == 0 && !f.limit:
		return ""
	case f.limit && slices.Max(f.values) <= f.budget, !f.limit && f.median() < f.budget:
		return "met"
	default:
		return "**missed**"
	}
}

// report is the table.
type report struct{ figures []*figure }

func (r *report) figure(f figure) *figure {
	r.figures = append(r.figures, &f)
	return &f
}

// write keeps all values, by the name of their figure.
func (r *report) write(path string) error {
	all := map[string][]float64{}
	for _, f := range r.figures {
		all[f.name] = f.values
	}
	content, err := json.Marshal(all)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}

// markdown is RESULTS.md.
func (r *report) markdown(now time.Time) string {
	var b strings.Builder
	b.WriteString("# Results\n\nWritten by `make bench-quickstart`; see the package's description for what is measured and how.\n\n")
	fmt.Fprintf(&b, "%s, %s, %d CPUs (%s), %s. Spread is the smallest and the largest value.\n\n",
		now.Format(time.DateOnly), runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), cpu(), runtime.Version())
	b.WriteString("The peers were measured in November 2026 on two cores, mostly one run a cell: Consul Connect 1.20.1 with Envoy 1.36.2,\n" +
		"Kuma universal 3.0 (development head) with Envoy 1.40.0. Load is 200 requests/s there and here.\n\n")
	b.WriteString("| Figure | Median | Spread | Runs | Budget | | Consul | Kuma |\n|---|---|---|---|---|---|---|---|\n")
	for _, f := range r.figures {
		v := slices.Sorted(slices.Values(f.values))
		fmt.Fprintf(&b, "| %s | %s | %s to %s | %d | %s | %s | %s | %s |\n", f.name, f.text(f.median()),
			f.text(v[0]), f.text(v[len(v)-1]), len(v), f.budgetText(), f.result(), f.consul, f.kuma)
	}
	b.WriteString(notes)
	return b.String()
}

const notes = `
## What the lines mean

- **First request**: from the start of the control plane, with an empty state directory and binaries built, until a request has gone
  through four hosts with mTLS and the last one has named its caller. The peers' figures begin when their sidecars have started
  (Consul), or at the first apply (Kuma). Commands for a split with mTLS between three hosts: 7 (the server; for each host a token and
  an agent), 11 and 11; for the example: 1.
- **Weight edit**: from the rename of the file until the client has had its last answer of the version that no longer has weight.
- **Changed DestinationRule**: of the written file, until the Envoy has accepted it and the control plane knows; and of that the part
  after the snapshot is published. The rest is reading the file and the debounce of 100 ms.
- **Application, Envoy killed**: one of two instances of a service, by kill -9, under load. Avoided is the time until the last failed
  request, 0 where none failed. An Envoy is back when it answers requests again (the peers' were started by hand); each had lived for
  12 s, for the agent takes its time with one that dies sooner.
- **Control plane killed**: by kill -9 under load, started again, until every proxy is in step.
- **Check turns**: from just before the write to the leader of a real Consul until the Envoy of a client has it, of which the agent, the
  control plane and Consul's own replication are a part; one of three instances, at distances of 0.2 to 0.4 s that follow no period. The
  budget is for 99 of 100. Over plain HTTP two tables are watched; over HTTPS every service has a watch.
- **Idle**: resident memory (MB of 2^20 bytes) and share of one core, of each process of its kind over windows of four seconds. The
  Envoys here run a worker for each core, those of the peers ran one. Its own is what is not a page of a file: the others are of the
  binary, shared by all processes that run it, and the kernel takes them back where it needs them. An agent has just given back what
  its start took, and some of that comes again: see what it holds after all of this.
`

// cpu is the model of this machine's processor.
func cpu() string {
	content, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(line, "model name"); ok {
			return strings.Trim(name, "\t :\n")
		}
	}
	return "unknown"
}

func TestFigure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		f              figure
		median         float64
		budget, result string
	}{
		"odd":    {figure{unit: "s", budget: 3, values: []float64{9, 1, 2}}, 2, "< 3.00 s", "met"},
		"even":   {figure{unit: "ms", budget: 1, values: []float64{4, 1, 2, 1}}, 1.5, "< 1.0 ms", "**missed**"},
		"zero":   {figure{limit: true, values: []float64{0, 0, 0}}, 0, "0", "met"},
		"once":   {figure{limit: true, values: []float64{0, 0, 1}}, 0, "0", "**missed**"},
		"shown":  {figure{unit: "MB", values: []float64{5}}, 5, "–", ""},
		"at_one": {figure{unit: "%", budget: 2, values: []float64{2}}, 2, "< 2.0 %", "**missed**"},
	} {
		if m, b, v := c.f.median(), c.f.budgetText(), c.f.result(); m != c.median || b != c.budget || v != c.result {
			t.Errorf("%s: %v, %q, %q", name, m, b, v)
		}
	}
	if c := (&figure{values: []float64{3, 1, 2}}); c.median() != 2 || c.values[0] != 3 {
		t.Error("the median sorts the values of the figure")
	}
}
