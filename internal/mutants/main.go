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

// packages are those whose sites are mutated.
func packages() []string {
	return []string{"registry/mesh", "registry/manifest/webhook", "agent/credential", "xds/view", "xds/cache", "xds", "xds/envoy"}
}

// testRun is a run of some tests of one binary.
type testRun struct {
	name, pkg, run string
	took           time.Duration // without a mutant
	covered        map[int]bool  // the sites that it executes
}

// properties are the tests that should fail at every site.
func properties() []testRun {
	return []testRun{
		{name: "mesh properties", pkg: "registry/mesh", run: "^(TestMergesEqualMerge|TestIncrementalMergeEqualsFullMerge|TestBoundSourcesMergeIncrementally|TestChangesAreAsFromNothing)$"},
		{name: "xds properties", pkg: "xds/cache", run: "^(TestRebuildsEqualBuilds|TestSharedEqualsAlone)$"},
	}
}

// packageTests are all short tests of the packages, or those of which the name matches.
func packageTests(packages []string, only string) []testRun {
	var out []testRun
	for _, p := range packages {
		out = append(out, testRun{name: p, pkg: p, run: only})
	}
	return out
}

// result is the result for one site.
type result struct {
	Site string
	Sum  string // of the file
	By   string // the test that failed; empty for a survivor
	All  bool   // all tests ran, not the properties alone
}

type settings struct {
	root, work, state           string
	file, tests, only           string
	budget                      time.Duration
	jobs                        int
	list, again, propertiesOnly bool
}

func run(ctx context.Context, out io.Writer) error {
	var s settings
	flag.StringVar(&s.work, "work", filepath.Join(os.TempDir(), "fairlead-mutants"), "a directory for binaries and copies")
	flag.StringVar(&s.state, "state", "", "file with results, one line for each site; by default in -work")
	flag.StringVar(&s.file, "file", "", "only sites whose file and function (a/b.go Type.func) match a regular expression")
	flag.StringVar(&s.tests, "tests", "xds/view,registry/mesh,registry/manifest/webhook,registry/analysis,agent/credential,agent/workload,internal/istiod,xds/cache,xds,xds/envoy,registry", "the packages whose short tests run, besides the property tests")
	flag.StringVar(&s.only, "run", "", "only tests of the packages whose names match a regular expression, for a first look: run the survivors with -again and without it")
	flag.DurationVar(&s.budget, "budget", 0, "stop after this time")
	flag.IntVar(&s.jobs, "jobs", runtime.NumCPU(), "how many sites run at a time")
	flag.BoolVar(&s.list, "list", false, "list the sites, and run nothing")
	flag.BoolVar(&s.again, "again", false, "run survivors again")
	flag.BoolVar(&s.propertiesOnly, "nets", false, "run the property tests only")
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
	return s.mutateAll(ctx, out)
}

func (s *settings) mutateAll(ctx context.Context, out io.Writer) error {
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
			printLine(out, "%d %s:%d %s: %s %s", x.ID, x.File, x.Line, x.Func, x.What, x.Text)
		}
		return nil
	}
	var runs []testRun
	if s.only == "" {
		runs = properties()
	}
	if !s.propertiesOnly {
		runs = append(runs, packageTests(strings.Split(s.tests, ","), s.only)...)
	}
	if runs, err = s.build(ctx, overlay, runs); err != nil {
		return err
	}
	for i := range runs {
		began := time.Now()
		if runs[i].covered, err = s.coverage(ctx, runs[i]); err != nil {
			return err
		}
		runs[i].took = time.Since(began)
	}
	// Short tests first: most mutants fail many tests.
	slices.SortStableFunc(runs, func(a, b testRun) int { return cmp.Compare(a.took, b.took) })
	return s.runSites(ctx, out, sites, runs)
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

