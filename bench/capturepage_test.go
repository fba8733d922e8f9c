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

// captureReport is what [BenchmarkCapture] has measured.
type captureReport struct {
	size  captureSize
	began time.Time
	load  []string         // of the machine, before and after
	costs []travelledCosts // of the paths, in their order
}

// markdown is CAPTURE.md.
func (r *captureReport) markdown() string {
	var b strings.Builder
	b.WriteString("# What a request costs on its way\n\nWritten by `make bench-capture`.\n\n")
	fmt.Fprintf(&b, "%s, %s, %d CPUs (%s), %s. Load of the machine in the minute before the start %s, at the end %s.\n\n",
		r.began.Format(time.DateOnly), runtime.GOOS+"/"+runtime.GOARCH, runtime.NumCPU(), cpu(), runtime.Version(), r.load[0], r.load[len(r.load)-1])
	fmt.Fprintf(&b, "%d rounds; all hosts were started %d times. CPU is that of both Envoys together.\n", r.size.starts*r.size.rounds, r.size.starts)
	for _, kept := range []bool{true, false} {
		title, n := "Connections that are kept", r.size.kept
		if !kept {
			title, n = "A new connection for each request", r.size.fresh
		}
		fmt.Fprintf(&b, "\n## %s\n\n%d requests a path and turn, four at a time.\n\n", title, n)
		b.WriteString("| Path | p50, median | spread | p99, median | CPU a request, median | spread | compared with | CPU, ratio, median | 95 % interval | p50, ratio, median | 95 % interval |\n" +
			"|---|---|---|---|---|---|---|---|---|---|---|\n")
		for i, p := range paths() {
			own, base := r.costs[i].kept, r.costs[i].keptBase
			if !kept {
				own, base = r.costs[i].fresh, r.costs[i].freshBase
			}
			b.WriteString(captureRow(p, own, base))
		}
	}
	b.WriteString(captureNotes)
	return b.String()
}

func captureRow(p path, own, base []turn) string {
	values := func(list []turn, of func(turn) float64) (out []float64) {
		for _, t := range list {
			out = append(out, of(t))
		}
		return out
	}
	cpuOf, p50, p99 := func(t turn) float64 { return t.cpu }, func(t turn) float64 { return t.p50 }, func(t turn) float64 { return t.p99 }
	ms, us := values(own, p50), values(own, cpuOf)
	row := fmt.Sprintf("| %s | %.2f ms | %.2f to %.2f ms | %.2f ms ", p.name, medianOf(ms), slices.Min(ms), slices.Max(ms), medianOf(values(own, p99)))
	if p.name == direct {
		return row + "| – | – | – | – | – | – | – |\n"
	}
	row += fmt.Sprintf("| %.0f µs | %.0f to %.0f µs ", medianOf(us), slices.Min(us), slices.Max(us))
	if p.base == "" {
		return row + "| – | – | – | – | – |\n"
	}
	ratio := func(ratios []float64) string {
		low, high := intervalOf(ratios)
		return fmt.Sprintf("| %.2f | %.2f to %.2f ", medianOf(ratios), low, high)
	}
	return row + "| " + p.base + " " + ratio(over(us, values(base, cpuOf))) + ratio(over(ms, values(base, p50))) + "|\n"
}

const captureNotes = `
## How it is measured

- **A path** leads from a program on one host to an HTTP server on another one: network namespaces on one switch, an agent and an
  Envoy each, one worker unless it is said, HTTP/1.1, no body, an empty answer. All of them exist side by side; one at a time gets load. The
  program and the server are in one process, whose CPU is not counted.
- *By a listener*: the program calls the egress listener of a Sidecar, with a Host header. *Captured*: it calls the virtual
  address. What a listener of Envoy and the kernel do besides is the difference.
- **A ratio** is of two turns next to one another, the path and the one that it is compared with, either of them first in half of the rounds. The
  idle control is a second mesh that is the same: what its ratio is from 1, and its interval, is what such a measurement cannot tell.
- **Attempts at less**: two workers; HTTP/2 between the Envoys (h2UpgradePolicy), so that all requests share one connection; no filters: two
  Envoys with a file as configuration, mTLS, and nothing but the router, which is what filters, statistics and routes by name can win at most; the same with small buffers. That
  connections are kept is the largest win of all: compare the two tables.
- Latency is that of a machine of two cores on which client, server and Envoys compete; CPU says more. CPU is the clock of the processes (all
  threads, system time too). The spread is the smallest and the largest value; the 95 % interval is of the median, by order statistics.
- Each path is asked before whether the server hears who calls, where there is mTLS, and that it hears nobody where there is none.
`

// TestCapturePage: the committed page has what is measured now.
func TestCapturePage(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("CAPTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	if !strings.HasSuffix(page, captureNotes) {
		t.Error("CAPTURE.md has other notes: write it anew by make bench-capture")
	}
	for _, p := range paths() {
		if strings.Count(page, "\n| "+p.name+" | ") != 2 {
			t.Errorf("CAPTURE.md has no rows %q", p.name)
		}
	}
}
