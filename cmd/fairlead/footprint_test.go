package main

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestConstant(t *testing.T) {
	t.Parallel()
	const file = "/usr/bin/fair lead"
	for line, want := range map[string]bool{
		"00400000-01406000 r-xp 00000000 fe:01 42 /usr/bin/fair lead": true,
		"01406000-028f1000 r--p 01006000 fe:01 42 /usr/bin/fair lead": true,
		"028f1000-029b4000 rw-p 024f1000 fe:01 42 /usr/bin/fair lead": false,
		"028f1000-029b4000 r--p 00000000 fe:01 42 /usr/lib/libc.so.6": false,
		"7ffd0000-7ffd1000 r-xp 00000000 00:00 0 [vdso]":              false,
		"7ffd0000-7ffd1000 r--p 00000000 00:00 0":                     false,
		"nonsense": false,
	} {
		if from, to, ok := constant(line, file); ok != want || ok && from >= to {
			t.Errorf("constant(%q) = %x, %x, %v", line, from, to, ok)
		}
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
