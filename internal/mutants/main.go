package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed" // the list of survivors
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// packages are those whose places are looked for.
func packages() []string {
	return []string{"registry/mesh", "xds/view", "xds/cache", "xds", "xds/envoy"}
}

// trial is a run of tests: one binary, some of its tests.
type trial struct {
	name, pkg, run string
	took           time.Duration // with nothing taken out
	reached        map[int]bool  // the places that it comes by
}

// nets are meant to notice every place.
func nets() []trial {
	return []trial{
		{name: "mesh nets", pkg: "registry/mesh", run: "^TestMerges"},
		{name: "xds nets", pkg: "xds/cache", run: "^(TestRebuildsEqualBuilds|TestSharedEqualsAlone)$"},
	}
}

// others are all short tests of the packages.
func others(packages []string) []trial {
	var out []trial
	for _, p := range packages {
		out = append(out, trial{name: p, pkg: p})
	}
	return out
}

// known is what a run found out about a place.
type known struct {
	Site string
	Sum  string // of the file with the place
	By   string // the test that noticed; empty for a survivor
	All  bool   // all tests were asked, not the nets alone
}

type settings struct {
	root, work, state string
	file, tests       string
	budget            time.Duration
	jobs              int
	list, again, nets bool
}

func run(ctx context.Context, out io.Writer) error {
	var s settings
	flag.StringVar(&s.work, "work", filepath.Join(os.TempDir(), "fairlead-mutants"), "a directory for binaries and copies")
	flag.StringVar(&s.state, "state", "", "what is known already, a line a place; by default in -work")
	flag.StringVar(&s.file, "file", "", "only places whose file and function (a/b.go Type.func) match a regular expression")
	flag.StringVar(&s.tests, "tests", "xds/view,registry/mesh,xds/cache,xds,xds/envoy,registry", "the packages whose short tests are asked, besides the nets")
	flag.DurationVar(&s.budget, "budget", 0, "stop after this time")
	flag.IntVar(&s.jobs, "jobs", runtime.NumCPU(), "how many places are asked of at a time")
	flag.BoolVar(&s.list, "list", false, "list the places, and ask nobody")
	flag.BoolVar(&s.again, "again", false, "ask again of survivors")
	flag.BoolVar(&s.nets, "nets", false, "ask the nets alone")
	flag.Parse()
	if s.state == "" {
		s.state = filepath.Join(s.work, "state.jsonl")
	}
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fmt.Errorf("finding the module: %w", err)
	}
	s.root = strings.TrimSpace(string(root))
	if s.budget > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.budget)
		defer cancel()
	}
	return s.all(ctx, out)
}

func (s *settings) all(ctx context.Context, out io.Writer) error {
	if err := os.MkdirAll(s.work, 0o750); err != nil {
		return err
	}
	sites, overlay, err := s.overlay()
	if err != nil {
		return err
	}
	if s.file != "" {
		only, err := regexp.Compile(s.file)
		if err != nil {
			return err
		}
		sites = slices.DeleteFunc(sites, func(x *site) bool { return !only.MatchString(x.File + " " + x.Func) })
	}
	if s.list {
		for _, x := range sites {
			say(out, "%d %s:%d %s: %s %s", x.ID, x.File, x.Line, x.Func, x.What, x.Text)
		}
		return nil
	}
	trials := nets()
	if !s.nets {
		trials = append(trials, others(strings.Split(s.tests, ","))...)
	}
	if trials, err = s.build(ctx, overlay, trials); err != nil {
		return err
	}
	for i := range trials {
		began := time.Now()
		if trials[i].reached, err = s.reached(ctx, trials[i]); err != nil {
			return err
		}
		trials[i].took = time.Since(began)
	}
	// The short ones first: most places are noticed by many tests.
	slices.SortStableFunc(trials, func(a, b trial) int { return cmp.Compare(a.took, b.took) })
	return s.ask(ctx, out, sites, trials)
}

