package agent

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// envoyReadiness implements [health.Envoy].
type envoyReadiness struct{ a *Agent }

// Ready is nil if Envoy takes traffic. Its admin interface says so; without its socket, the
// connection on which Envoy gets its configuration does.
func (r envoyReadiness) Ready(ctx context.Context) error {
	r.a.mu.Lock()
	admin := r.a.admin
	r.a.mu.Unlock()
	err := admin.Ready(ctx)
	if errors.Is(err, proxy.ErrNoAdminSocket) {
		s := r.a.Status()
		if live(&s) {
			return nil
		}
	}
	if err != nil {
		return r.a.explain(err)
	}
	return nil
}

// envoyAnswers is nil if an Envoy runs, has its configuration and answers. It depends on nothing
// that the agent does with configuration.
func (a *Agent) envoyAnswers(ctx context.Context) error {
	a.mu.Lock()
	admin, process := a.admin, a.proxy
	a.mu.Unlock()
	if admin == nil || process == nil || process.Status().PID == 0 {
		return &notReadyError{problem: problemOf(envoyStarts)}
	}
	return envoyReadiness{a}.Ready(ctx)
}

// live reports whether an Envoy runs, and has accepted its first configuration.
func live(s *Status) bool {
	if s.Envoy.PID == 0 || s.Relay == nil {
		return false
	}
	for _, e := range s.Relay.Envoys {
		if e.Newest && e.Live {
			return s.Relay.Envoy == bootstrap.EnvoyLive || s.Relay.Envoy == bootstrap.EnvoyRejecting
		}
	}
	return false
}

// withoutAdminSocket reports whether an Envoy serves without its admin socket. a.mu is held.
func (a *Agent) withoutAdminSocket(s *Status) bool {
	// Only Envoy can make its socket, and only at its start. A restart would end its connections without
	// draining them, because draining needs the socket too; so a person chooses when.
	if a.admin == nil || a.c.AdminAddress.IsValid() || !live(s) {
		return false
	}
	for _, path := range []string{a.adminPaths.moved, a.adminPaths.made} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return false
		}
	}
	return true
}
