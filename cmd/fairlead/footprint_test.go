package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestReadOnly(t *testing.T) {
	t.Parallel()
	const file = "/usr/bin/fair lead"
	for line, want := range map[string]bool{
		"00400000-01406000 r-xp 00000000 fe:01 42 /usr/bin/fair lead": true,
		"01406000-028f1000 r--p 01006000 fe:01 42 /usr/bin/fair lead": true,
		"028f1000-029b4000 rw-p 024f1000 fe:01 42 /usr/bin/fair lead": false,
		"028f1000-029b4000 r--s 024f1000 fe:01 42 /usr/bin/fair lead": false,
		"028f1000-029b4000 r--p 00000000 fe:01 42 /usr/lib/libc.so.6": false,
		"7ffd0000-7ffd1000 r-xp 00000000 00:00 0 [vdso]":              false,
		"7ffd0000-7ffd1000 r--p 00000000 00:00 0":                     false,
		"nonsense": false,
	} {
		if m, ok := readOnly(line, file); ok != want || ok && m.from >= m.to {
			t.Errorf("readOnly(%q) = %x, %v", line, m, ok)
		}
	}
}

// TestUntouched has what a binary that runs at any address looks like: of what
// cannot be written, one range was relocated, and another was that is in swap.
func TestUntouched(t *testing.T) {
	t.Parallel()
	const file = "/usr/bin/fairlead"
	var smaps strings.Builder
	for _, r := range []struct {
		at, permissions string
		anonymous, swap int
	}{
		{at: "1000-2000", permissions: "r-xp"},
		{at: "2000-3000", permissions: "r--p"},
		{at: "3000-4000", permissions: "r--p", anonymous: 4},
		{at: "4000-5000", permissions: "r--p", swap: 4},
		{at: "5000-6000", permissions: "rw-p"},
		{at: "6000-7000", permissions: "r--p"},
	} {
		fmt.Fprintf(&smaps, "%s %s 00000000 fe:01 42                         %s\nSize: 4 kB\nRss: 4 kB\nAnonymous:       %5d kB\n"+
			"LazyFree:              0 kB\nSwap:            %5d kB\nSwapPss:               0 kB\nVmFlags: rd mr mw me \n", r.at, r.permissions, file, r.anonymous, r.swap)
	}
	smaps.WriteString("7000-8000 r--p 00000000 fe:01 42 " + file + "\nAnonymous: 0 kB\n") // and no more: it ends here
	want := []memory{{0x1000, 0x2000}, {0x2000, 0x3000}, {0x6000, 0x7000}}
	if got := untouched(strings.NewReader(smaps.String()), file); !slices.Equal(got, want) {
		t.Errorf("untouched: %x, want %x", got, want)
	}
}

// TestShrinkLeavesRelocationsAlone runs shrink in a program that runs at any
// address: what its start wrote to its constants is there afterwards.
func TestShrinkLeavesRelocationsAlone(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles the standard library anew: not in -short")
	}
	dir := t.TempDir()
	source, err := os.ReadFile("footprint.go")
	if err != nil {
		t.Fatal(err)
	}
	const program = "package main\n\nimport \"fmt\"\n\nfunc main() { shrink(); fmt.Println(fmt.Errorf(\"%v\", []any{\"alive\"})) }\n"
	files := []string{filepath.Join(dir, "footprint.go"), filepath.Join(dir, "main.go")}
	for i, content := range [][]byte{source, []byte(program)} {
		if err := os.WriteFile(files[i], content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "program")
	build := exec.CommandContext(t.Context(), "go", append([]string{"build", "-buildmode=pie", "-o", bin}, files...)...)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), bin).CombinedOutput(); err != nil || string(out) != "[alive]\n" {
		t.Errorf("after shrink: %v\n%.300s", err, out)
	}
}

// TestShrink shows that pages of the binary go, and that nothing misses them.
func TestShrink(t *testing.T) {
	t.Parallel()
	before := residentFile(t)
	shrink()
	if after := residentFile(t); after >= before {
		t.Errorf("%d kB of the binary were resident, and %d kB after", before, after)
	}
}

func residentFile(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "RssFile:")
	kb, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kb
}

// TestSettled shows that a process is left alone until it is ready, and that it is
// done once.
func TestSettled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began, done := time.Now(), 0
		settled(t.Context(), func() []string {
			if time.Since(began) < 15*time.Second {
				return []string{"envoy"}
			}
			return nil
		}, func() { done++ })
		if took := time.Since(began); done != 1 || took != 2*settleTime {
			t.Errorf("done %d times, after %s", done, took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		settled(ctx, func() []string { return nil }, func() { t.Error("done for a process that ends") })
	})
}