// overlay writes the copies of all files with their switches.
func (s *settings) overlay() ([]*site, string, error) {
	replace := map[string]string{}
	var sites []*site
	next := 0
	for _, dir := range packages() {
		more, files, err := find(s.root, dir, &next)
		if err != nil {
			return nil, "", err
		}
		sites = append(sites, more...)
		files[filepath.Join(s.root, dir, "mutant_switches.go")] = switches(filepath.Base(dir))
		for path, content := range files {
			copied := filepath.Join(s.work, strings.ReplaceAll(strings.TrimPrefix(path, s.root+"/"), "/", "_"))
			if err := os.WriteFile(copied, content, 0o600); err != nil {
				return nil, "", err
			}
			replace[path] = copied
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	path := filepath.Join(s.work, "overlay.json")
	return sites, path, os.WriteFile(path, text, 0o600)
}

func (s *settings) binary(pkg string) string {
	return filepath.Join(s.work, strings.ReplaceAll(pkg, "/", "_")+".test")
}

// build makes the binaries of tests, and leaves out trials that have no test.
func (s *settings) build(ctx context.Context, overlay string, trials []trial) ([]trial, error) {
	done := map[string]bool{}
	var out []trial
	for _, t := range trials {
		if !done[t.pkg] {
			c := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", s.binary(t.pkg), "./"+t.pkg)
			c.Dir = s.root
			if text, err := c.CombinedOutput(); err != nil {
				return nil, fmt.Errorf("building the tests of %s: %w\n%s", t.pkg, err, text)
			}
			done[t.pkg] = true
		}
		if t.run != "" {
			c := exec.CommandContext(ctx, s.binary(t.pkg), "-test.list", t.run)
			if text, err := c.Output(); err != nil || len(text) == 0 {
				continue
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// reached runs a trial with nothing taken out, and gives the places that it comes by.
func (s *settings) reached(ctx context.Context, t trial) (map[int]bool, error) {
	trace := filepath.Join(s.work, "trace")
	if err := os.WriteFile(trace, nil, 0o600); err != nil {
		return nil, err
	}
	if by, err := s.try(ctx, t, 0, "FAIRLEAD_MUTANT_TRACE="+trace); err != nil || by != "" {
		return nil, errors.Join(err, fmt.Errorf("%s does not pass with nothing taken out: %s", t.name, by))
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		return nil, err
	}
	out := map[int]bool{}
	for line := range strings.Lines(string(text)) {
		if id, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			out[id] = true
		}
	}
	return out, nil
}

// longest is how long a trial may take: a place may be what ends a loop.
func longest(t trial) time.Duration {
	if t.took == 0 {
		return 20 * time.Minute
	}
	return time.Minute + 5*t.took
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// try runs a trial with one place taken out; by is the test that noticed.
func (s *settings) try(ctx context.Context, t trial, id int, env ...string) (by string, err error) {
	limit, cancel := context.WithTimeout(ctx, longest(t))
	defer cancel()
	args := []string{"-test.short", "-test.failfast", "-test.count=1", "-test.parallel=8"}
	if t.run != "" {
		args = append(args, "-test.run", t.run)
	}
	c := exec.CommandContext(limit, s.binary(t.pkg), args...)
	c.Dir, c.Env = filepath.Join(s.root, t.pkg), append(append(os.Environ(), "FAIRLEAD_MUTANT="+strconv.Itoa(id), "GOGC=400"), env...)
	text, err := c.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return "", nil
	case limit.Err() != nil:
		return t.name + ": it does not end", nil
	}
	names := failed.FindAllSubmatch(text, -1)
	if len(names) == 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		return t.name + ": " + first, nil
	}
	return t.name + ": " + string(names[len(names)-1][1]), nil
}

// ask asks of every place that nobody knows yet, several at a time.
func (s *settings) ask(ctx context.Context, out io.Writer, sites []*site, trials []trial) error {
	have, err := s.read()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.state, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := s.known(sites)
	if err != nil {
		return err
	}
	may := explained()
	asked, missing := make([]bool, len(sites)), errgroup.Group{}
	missing.SetLimit(s.jobs)
	var mu sync.Mutex // guards f and out
	for i, x := range sites {
		k := &all[i]
		if old, ok := have[k.Site]; ok && old.Sum == k.Sum && (old.By != "" || (old.All || s.nets) && !s.again) {
			*k, asked[i] = old, true
			continue
		}
		if may[k.Site] != "" && !s.again {
			continue
		}
		missing.Go(func() error {
			by, err := s.notice(ctx, x, trials)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			k.By, asked[i] = by, true
			if by == "" && may[k.Site] == "" {
				say(out, "survived  %s:%d %s", x.File, x.Line, k.Site)
			}
			return json.NewEncoder(f).Encode(*k)
		})
	}
	if err := missing.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	report(out, sites, all, asked, may)
	return nil
}

// known gives each place its name, and the sum of its file.
func (s *settings) known(sites []*site) ([]known, error) {
	all := make([]known, len(sites))
	sums, seen := map[string]string{}, map[string]int{}
	for i, x := range sites {
		if sums[x.File] == "" {
			text, err := os.ReadFile(filepath.Join(s.root, x.File))
			if err != nil {
				return nil, err
			}
			sum := sha256.Sum256(text)
			sums[x.File] = hex.EncodeToString(sum[:8])
		}
		seen[x.name()]++
		all[i] = known{Site: x.name() + " #" + strconv.Itoa(seen[x.name()]), Sum: sums[x.File], All: !s.nets}
	}
	return all, nil
}

// notice gives the first test that fails with a place taken out, or nothing.
func (s *settings) notice(ctx context.Context, x *site, trials []trial) (by string, err error) {
	for _, t := range trials {
		if !t.reached[x.ID] {
			continue
		}
		if by, err = s.try(ctx, t, x.ID); err != nil || by != "" {
			return by, err
		}
	}
	return "", ctx.Err()
}

// report prints what came of each place, in the order of the sources.
func report(out io.Writer, sites []*site, all []known, asked []bool, may map[string]string) {
	killed, survived, excused, left := 0, 0, 0, 0
	for i, x := range sites {
		switch k := all[i]; {
		case k.By != "":
			killed++
			say(out, "killed    %s:%d %s  [%s]", x.File, x.Line, k.Site, k.By)
		case may[k.Site] != "":
			excused++
			say(out, "excused   %s:%d %s  [%s]", x.File, x.Line, k.Site, may[k.Site])
		case !asked[i]:
			left++
		default:
			survived++
			say(out, "survived  %s:%d %s", x.File, x.Line, k.Site)
		}
	}
	say(out, "%d places: %d killed, %d survived, %d more by survivors.txt, %d not asked", len(sites), killed, survived, excused, left)
}

// survivors are the places that may be taken out without a test that notices, and why:
// a line with the place, and below it one with the reason, which begins with a tab.
//
//go:embed survivors.txt
var survivors string

func explained() map[string]string {
	out := map[string]string{}
	var sites []string // that wait for their reason
	for line := range strings.Lines(survivors) {
		line = strings.TrimRight(line, "\n")
		reason, isReason := strings.CutPrefix(line, "\t")
		switch {
		case isReason:
			for _, s := range sites {
				out[s] = reason
			}
			sites = nil
		case line != "" && line[0] != '#':
			sites = append(sites, line)
		}
	}
	return out
}

// say prints a line; where nobody can read it there is no more to be done.
func say(out io.Writer, format string, args ...any) {
	if _, err := fmt.Fprintf(out, format+"\n", args...); err != nil {
		panic(err)
	}
}

func (s *settings) read() (map[string]known, error) {
	out := map[string]known{}
	f, err := os.Open(s.state)
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var k known
		if err := json.Unmarshal(lines.Bytes(), &k); err == nil {
			out[k.Site] = k
		}
	}
	return out, nil
}
