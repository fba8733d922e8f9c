package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// userHertz is the unit of /proc/stat on Linux.
const userHertz = 100

// othersBusy is the CPU time of all programs of the machine but this one and those
// it has started and seen end; 0 where nobody says.
func othersBusy() time.Duration {
	content, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(content), "\n")
	var ticks int64
	for i, word := range strings.Fields(line) {
		// The name; user, nice, system; idle and waiting for disks; interrupts.
		if i >= 1 && i <= 3 || i == 6 || i == 7 {
			n, _ := strconv.ParseInt(word, 10, 64)
			ticks += n
		}
	}
	busy := time.Duration(ticks) * time.Second / userHertz
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if err := syscall.Getrusage(who, &u); err != nil {
			return 0
		}
		busy -= time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return busy
}
