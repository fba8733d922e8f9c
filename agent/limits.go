package agent

import (
	"bufio"
	"cmp"
	"context"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/xds/bootstrap"
)

const mebibyte = 1 << 20

// Default limits of Envoy. A host of 1 GiB gives it 448 MiB and 7,168 connections.
const (
	// heapShare is the divisor of the memory for the limit of Envoy's heap.
	heapShare = 2
	// heapStep rounds the limit of the heap, so that it stays the same if a kernel reserves a
	// little more memory.
	heapStep = 64 * mebibyte
	minHeap  = 2 * heapStep
	// bytesPerConnection of the heap allow one connection.
	bytesPerConnection = 64 << 10
	maxConnections     = 500_000 // half of the unit's LimitNOFILE: most have a second one upstream
)

// limits are those of Envoy: of the flags, or by the memory that it can have.
func (a *Agent) limits(ctx context.Context) bootstrap.Limits {
	memory := memoryOf(os.DirFS("/"))
	if memory == 0 && a.c.EnvoyMaxHeapMiB == 0 {
		a.log.WarnContext(ctx, "reading the host's memory size failed; Envoy's heap is not limited", "flag", "--envoy-max-heap-mib")
	}
	return limitsFor(memory, a.c.EnvoyMaxHeapMiB, a.c.EnvoyMaxConnections)
}

// limitsFor are the limits for an amount of memory, 0 if that is unknown. A flag is a limit, 0
// for the default, or negative for none.
func limitsFor(memory uint64, heapMiB, connections int) bootstrap.Limits {
	var l bootstrap.Limits
	usual := uint64(0)
	if memory > 0 {
		usual = max(memory/heapShare/heapStep*heapStep, minHeap)
	}
	switch {
	case heapMiB > 0:
		l.MaxHeap = uint64(heapMiB) * mebibyte
	case heapMiB == 0:
		l.MaxHeap = usual
	}
	switch {
	case connections > 0:
		l.MaxConnections = int64(connections)
	case connections == 0:
		l.MaxConnections = maxConnections
		if heap := cmp.Or(l.MaxHeap, usual); heap > 0 && heap/bytesPerConnection < maxConnections {
			l.MaxConnections = int64(heap / bytesPerConnection)
		}
	}
	return l
}

// memoryOf is the memory that this process and its Envoy can have: that of the host, or less
// if a cgroup limits it; 0 if it is unknown.
func memoryOf(root fs.FS) uint64 {
	least := uint64(math.MaxUint64)
	for line := range linesOf(root, "proc/meminfo") {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			if kib, err := strconv.ParseUint(f[1], 10, 54); err == nil {
				least = kib << 10
			}
		}
	}
	for line := range linesOf(root, "proc/self/cgroup") {
		dir, v2 := strings.CutPrefix(line, "0::/")
		if !v2 {
			continue
		}
		for dir = path.Clean(dir); ; dir = path.Dir(dir) {
			for text := range linesOf(root, path.Join("sys/fs/cgroup", dir, "memory.max")) {
				if n, err := strconv.ParseUint(text, 10, 64); err == nil { // or "max"
					least = min(least, n)
				}
			}
			if dir == "." || dir == "/" || strings.HasPrefix(dir, "..") {
				break
			}
		}
	}
	if least == math.MaxUint64 {
		return 0
	}
	return least
}

// linesOf are the lines of a file; none if it cannot be read.
func linesOf(root fs.FS, name string) func(func(string) bool) {
	return func(yield func(string) bool) {
		f, err := root.Open(name)
		if err != nil {
			return
		}
		defer func() { _ = f.Close() }()
		for s := bufio.NewScanner(f); s.Scan(); {
			if !yield(s.Text()) {
				return
			}
		}
	}
}
