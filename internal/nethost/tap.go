package nethost

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PlugFar connects a host by an eth0 without an address, over a wire that loses a share of what the host sends, and
// delivers the rest after a delay: what tc's netem does, which not every kernel has.
func (s *Switch) PlugFar(h *Host, delay time.Duration, loss float64) {
	s.h.tb.Helper()
	near, far := h.tap("eth0"), s.h.tap(h.Name)
	s.h.IP("link", "set", h.Name, "master", "br0", "up")
	h.IP("link", "set", "eth0", "up")
	var group sync.WaitGroup
	s.h.tb.Cleanup(func() { _, _ = near.Close(), far.Close(); group.Wait() })
	group.Go(func() { carry(near, far, delay, loss) })
	group.Go(func() { carry(far, near, 0, 0) })
}

// tap makes an interface whose frames a process carries.
func (h *Host) tap(name string) *os.File {
	h.tb.Helper()
	var fd int
	var err error
	h.As(0, func() {
		if fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err != nil {
			return
		}
		var ifr struct {
			name  [unix.IFNAMSIZ]byte
			flags uint16
			_     [22]byte
		}
		copy(ifr.name[:], name)
		ifr.flags = unix.IFF_TAP | unix.IFF_NO_PI
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TUNSETIFF, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
			err = errno
		}
	})
	if err != nil {
		h.tb.Fatal(fmt.Errorf("making the interface %s: %w", name, err))
	}
	return os.NewFile(uintptr(fd), name)
}

// carry carries frames until one of the interfaces is closed.
func carry(from, to *os.File, delay time.Duration, loss float64) {
	type frame struct {
		due  time.Time
		data []byte
	}
	const underway = 4096 // more are lost, as in any queue
	queue := make(chan frame, underway)
	var group sync.WaitGroup
	defer group.Wait()
	defer close(queue)
	group.Go(func() {
		for f := range queue {
			if wait := time.Until(f.due); wait > 0 {
				<-time.After(wait)
			}
			_, _ = to.Write(f.data)
		}
	})
	b := make([]byte, 1<<16)
	for {
		n, err := from.Read(b)
		if err != nil {
			return
		}
		if rand.Float64() < loss {
			continue
		}
		select {
		case queue <- frame{time.Now().Add(delay), append([]byte(nil), b[:n]...)}:
		default:
		}
	}
}
