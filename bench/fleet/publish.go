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
	to := f.String("out", "bench", "where SCALE.md or WORST.md, charts and baseline.json are written")
	long := f.Bool("long", false, "the long worst cases instead of the table")
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
	plan, parts, page := shortPlan(), tables(), "SCALE.md"
	if *long {
		plan, parts, page = longPlan(), longTables(), "WORST.md"
	}
	if *only != "" {
		plan = slices.DeleteFunc(plan, func(st step) bool { return !slices.Contains(strings.Split(*only, ","), st.name) })
	}
	failed := s.all(ctx, plan)
	if err := s.quickstart(*quickstart); err != nil {
		failed = append(failed, err.Error())
	}
	p := publication{suite: s, tables: parts, page: page, dir: *to, only: *only != "", long: *long, keep: *keep}
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

// publication is what is made of the figures.
type publication struct {
	suite            *suite
	tables           []report.Table
	page, dir        string
	only, long, keep bool
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
	if !p.long {
		if err := p.summarize(base); err != nil {
			return err
		}
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

// summarize writes what has a budget into README.md.
func (p publication) summarize(base *report.Baseline) error {
	content, err := os.ReadFile(filepath.Join(p.dir, "README.md"))
	if errors.Is(err, os.ErrNotExist) {
		return nil // another folder, which has none
	}
	if err != nil {
		return fmt.Errorf("reading the summary: %w", err)
	}
	head, rest, begins := strings.Cut(string(content), summaryBegins)
	_, tail, ends := strings.Cut(rest, summaryEnds)
	if !begins || !ends {
		return fmt.Errorf("README.md has no lines %q and %q", strings.TrimSpace(summaryBegins), strings.TrimSpace(summaryEnds))
	}
	return p.write("README.md", head+summaryBegins+p.summary(base)+summaryEnds+tail)
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
	title, target := "The cost of a change", "make bench"
	if p.long {
		title, target = "Worst cases", "make bench-worst"
	}
	fmt.Fprintf(&b, "# %s\n\nWritten by `%s`, in %s; README.md says what is measured and how.\n\n", title, target,
		time.Since(p.suite.began).Round(time.Second))
	fmt.Fprintf(&b, "%s, %s, shared by the server and the fleet. A figure is the median of its runs, the spread the smallest and the\nlargest value.",
		time.Now().Format(time.DateOnly), machine())
	if base != nil {
		fmt.Fprintf(&b, " The baseline is of %s, %s; better or worse is what is beyond chance.", base.Date, base.Machine)
	}
	b.WriteString("\n\n")
	if !p.long {
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