// build builds the test binaries. It leaves out runs without a test.
func (s *settings) build(ctx context.Context, overlay string, runs []testRun) ([]testRun, error) {
	done := map[string]bool{}
	var out []testRun
	for _, t := range runs {
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

// coverage runs tests with no switch set, and returns the sites that they execute.
func (s *settings) coverage(ctx context.Context, t testRun) (map[int]bool, error) {
	trace := filepath.Join(s.work, "trace")
	if err := os.WriteFile(trace, nil, 0o600); err != nil {
		return nil, err
	}
	if by, err := s.runMutant(ctx, t, 0, "FAIRLEAD_MUTANT_TRACE="+trace); err != nil || by != "" {
		return nil, errors.Join(err, fmt.Errorf("%s fails without a mutant: %s", t.name, by))
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

// timeout is the limit for a test run: a mutated site may be what ends a loop.
func timeout(t testRun) time.Duration {
	if t.took == 0 {
		return 20 * time.Minute
	}
	return time.Minute + 5*t.took
}

var failed = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// runMutant runs tests with one switch set. by is the test that failed.
func (s *settings) runMutant(ctx context.Context, t testRun, id int, env ...string) (by string, err error) {
	limit, cancel := context.WithTimeout(ctx, timeout(t))
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
		return t.name + ": timeout", nil
	}
	names := failed.FindAllSubmatch(text, -1)
	if len(names) == 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		return t.name + ": " + first, nil
	}
	return t.name + ": " + string(names[len(names)-1][1]), nil
}

// runSites runs the tests for every site without a result, several at a time.
func (s *settings) runSites(ctx context.Context, out io.Writer, sites []*site, runs []testRun) error {
	have, err := s.read()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(s.state, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := s.results(sites)
	if err != nil {
		return err
	}
	may := expectedSurvivors()
	ran, missing := make([]bool, len(sites)), errgroup.Group{}
	missing.SetLimit(s.jobs)
	var mu sync.Mutex // guards f and out
	for i, x := range sites {
		k := &all[i]
		if old, ok := have[k.Site]; ok && old.Sum == k.Sum && (old.By != "" || (old.All || s.propertiesOnly) && !s.again) {
			*k, ran[i] = old, true
			continue
		}
		if may[k.Site] != "" && !s.again {
			continue
		}
		missing.Go(func() error {
			by, err := s.firstFailure(ctx, x, runs)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			k.By, ran[i] = by, true
			if by == "" && may[k.Site] == "" {
				printLine(out, "survived  %s:%d %s", x.File, x.Line, k.Site)
			}
			return json.NewEncoder(f).Encode(*k)
		})
	}
	if err := missing.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	report(out, sites, all, ran, may)
	return nil
}

// results returns an empty result for each site, with its name and the hash of its file.
func (s *settings) results(sites []*site) ([]result, error) {
	all := make([]result, len(sites))
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
		all[i] = result{Site: x.name() + " #" + strconv.Itoa(seen[x.name()]), Sum: sums[x.File], All: !s.propertiesOnly && s.only == ""}
	}
	return all, nil
}

// firstFailure returns the first test that fails with a mutant, or nothing.
func (s *settings) firstFailure(ctx context.Context, x *site, runs []testRun) (by string, err error) {
	for _, t := range runs {
		if !t.covered[x.ID] {
			continue
		}
		if by, err = s.runMutant(ctx, t, x.ID); err != nil || by != "" {
			return by, err
		}
	}
	return "", ctx.Err()
}

// report prints the result for each site, in the order of the sources.
func report(out io.Writer, sites []*site, all []result, ran []bool, may map[string]string) {
	killed, survived, expected, left := 0, 0, 0, 0
	for i, x := range sites {
		switch k := all[i]; {
		case k.By != "":
			killed++
			printLine(out, "killed    %s:%d %s  [%s]", x.File, x.Line, k.Site, k.By)
		case may[k.Site] != "":
			expected++
			printLine(out, "expected  %s:%d %s  [%s]", x.File, x.Line, k.Site, may[k.Site])
		case !ran[i]:
			left++
		default:
			survived++
			printLine(out, "survived  %s:%d %s", x.File, x.Line, k.Site)
		}
	}
	printLine(out, "%d sites: %d killed, %d survived, %d more survivors listed in survivors.txt, %d not run", len(sites), killed, survived, expected, left)
}

// survivors are the accepted survivors: lines with sites, followed by a line with the
// reason, which begins with a tab.
//
//go:embed survivors.txt
var survivors string

func expectedSurvivors() map[string]string {
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

// printLine prints a line, and panics if that fails.
func printLine(out io.Writer, format string, args ...any) {
	if _, err := fmt.Fprintf(out, format+"\n", args...); err != nil {
		panic(err)
	}
}

func (s *settings) read() (map[string]result, error) {
	out := map[string]result{}
	f, err := os.Open(s.state)
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var k result
		if err := json.Unmarshal(lines.Bytes(), &k); err == nil {
			out[k.Site] = k
		}
	}
	return out, nil
}
