// Package portholder names the process that listens at an address, for errors of those that
// cannot listen there.
//
// It reads /proc, so it sees the processes of its own user, and all of them as root. It keeps
// no state; any goroutine may call it.
package portholder

import (
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"

	"github.com/prometheus/procfs"

	"github.com/fairlead/fairlead/internal/safetext"
)

// Explain adds to an error of listening at address, in the form HOST:PORT, which process has
// the port, if that is the reason, and what to do. Other errors stay as they are.
func Explain(err error, address string) error {
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	host, text, splitErr := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if splitErr != nil || portErr != nil {
		return err
	}
	addr, _ := netip.ParseAddr(host) // of a name, or of all addresses, each process at the port is in the way
	if who := find(addr, port); who != "" {
		return fmt.Errorf("%w: %s listens there: stop it, or choose another address", err, who)
	}
	return fmt.Errorf("%w: another process has the port, which `ss -ltnp sport = :%d` names (as root): stop it, or choose another address", err, port)
}

// find names the first process that listens at the port, at an address that is in the way of
// addr; empty if none is visible.
func find(addr netip.Addr, port uint64) string {
	for p := range holders(addr, port) {
		if p.PID == os.Getpid() {
			return "this process itself"
		}
		name, err := p.Comm()
		if err != nil {
			continue
		}
		return fmt.Sprintf("process %q (pid %d)", safetext.Sanitize(name, 64), p.PID)
	}
	return ""
}

// Listeners are what has an address: the users of the sockets that listen there, which everybody sees,
// and their processes by their names below /proc, as far as they are visible.
func Listeners(at netip.AddrPort) (ids []int, users []uint32) {
	for _, l := range listening(at.Addr(), uint64(at.Port())) {
		users = append(users, uint32(l.UID))
	}
	for p := range holders(at.Addr(), uint64(at.Port())) {
		ids = append(ids, p.PID)
	}
	return ids, users
}

// listening are the sockets that listen at the port, at an address that is in the way of addr.
func listening(addr netip.Addr, port uint64) (out procfs.NetTCP) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return nil
	}
	for _, read := range []func() (procfs.NetTCP, error){fs.NetTCP, fs.NetTCP6} { //nolint:staticcheck // netlink is for machines that ask often
		list, err := read()
		if err != nil {
			continue // without IPv6 there is no such table
		}
		for _, l := range list {
			const listening = 10 // TCP_LISTEN
			if l.St == listening && l.LocalPort == port && inTheWay(addr, l.LocalAddr) {
				out = append(out, l)
			}
		}
	}
	return out
}

// holders are the processes that listen at the port, at an address that is in the way of addr.
func holders(addr netip.Addr, port uint64) iter.Seq[procfs.Proc] {
	return func(yield func(procfs.Proc) bool) {
		var sockets []string
		for _, l := range listening(addr, port) {
			sockets = append(sockets, fmt.Sprintf("socket:[%d]", l.Inode))
		}
		if len(sockets) == 0 {
			return
		}
		processes, err := procfs.AllProcs()
		if err != nil {
			return
		}
		for _, p := range processes {
			open, err := p.FileDescriptorTargets()
			if err != nil || !slices.ContainsFunc(open, func(target string) bool { return slices.Contains(sockets, target) }) {
				continue // it is another user's, has ended, or has nothing to do with it
			}
			if !yield(p) {
				return
			}
		}
	}
}

// inTheWay reports whether a listener at one address keeps another one from the same port.
func inTheWay(addr netip.Addr, at net.IP) bool {
	other, ok := netip.AddrFromSlice(at)
	return !ok || !addr.IsValid() || addr.IsUnspecified() || other.IsUnspecified() || addr.Unmap() == other.Unmap()
}
