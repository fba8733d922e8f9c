package proxy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// handle refers to one process by pidfd: it always means that process, even if its id is
// reused, and whether or not it is a child.
type handle struct {
	pid int
	// proc is its name below /proc: another one than pid where /proc is that of an outer pid
	// namespace, as in a container that has the host's.
	proc int
	fd   *os.File
	// child is nil for a process that another agent started; set before wait.
	child *exec.Cmd
}

func openHandle(pid int) (*handle, error) {
	// Non-blocking makes the runtime's poller wait for it instead of a thread.
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("holding process %d: %w", pid, err)
	}
	h := &handle{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}
	if h.proc, err = h.procID(); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// procID asks the kernel for the process's name below /proc; an error means that it has none, or
// has exited.
func (h *handle) procID() (int, error) {
	c, err := h.fd.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("inspecting process %d: %w", h.pid, err)
	}
	var info []byte
	if ctl := c.Control(func(fd uintptr) { info, err = os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd)) }); ctl != nil {
		err = ctl
	}
	if err != nil {
		return 0, fmt.Errorf("inspecting process %d: /proc must be of this pid namespace, or of one around it: %w", h.pid, err)
	}
	for line := range strings.Lines(string(info)) {
		if rest, ok := strings.CutPrefix(line, "Pid:"); ok {
			proc, err := strconv.Atoi(strings.TrimSpace(rest))
			if err == nil && proc > 0 {
				return proc, nil
			}
		}
	}
	return 0, fmt.Errorf("%w: process %d has exited", errGone, h.pid)
}

// user is the effective user of the process, which everybody may read.
func (h *handle) user() (uint32, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.proc))
	if err != nil {
		return 0, fmt.Errorf("inspecting process %d: %w", h.pid, err)
	}
	for line := range strings.Lines(string(status)) {
		f := strings.Fields(line) // real, effective, saved, of the file system
		if len(f) == 5 && f[0] == "Uid:" {
			id, err := strconv.ParseUint(f[2], 10, 32)
			return uint32(id), err //nolint:wrapcheck // the kernel writes numbers
		}
	}
	return 0, fmt.Errorf("inspecting process %d: its user is not known", h.pid)
}

// wait returns when the process has exited, or with an error when the handle is closed.
func (h *handle) wait() error {
	c, err := h.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("waiting for process %d: %w", h.pid, err)
	}
	err = c.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return err == nil && n > 0
	})
	if err != nil {
		return fmt.Errorf("waiting for process %d: %w", h.pid, err)
	}
	if h.child == nil {
		// It may still be a child of this process: one that was left running and taken
		// over again.
		_, _ = unix.Wait4(h.pid, nil, unix.WNOHANG, nil)
	} else {
		// Its error is how the process exited, see exit.
		_ = h.child.Wait()
	}
	return nil
}

// exit says how the process exited; call it after wait has returned.
func (h *handle) exit() string {
	if h.child == nil {
		return "unknown: it was started by an agent before this one"
	}
	return h.child.ProcessState.String()
}

// signal sends a signal; it is no error if the process has exited.
func (h *handle) signal(s syscall.Signal) error {
	c, err := h.fd.SyscallConn()
	if err != nil {
		return fmt.Errorf("signalling process %d: %w", h.pid, err)
	}
	var sent error
	if err := c.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) }); err != nil {
		return fmt.Errorf("signalling process %d: %w", h.pid, err)
	}
	if sent != nil && !errors.Is(sent, unix.ESRCH) {
		return fmt.Errorf("signalling process %d: %w", h.pid, sent)
	}
	return nil
}

func (h *handle) close() { _ = h.fd.Close() }
