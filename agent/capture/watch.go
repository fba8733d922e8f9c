package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Changed is what changed, as [Kernel.Watch] reports it.
type Changed int

// The kinds of changes.
const (
	// Tables are those of nf_tables, of any program.
	Tables Changed = iota
	// Routes are routes, addresses and interfaces.
	Routes
)

// Watch calls changed when anything of the tables, routes, addresses or interfaces of the network
// namespace may have changed, until ctx ends. by is the program that changed tables, if the kernel
// says so, and if it is not this process; programs choose their names themselves. Calls are
// hints: whoever floods the kernel with changes causes some calls a second, and not more.
//
// listening is called once all changes from then on are noticed. changed may be called from two
// goroutines at the same time; both have ended when Watch returns.
func (k Kernel) Watch(ctx context.Context, listening func(), changed func(what Changed, by string)) error {
	tables, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: k.NetNS, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
	if err != nil {
		return fmt.Errorf("watching the tables of the kernel: %w", explainErrno(err))
	}
	defer func() { _ = tables.Close() }()
	routes, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		NetNS: k.NetNS, Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE | unix.RTMGRP_IPV6_IFADDR,
	})
	if err != nil {
		return fmt.Errorf("watching the routes of the kernel: %w", explainErrno(err))
	}
	defer func() { _ = routes.Close() }()
	listening()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _, _ = tables.Close(), routes.Close() })
	defer stop()
	var group sync.WaitGroup
	group.Go(func() {
		cancel(receive(ctx, tables, func(b []byte) { changed(Tables, changer(b)) }))
	})
	group.Go(func() {
		cancel(receive(ctx, routes, func([]byte) { changed(Routes, "") }))
	})
	group.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// pause is how long nothing is received after something was. A flood of messages costs this many
// looks a second; the kernel drops what does not fit into the socket's buffer, and says so.
const pause = 20 * time.Millisecond

// receive calls got with what was received at once, until ctx ends.
func receive(ctx context.Context, c *netlink.Conn, got func([]byte)) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("watching the kernel: %w", err)
	}
	buffer := make([]byte, os.Getpagesize()*4)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		var all []byte
		var failed error
		some := false
		err := raw.Read(func(fd uintptr) bool {
			const most = 256 // messages; what is left is received after the pause
			for range most {
				n, _, err := unix.Recvfrom(int(fd), buffer, unix.MSG_DONTWAIT)
				switch {
				case errors.Is(err, unix.EINTR):
					continue
				case errors.Is(err, unix.EAGAIN):
					return some
				case errors.Is(err, unix.ENOBUFS): // some messages are lost: something has changed
				case err != nil:
					failed = err
					return true
				default:
					all = append(all, buffer[:n]...)
				}
				some = true
			}
			return true
		})
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil || failed != nil:
			return fmt.Errorf("watching the kernel: %w", errors.Join(err, failed))
		}
		got(all)
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// changer is the program that made the last change among messages, if it is known and not this
// process.
func changer(b []byte) (by string) {
	msgs, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return ""
	}
	for _, m := range msgs {
		if m.Header.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
			continue
		}
		g, ok := readGeneration(m.Data)
		if !ok || g.program == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join("/proc/self/task", strconv.FormatUint(uint64(g.thread), 10))); err == nil {
			continue
		}
		by = fmt.Sprintf("%s (pid %d)", strings.ToValidUTF8(g.program, "?"), g.thread)
	}
	return by
}
