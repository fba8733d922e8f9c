package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/internal/ownaddress"
	"github.com/fairlead/fairlead/pki/svid"
)

// Limits below which a host has too little.
const (
	minFree  = 100 << 20 // bytes; the state is some MiB, and each file is written beside the one before
	minFiles = 4096      // Envoy needs two for each connection, and some hundreds for itself
)

// clock asks the kernel whether anything keeps the clock right, and compares it with the time that the
// authority has certified.
func (r *run) clock(context.Context) {
	now := r.Now()
	saved, err := svid.OpenClock(r.StateDir, "", nil)
	if err == nil && saved.Behind(now) {
		r.add("clock", Fault, fmt.Sprintf("the clock shows %s, which is before the time that the control plane has certified", now.UTC().Format(time.RFC3339)),
			"set it, and have chrony or systemd-timesyncd keep it")
		return
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		r.add("clock", Unknown, fmt.Sprintf("asking the kernel whether the clock is kept right: %v", err), "check `timedatectl`")
	case state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0:
		r.add("clock", Warning, "nothing keeps the clock right (the kernel calls it unsynchronized)",
			"run chrony or systemd-timesyncd: certificates count from the server's time on, for hours only")
	default:
		r.add("clock", OK, "kept right", "")
	}
}

// disk looks at the directories of the agent.
func (r *run) disk(context.Context) {
	for _, dir := range []string{r.StateDir, r.RunDir} {
		fi, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if r.agentErr == nil {
				r.add("disk", Fault, dir+" is gone while the agent runs", "restart the agent; it makes it again, and joins with its token")
			} else {
				r.add("disk", Warning, dir+" does not exist", "the agent makes it when it starts; if it has run before, check --state-dir and --run-dir")
			}
			continue
		case err != nil:
			r.add("disk", Unknown, fmt.Sprintf("%v", err), "run this command as root, or as the agent's user")
			continue
		case fi.Mode().Perm()&0o007 != 0 && dir == r.StateDir:
			r.add("disk", Fault, fmt.Sprintf("%s has mode %#o: every user of the host could read keys in it", dir, fi.Mode().Perm()), "chmod 0700 "+dir)
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(dir, &st); err != nil {
			r.add("disk", Unknown, fmt.Sprintf("asking for the free space of %s: %v", dir, err), "check `df`")
			continue
		}
		free := st.Bavail * uint64(st.Bsize)
		switch {
		case st.Flags&unix.ST_RDONLY != 0:
			r.add("disk", Fault, dir+" is on a file system that is read-only", "mount it writable: certificates are renewed, and a restart would use the old ones")
		case free < minFree || st.Files > 0 && st.Ffree < 1000:
			r.add("disk", Fault, fmt.Sprintf("%s has %d MiB and %d files left", dir, free>>20, st.Ffree), "make room: what cannot be saved is lost by a restart")
		default:
			r.add("disk", OK, fmt.Sprintf("%s has %d MiB left", dir, free>>20), "")
		}
	}
}

// address checks that the host has the address that others call it by.
func (r *run) address(ctx context.Context) {
	if r.agent.Address.IsValid() {
		r.Address = r.agent.Address
	}
	if !r.Address.IsValid() {
		return
	}
	list, err := net.InterfaceAddrs()
	if err != nil {
		r.add("address", Unknown, fmt.Sprintf("asking for the addresses of the host: %v", err), "check `ip address`")
		return
	}
	has := slices.ContainsFunc(list, func(a net.Addr) bool {
		p, err := netip.ParsePrefix(a.String())
		return err == nil && p.Addr().Unmap() == r.Address.Unmap()
	})
	if !has {
		r.add("address", Fault, fmt.Sprintf("no interface has %s", r.Address), "set --address to one that `ip address` shows, and the address of the WorkloadEntry to the same")
		return
	}
	if r.Address.IsLoopback() {
		// It may be meant, where all hosts are one machine. Then the servers are at loopback addresses, too.
		if other, err := ownaddress.Of(ctx, r.serverList()); err == nil && !other.IsLoopback() {
			r.add("address", Fault, fmt.Sprintf("%s is a loopback address, which other hosts do not reach", r.Address),
				fmt.Sprintf("restart the agent, or set --address to %s, the address of the route to the control plane", other))
			return
		}
	}
	r.add("address", OK, r.Address.String(), "")
}

