package bench

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// countingReport is what [BenchmarkCounting] has measured.
type countingReport struct {
	size  size
	began time.Time
	// load is the machine's, before and after.
	load  []string
	costs []variantCosts // of the variants, in their order
	// series are those of meshes that count.
	series []seriesCost
}

// scrapeBudget is the most CPU, in ms, that a scrape of a host with 100 label sets may take.
const scrapeBudget = 50

// markdown is COUNTING.md.
func (r *countingReport) markdown() string {
	var b strings.Builder
	b.WriteString("# What metrics, access logs and traces cost\n\nWritten by `make bench-counting`.\n\n")
	n := r.size.starts * r.size.rounds
	fmt.Fprintf(&b, "%s, %s, %d CPUs (%s), %s. Load of the machine in the minute before the start %s, at the end %s.\n\n",
		r.began.Format(time.DateOnly), runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), cpu(), runtime.Version(), r.load[0], r.load[len(r.load)-1])
	fmt.Fprintf(&b, "%d rounds of %d requests a mesh and turn; all meshes were started %d times. CPU is in microseconds a request, of both Envoys and both agents.\n\n",
		n, r.size.requests, r.size.starts)
	b.WriteString("| Both hosts report | CPU, median | spread | of that agents | ratio to nothing, median | 95 % interval | by the idle control, median | 95 % interval | Budget | |\n" +
		"|---|---|---|---|---|---|---|---|---|---|\n")
	for i, v := range variants() {
		c := r.costs[i]
		all := slices.Sorted(slices.Values(c.with.on))
		fmt.Fprintf(&b, "| %s | %.0f | %.0f to %.0f | %.1f ", v.name, medianOf(all), all[0], all[len(all)-1], medianOf(c.agents))
		for _, ratios := range r.ratiosOf(i) {
			if ratios == nil {
				b.WriteString("| – | – ")
				continue
			}
			low, high := intervalOf(ratios)
			fmt.Fprintf(&b, "| %.3f | %.3f to %.3f ", medianOf(ratios), low, high)
		}
		result := ""
		if i > 1 {
			result = v.budget.result(c.corrected(r.costs[1].with))
		}
		fmt.Fprintf(&b, "| %s | %s |\n", v.budget.text(), result)
	}
	b.WriteString("\n## Series\n\nOne label set of requests at the client: a counter, and three histograms where there are some.\n\n" +
		"| | Label sets | Envoy, CPU of a scrape | Agent, CPU of a scrape | Together, median | spread | Budget | | Envoy, memory a set | the same, after scrapes | Agent, memory a set | Envoy holds | Agent holds |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, s := range r.series {
		few := scrapeText(s.scrapeFew)
		result := "met"
		if medianOf(sums(s.scrapeFew)) > scrapeBudget {
			result = "**missed**"
		}
		fmt.Fprintf(&b, "| %s | %d | %s | ≤ %d ms | %s | – | – | – | – | – |\n", s.name, s.few, few, scrapeBudget, result)
		fmt.Fprintf(&b, "| %s | %d | %s | – | | %.1f KB | %.1f KB | %.1f KB | %.0f MB | %.0f MB |\n", s.name, s.many, scrapeText(s.scrapeMany),
			s.envoy/1e3, s.envoyRead/1e3, s.agentRead/1e3, s.envoyNow, s.agentNow)
	}
	b.WriteString(countingNotes)
	return b.String()
}

// ratiosOf are the ratios of a variant, and those by the idle control; nil where there are none.
func (r *countingReport) ratiosOf(i int) [2][]float64 {
	switch i {
	case 0:
		return [2][]float64{}
	case 1:
		return [2][]float64{r.costs[1].with.ratios()}
	default:
		return [2][]float64{r.costs[i].with.ratios(), r.costs[i].corrected(r.costs[1].with)}
	}
}

func sums(costs []cost) []float64 {
	var out []float64
	for _, c := range costs {
		out = append(out, c.all())
	}
	return out
}

func scrapeText(costs []cost) string {
	var envoys, agents []float64
	for _, c := range costs {
		envoys, agents = append(envoys, c.envoys), append(agents, c.agents)
	}
	all := sums(costs)
	return fmt.Sprintf("%.1f ms | %.1f ms | %.1f ms | %.1f to %.1f ms", medianOf(envoys), medianOf(agents), medianOf(all), slices.Min(all), slices.Max(all))
}

const countingNotes = `
## How it is measured

- **A mesh** is a control plane and two hosts with an agent and an Envoy each, one worker, mTLS between them, HTTP/1.1 on four
  connections that are kept, requests without a body, the application an empty answer. All meshes run side by side, each with one
  setting that never changes; one at a time gets load. Nobody reads the agents' pages meanwhile.
- **A ratio** is of two turns next to one another, the mesh and the one that reports nothing, either of them first in half of the
  rounds. The idle control is a second mesh that reports nothing: what its ratio is from 1, and its interval, is what such a
  measurement cannot tell. *By the idle control* is the ratio of a round divided by the idle control's in the same round; the budgets are for that.
- **Processes differ**, even if nothing else does: therefore all meshes are started anew several times. Rounds of one start have
  that in common, so that the true interval is somewhat wider than the one given.
- **The 95 % interval** is of the median, by order statistics. CPU is the clock of the processes (all threads, system time too).
  The spread is the smallest and the largest value.
- Each mesh is asked at its end whether it has reported: all requests counted at both sides, a log of two lines a request, spans of about one
  request of a hundred at a receiver that counts and forgets them, and nothing where nothing was asked for.
- **Series**: a status code of a service is a label set, as a peer would be. A scrape is the agent's whole page, and has Envoy's own
  statistics besides; ten scrapes of each. Memory is what is no page of a file (KB of 1,000 bytes), from the few to the many, before anybody
  reads a page, and after ten scrapes: that has what Envoy's allocator and the agent's collector keep of the pages they made. The agent knows only what it
  has read. Holds is resident memory after that, in MB of 2^20 bytes.
`

// TestCountingPage: the committed page has what is measured now.
func TestCountingPage(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("COUNTING.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	if !strings.HasSuffix(page, countingNotes) {
		t.Error("COUNTING.md has other notes: write it anew by make bench-counting")
	}
	for _, v := range variants() {
		if !strings.Contains(page, "\n| "+v.name+" | ") || !strings.Contains(page, " | "+v.budget.text()+" | ") {
			t.Errorf("COUNTING.md has no row %q with the budget %q", v.name, v.budget.text())
		}
	}
}
