package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/report"
)

// measure runs a plan and writes what came of it.
func measure(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("table", flag.ContinueOnError)
	fairlead := f.String("fairlead", "bin/fairlead", "the program of the control plane")
	peers := f.String("peers", "bin/peers", "the program of go-control-plane's caches")
	dir := f.String("dir", "", "for meshes and logs; empty means a temporary one")
	to := f.String("out", "bench", "where SCALE.md, WORST.md or CONSUL.md, charts and baseline.json are written")
	long := f.Bool("long", false, "the long worst cases instead of the table")
	catalog := f.Bool("catalog", false, "a Consul catalog instead of the table")
	binary := f.String("consul", consulBinary, "the program of Consul")
	only := f.String("only", "", "names of steps with commas, instead of all; nothing is written")
	quickstart := f.String("quickstart", "", "figures of the quickstart's mesh, by BENCH_FIGURES")
	keep := f.Bool("update-baseline", false, "make the figures of this run the baseline")
	if err := f.Parse(args); err != nil {
		return err
	}
	s := &suite{dir: *dir, fairlead: *fairlead, peers: *peers, log: out}
	if s.dir == "" {
		tmp, err := os.MkdirTemp("", "fleet")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(tmp) }()
		s.dir = tmp
	}
	what, plan := shortReport(), shortPlan()
	switch {
	case *long:
		what, plan = longReport(), longPlan()
	case *catalog:
		what, plan = consulReport(), consulPlan(*binary)
	}
	if *only != "" {
		plan = slices.DeleteFunc(plan, func(st step) bool { return !slices.Contains(strings.Split(*only, ","), st.name) })
	}
	failed := s.all(ctx, plan)
	if err := s.quickstart(*quickstart); err != nil {
		failed = append(failed, err.Error())
	}
	p := publication{pages: what, suite: s, dir: *to, only: *only != "", keep: *keep}
	return errors.Join(p.publish(out), failures(failed))
}

func failures(list []string) error {
	if len(list) == 0 {
		return nil
	}
	return errors.New("not measured: " + strings.Join(list, "; "))
}

// quickstart takes the figures of the other bench, if there are some.
func (s *suite) quickstart(path string) error {
	if path == "" {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the figures of the quickstart: %w", err)
	}
	var figures map[string][]float64
	if err := json.Unmarshal(content, &figures); err != nil {
		return fmt.Errorf("reading the figures of the quickstart: %w", err)
	}
	for _, v := range figures["Idle: agent, memory"] {
		s.samples.Add(report.Ours, "small.agent", v*(1<<20)/1e6)
	}
	return nil
}

// pages are what a kind of run writes.
type pages struct {
	page, title, target string
	tables              []report.Table
	// summary are the lines of README.md between which what has a budget stands.
	begins, ends string
	charts       bool
}

func shortReport() pages {
	return pages{page: "SCALE.md", title: "The cost of a change", target: "make bench", tables: tables(), begins: summaryBegins, ends: summaryEnds, charts: true}
}

func longReport() pages {
	return pages{page: "WORST.md", title: "Worst cases", target: "make bench-worst", tables: longTables()}
}

func consulReport() pages {
	return pages{
		page: "CONSUL.md", title: "The cost of a Consul catalog", target: "make bench-consul", tables: consulTables(),
		begins: "<!-- of a Consul catalog, by make bench-consul -->\n", ends: "<!-- end of make bench-consul -->\n",
	}
}

// publication is what is made of the figures.
type publication struct {
	pages

	suite      *suite
	dir        string
	only, keep bool
}

func (p publication) rows() []report.Row {
	var rows []report.Row
	for _, t := range p.tables {
		rows = append(rows, t.Rows...)
	}
	return rows
}