// envoy looks for an Envoy that the agent can run.
func (r *run) envoy(ctx context.Context) {
	b, err := proxy.FindBinary(ctx, r.Envoy, r.Environ)
	if err != nil {
		r.add("envoy", Fault, err.Error(), "install Envoy, or name one with --envoy")
		return
	}
	r.installed = b.Version.String()
	r.add("envoy", OK, fmt.Sprintf("%s is %s", b.Path, b.Version), "")
}

// ports looks who has the ports of the agent and its Envoy, if these do not run.
func (r *run) ports(ctx context.Context) {
	if r.agentErr == nil {
		return // they have them
	}
	at := slices.Clone(r.Ports)
	if r.Capture {
		for _, port := range []uint16{15001, 15006} {
			at = append(at, netip.AddrPortFrom(netip.IPv4Unspecified(), port), netip.AddrPortFrom(netip.IPv6Unspecified(), port))
		}
	}
	free := true
	taken := func(a netip.AddrPort) error {
		err := proxy.CheckFree(ctx, []netip.AddrPort{a})
		if errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, syscall.EADDRNOTAVAIL) && a.Addr().Is6() {
			return nil
		}
		free = free && err == nil
		return err
	}
	for _, a := range at {
		if err := taken(a); err != nil {
			r.add("ports", Fault, err.Error(), "stop that process, or have it listen elsewhere")
		}
	}
	for _, a := range r.Usual {
		if err := taken(a); err != nil {
			r.add("ports", Warning, err.Error()+"; the agent will take a free port", "stop that process, or choose another port in the agent's settings: what expects this one does not find it")
		}
	}
	if free && len(at)+len(r.Usual) > 0 {
		r.add("ports", OK, "free", "")
	}
}

// privilege looks at the limits of this process, which the agent has too if it starts in the same way.
func (r *run) privilege(context.Context) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err == nil && l.Max < minFiles {
		r.add("limits", Warning, fmt.Sprintf("at most %d open files", l.Max), "raise LimitNOFILE (ulimit -Hn): Envoy needs two for each connection")
		return
	}
	r.add("limits", OK, fmt.Sprintf("%d open files", l.Max), "")
}

// descriptors counts those of the running agent. It needs no answer: an agent that has none left gives none.
func (r *run) descriptors(ctx context.Context) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", filepath.Join(r.RunDir, "admin.sock"))
	if err != nil {
		return // no agent runs
	}
	defer conn.Close()
	pid, err := peercred.Process(conn)
	if err != nil || pid <= 0 {
		return
	}
	var limit unix.Rlimit
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err == nil {
		err = unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit)
	}
	switch few := limit.Cur - limit.Cur/10; {
	case err != nil:
		r.add("descriptors", Unknown, fmt.Sprintf("counting those of the agent: %v", err), "run this command as root, or as the agent's user")
	case uint64(len(open)) >= limit.Cur:
		r.add("descriptors", Fault, fmt.Sprintf("the agent (process %d) has %d open, and its limit is %d: it can open no file and no connection", pid, len(open), limit.Cur),
			"raise LimitNOFILE (ulimit -n) and restart the agent; `ss -tpn` and `ls -l /proc/PID/fd` (as root) show who keeps them open")
	case uint64(len(open)) >= few:
		r.add("descriptors", Warning, fmt.Sprintf("the agent (process %d) has %d open, and its limit is %d", pid, len(open), limit.Cur), "raise LimitNOFILE (ulimit -n) and restart the agent")
	default:
		r.add("descriptors", OK, fmt.Sprintf("%d of %d open", len(open), limit.Cur), "")
	}
}

// security looks for what may forbid the agent something that its permissions allow.
func (r *run) security(context.Context) {
	if b, err := os.ReadFile("/sys/fs/selinux/enforce"); err == nil && strings.TrimSpace(string(b)) == "1" {
		r.add("selinux", Warning, "SELinux is enforcing; no policy for Fairlead is known",
			"if Envoy cannot listen or connect, `ausearch -m avc -ts recent` says what was denied")
		return
	}
	r.add("selinux", OK, "not enforcing", "")
}
