package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// soak runs tests.
type soak struct {
	root    string
	out     io.Writer
	runs    int
	timeout time.Duration
}

// all runs all tests that were selected, one package after the other.
func (s *soak) all(ctx context.Context, picked selection) error {
	dir, err := os.MkdirTemp("", "soak-")
	if err != nil {
		return fmt.Errorf("making a directory for test binaries: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	var failed []string
	for i, p := range picked {
		bad, err := s.pkg(ctx, p, filepath.Join(dir, strconv.Itoa(i)))
		if err != nil {
			return err
		}
		failed = append(failed, bad...)
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d failed:\n  %s", len(failed), strings.Join(failed, "\n  "))
	}
	_, err = fmt.Fprintf(s.out, "all passed, %d runs each\n", s.runs)
	return err
}

// pkg runs the tests of one package. What the race detector leaves out runs without it.
func (s *soak) pkg(ctx context.Context, p selected, binary string) (failed []string, err error) {
	skipped, failed, err := s.repeat(ctx, p, binary+".race", true)
	if err != nil || len(skipped) == 0 {
		return failed, err
	}
	skipped, more, err := s.repeat(ctx, selected{p.dir, skipped}, binary, false)
	for _, name := range skipped {
		more = append(more, fmt.Sprintf("./%s %s: it was skipped in every run, which shows nothing", p.dir, name))
	}
	return append(failed, more...), err
}

// repeat runs tests again and again. It returns those that were skipped each time.
func (s *soak) repeat(ctx context.Context, p selected, binary string, race bool) (skipped, failed []string, err error) {
	build := []string{"test", "-c", "-vet=off", "-o", binary}
	detector := "without the race detector"
	if race {
		build, detector = append(build, "-race"), "with the race detector"
	}
	dir := filepath.Join(s.root, filepath.FromSlash(p.dir))
	cmd := exec.CommandContext(ctx, "go", append(build, ".")...)
	cmd.Dir = dir
	if b, err := cmd.CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("building the tests of %s: %w\n%s", p.dir, err, b)
	}
	if _, err := os.Stat(binary); errors.Is(err, fs.ErrNotExist) { // no test files are left there
		return nil, nil, nil
	}
	var total outcome
	for n := range s.runs {
		began := time.Now()
		text, err := s.once(ctx, p, dir, binary)
		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}
		one := outcomeOf(text)
		word := "ok"
		if err != nil {
			word = "FAIL"
			kept, kerr := keep(text)
			failed = append(failed, fmt.Sprintf("./%s run %d %s: %s; its output: %s", p.dir, n+1, detector, one.failures(err), kept))
			if kerr != nil {
				return nil, nil, kerr
			}
		}
		if _, err := fmt.Fprintf(s.out, "%s ./%s %d of %d %s, %s\n", word, p.dir, n+1, s.runs, detector, time.Since(began).Round(time.Millisecond)); err != nil {
			return nil, nil, err
		}
		total.passed, total.skipped = append(total.passed, one.passed...), append(total.skipped, one.skipped...)
	}
	slices.Sort(total.skipped)
	for _, name := range slices.Compact(total.skipped) {
		if !slices.Contains(total.passed, name) {
			skipped = append(skipped, name)
		}
	}
	return skipped, failed, nil
}

// once runs tests once, in a process of their own.
func (s *soak) once(ctx context.Context, p selected, dir, binary string) ([]byte, error) {
	args := []string{"-test.v", "-test.timeout", s.timeout.String()}
	if p.tests != nil {
		args = append(args, "-test.run", "^("+strings.Join(p.tests, "|")+")$")
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "FAIRLEAD_E2E=1")
	cmd.WaitDelay = 10 * time.Second // processes of a test that was killed may hold the pipe
	return cmd.CombinedOutput()
}

// keep writes the output of a run that failed to a file that stays.
func keep(text []byte) (path string, err error) {
	f, err := os.CreateTemp("", "soak-failed-*.txt")
	if err != nil {
		return "", fmt.Errorf("keeping the output of a run: %w", err)
	}
	_, err = f.Write(text)
	return f.Name(), errors.Join(err, f.Close())
}

// outcome are the tests of a run, by name.
type outcome struct{ passed, skipped, failed []string }

var verdict = regexp.MustCompile(`^--- (PASS|SKIP|FAIL): (\S+) \(`)

// outcomeOf reads the output of a run.
func outcomeOf(text []byte) (o outcome) {
	for line := range bytes.Lines(text) {
		m := verdict.FindSubmatch(line)
		if m == nil {
			continue
		}
		name := string(m[2])
		switch string(m[1]) {
		case "PASS":
			o.passed = append(o.passed, name)
		case "SKIP":
			o.skipped = append(o.skipped, name)
		default:
			o.failed = append(o.failed, name)
		}
	}
	return o
}

// failures says what failed.
func (o outcome) failures(err error) string {
	if len(o.failed) == 0 { // a panic, a deadline
		return err.Error()
	}
	return strings.Join(o.failed, ", ")
}