func (p publication) publish(out io.Writer) error {
	path := filepath.Join(p.dir, "baseline.json")
	base, err := report.ReadBaseline(path)
	if err != nil {
		return err
	}
	text := p.markdown(base)
	if p.only {
		_, err := io.WriteString(out, text)
		return err
	}
	if err := p.write(p.page, text); err != nil {
		return err
	}
	if err := p.summarize(base); err != nil {
		return err
	}
	if p.charts {
		for name, c := range charts(&p.suite.samples) {
			if err := p.write(filepath.Join("charts", name+".svg"), c.SVG()); err != nil {
				return err
			}
		}
	}
	worse := base.Regressions(&p.suite.samples, p.rows())
	for _, w := range worse {
		_, _ = fmt.Fprintf(out, "worse: %s\n", w)
	}
	if len(worse) == 0 {
		_, _ = fmt.Fprintln(out, "nothing is worse than the baseline")
	}
	if !p.keep && base != nil {
		return nil
	}
	now := &report.Baseline{Machine: machine(), Date: time.Now().Format(time.DateOnly)}
	return now.Write(path, &p.suite.samples, p.rows())
}

// The summary stands between these in README.md.
const (
	summaryBegins = "<!-- what has a budget, by make bench -->\n"
	summaryEnds   = "<!-- end -->\n"
)

// summarize writes what has a budget into README.md, where that has a place for
// it.
func (p publication) summarize(base *report.Baseline) error {
	if p.begins == "" {
		return nil
	}
	content, err := os.ReadFile(filepath.Join(p.dir, "README.md"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // another folder, which has none
	}
	if err != nil {
		return fmt.Errorf("reading the summary: %w", err)
	}
	head, rest, begins := strings.Cut(string(content), p.begins)
	_, tail, ends := strings.Cut(rest, p.ends)
	if !begins || !ends {
		return fmt.Errorf("README.md has no lines %q and %q", strings.TrimSpace(p.begins), strings.TrimSpace(p.ends))
	}
	return p.write("README.md", head+p.begins+p.summary(base)+p.ends+tail)
}

func (p publication) summary(base *report.Baseline) string {
	var b strings.Builder
	for _, t := range p.tables {
		t.Rows = slices.DeleteFunc(t.Rows, func(r report.Row) bool { return r.Budget == report.None })
		t.Text, t.Notes = "", ""
		if len(t.Rows) > 0 {
			b.WriteString("\n#" + t.Markdown(&p.suite.samples, base))
		}
	}
	return b.String() + "\n"
}

func (p publication) write(name, text string) error {
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil { //nolint:gosec // the folder is the one that was asked for
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

func (p publication) markdown(base *report.Baseline) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nWritten by `%s`, in %s; README.md says what is measured and how.\n\n", p.title, p.target,
		time.Since(p.suite.began).Round(time.Second))
	fmt.Fprintf(&b, "%s, %s, shared by the server and the fleet. A figure is the median of its runs, the spread the smallest and the\nlargest value.",
		time.Now().Format(time.DateOnly), machine())
	if base != nil {
		fmt.Fprintf(&b, " The baseline is of %s, %s; better or worse marks differences that are larger than the noise.", base.Date, base.Machine)
	}
	fmt.Fprintf(&b, "\nOther programs used %.2f of the cores meanwhile; it should be 0, because times are longer by that share.", p.suite.others)
	b.WriteString("\n\n")
	if p.charts {
		for _, name := range chartNames() {
			fmt.Fprintf(&b, "![%s](charts/%s.svg)\n", name, name)
		}
		b.WriteString("\n")
	}
	for _, t := range p.tables {
		if p.only {
			t.Rows = slices.DeleteFunc(t.Rows, func(r report.Row) bool {
				_, ok := p.suite.samples.Of(report.Ours, r.ID)
				return !ok
			})
		}
		if len(t.Rows) == 0 {
			continue
		}
		b.WriteString(t.Markdown(&p.suite.samples, base) + "\n")
	}
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// machine is this one.
func machine() string {
	model := "an unknown processor"
	if content, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(content)) {
			if name, ok := strings.CutPrefix(line, "model name"); ok {
				model = strings.Trim(name, "\t :\n")
				break
			}
		}
	}
	return fmt.Sprintf("%s/%s, %d CPUs (%s), %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), model, runtime.Version())
}
