package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Stdout, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer, args []string) error {
	flags := flag.NewFlagSet("soak", flag.ContinueOnError)
	base := flags.String("base", "", "the commit to compare with; by default where the branch left upstream/main, origin/main or main")
	runs := flags.Int("runs", 20, "how often each test runs")
	load := flags.Int("load", 3*runtime.NumCPU(), "how many threads compute beside the tests; 0 for none")
	only := flags.String("only", "", "run only tests of packages whose directory begins with this")
	timeout := flags.Duration("timeout", 15*time.Minute, "how long one run of the tests of a package may take")
	list := flags.Bool("list", false, "print what would run, and run nothing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := git(ctx, ".", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	from, err := mergeBase(ctx, root, *base)
	if err != nil {
		return err
	}
	changes, err := changesSince(ctx, root, from)
	if err != nil {
		return err
	}
	picked, err := choose(changes, func(dir string) ([]string, error) { return importers(ctx, root, dir) })
	if err != nil {
		return err
	}
	picked = picked.under(*only)
	if len(picked) == 0 {
		_, err := fmt.Fprintf(out, "no test has changed since %.12s\n", from)
		return err
	}
	for _, s := range picked {
		if _, err := fmt.Fprintln(out, s); err != nil {
			return err
		}
	}
	if *list {
		return nil
	}
	stop := burn(ctx, *load)
	defer stop()
	s := soak{root: root, out: out, runs: *runs, timeout: *timeout}
	return s.all(ctx, picked)
}

// mergeBase is where HEAD left a commit, or the first branch of the usual ones that exists.
func mergeBase(ctx context.Context, root, base string) (string, error) {
	candidates := []string{"upstream/main", "origin/main", "main"}
	if base != "" {
		candidates = []string{base}
	}
	var errs []error
	for _, c := range candidates {
		from, err := git(ctx, root, "merge-base", "HEAD", c)
		if err == nil {
			return from, nil
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("finding what to compare with (give BASE=COMMIT): %w", errors.Join(errs...))
}

func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("running git %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimRight(string(b), "\n"), nil
}

// burn computes on n threads until the returned function is called, or the process ends.
func burn(ctx context.Context, n int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	runtime.GOMAXPROCS(max(n, 1) + 1)
	for range n {
		go func() {
			for x := uint64(1); ; x++ {
				if x&0xffff == 0 && ctx.Err() != nil {
					return
				}
			}
		}()
	}
	return cancel
}
