package main

import (
	"bufio"
	"context"
	"io"
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
//
// An upgrade is no danger to it: what is read again is the file that was started,
// also after another took its name, and into that nobody can write (ETXTBSY).
func shrink() {
	debug.FreeOSMemory()
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer func() { _ = smaps.Close() }()
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	for _, r := range untouched(smaps, self) {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, r.from, r.to-r.from, unix.MADV_DONTNEED)
	}
}

// memory is a range of addresses, without its end.
type memory struct{ from, to uintptr }

// untouched reads /proc/PID/smaps and returns what is mapped of the file, cannot
// be written, and never was. That it cannot be written is not enough: a binary
// that runs at any address (-buildmode=pie) has pages that are relocated first and
// protected afterwards, and what was written to a page exists nowhere else. Such
// pages are anonymous, also when they are in swap, where they count apart.
func untouched(smaps io.Reader, file string) []memory {
	var (
		list []memory
		at   memory
		ok   bool
		none int // of what can have been written, how much is nought
	)
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		switch first, rest, _ := strings.Cut(lines.Text(), " "); {
		case !strings.HasSuffix(first, ":"):
			at, ok = readOnly(lines.Text(), file)
			none = 0
		case ok && (first == "Anonymous:" || first == "Swap:") && strings.TrimSpace(rest) == "0 kB":
			if none++; none == 2 {
				list = append(list, at)
			}
		}
	}
	return list
}

// readOnly reads the line that begins a range; ok means that it is of the file
// and that nothing can be written to it now.
func readOnly(line, file string) (m memory, ok bool) {
	fields := strings.Fields(line) // range, permissions, offset, device, inode, path
	if len(fields) < 6 || !strings.HasSuffix(line, " "+file) || fields[1] != "r--p" && fields[1] != "r-xp" {
		return memory{}, false
	}
	first, last, _ := strings.Cut(fields[0], "-")
	a, errA := strconv.ParseUint(first, 16, strconv.IntSize)
	b, errB := strconv.ParseUint(last, 16, strconv.IntSize)
	return memory{uintptr(a), uintptr(b)}, errA == nil && errB == nil && a < b
}
