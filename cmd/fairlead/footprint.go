package main

import (
	"bufio"
	"context"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stayShort has the garbage of a small process collected when the heap has grown
// by half, not when it has doubled: what an agent holds in a small mesh is
// collected in 2 ms. Who sets GOGC has chosen otherwise.
func stayShort() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// settleTime is long enough for what follows a start: Envoy has everything, and it
// is on disk.
const settleTime = 10 * time.Second

// settled does something once, when a process that has had settleTime is ready.
func settled(ctx context.Context, notReady func() []string, then func()) {
	tick := time.NewTicker(settleTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if len(notReady()) == 0 {
				then()
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// shrink gives back to the machine what only the start needed: the agent stands
// beside every application, and must be small. Of the binary the start reads
// nearly all, above all the descriptors of messages, and serving reads a small
// part, which the kernel maps again when it is needed. It is an optimisation:
// where something goes wrong everything stays as it was.
func shrink() {
	debug.FreeOSMemory()
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return
	}
	defer func() { _ = maps.Close() }()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		from, to, ok := constant(lines.Text(), self)
		if ok {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED)
		}
	}
}

// constant reads a line of /proc/PID/maps; ok means that the range is of the
// file and that nothing can have been written to it.
func constant(line, file string) (from, to uintptr, ok bool) {
	fields := strings.Fields(line) // range, permissions, offset, device, inode, path
	if len(fields) < 6 || !strings.HasSuffix(line, " "+file) || len(fields[1]) < 2 || fields[1][0] != 'r' || fields[1][1] != '-' {
		return 0, 0, false
	}
	first, last, _ := strings.Cut(fields[0], "-")
	a, errA := strconv.ParseUint(first, 16, strconv.IntSize)
	b, errB := strconv.ParseUint(last, 16, strconv.IntSize)
	return uintptr(a), uintptr(b), errA == nil && errB == nil && a < b
}
