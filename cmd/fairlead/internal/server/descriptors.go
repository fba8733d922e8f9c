package server

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// File descriptors that connections of hosts leave for everything else: the
// directories and files of the mesh, admin.sock, health and metrics, what is asked
// of Consul, the state directory.
const (
	reservedDescriptors = 512
	reservedForConsul   = 512
)

// descriptors says how many connections of hosts, and without TLS, there may be in
// a process that may have so many file descriptors. Where that is little, half of
// them are for connections.
func descriptors(limit uint64, hosts, plaintext int, consul bool) (mostHosts, mostPlaintext int) {
	left := int(min(limit, 1<<30))
	reserved := reservedDescriptors
	if consul {
		reserved += reservedForConsul
	}
	left = max(left-reserved, left/2)
	plaintext = min(plaintext, left/8)
	return max(1, min(hosts, left-plaintext)), plaintext
}

// fitDescriptors compares the limits with what the kernel lets the process have.
func (s *Server) fitDescriptors(ctx context.Context) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return fmt.Errorf("reading the limit of file descriptors: %w", err)
	}
	plaintext := 0
	if s.plaintext != nil {
		plaintext = maxPlaintext
	}
	hosts, plaintext := descriptors(r.Cur, s.cfg.MaxConnections, plaintext, s.cfg.Consul.Used())
	if s.plaintext != nil {
		s.plaintext.listener.most = int64(max(1, plaintext))
	}
	if hosts < s.cfg.MaxConnections {
		s.cfg.Logger.WarnContext(ctx, "open file limit is too low for --max-connections; serving fewer connections. Raise LimitNOFILE (ulimit -n)",
			"connections", hosts, "wanted", s.cfg.MaxConnections, "limit", r.Cur)
		s.cfg.MaxConnections = hosts
	}
	return nil
}
