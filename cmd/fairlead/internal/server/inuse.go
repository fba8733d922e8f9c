package server

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/pki/issue/serials"
	"github.com/fairlead/fairlead/pki/profile"
)

// newSerials makes what knows which certificates of hosts are in use.
func (s *Server) newSerials() (err error) {
	hosts := map[string]bool{}
	for _, h := range s.entitled.List() {
		hosts[h.Name] = true
	}
	if kept, err := os.ReadDir(filepath.Join(s.pkiDir(), "serials")); err == nil && len(kept) > 0 && len(hosts) == 0 {
		s.cfg.Logger.Error("all host records are missing: rejecting every host until records are restored or hosts rejoin",
			"path", filepath.Join(s.pkiDir(), "hosts"), "command", "fairlead host import FILE, or start the server with --readopt-until TIME")
	}
	s.serials, err = serials.New(serials.Config{
		Dir: filepath.Join(s.pkiDir(), "serials"), Logger: s.cfg.Logger, Registerer: s.metrics,
		Known: func(host string) bool { return hosts[host] || len(hosts) == 0 }, Refuse: s.cfg.RefuseSharedHostKeys,
	})
	return err
}

// inUse adds to a host what is known of its certificates.
func (s *Server) inUse(h *Host, binding profile.Binding) {
	state := s.serials.State(h.Name, binding)
	h.Returns, h.Returned, h.Fork = state.Returns, state.Returned, state.Fork
	if f := state.Fork; f != nil && h.Fault == "" {
		h.Fault = fmt.Sprintf("two hold its key, from %s and %s, since %s: %s",
			dashed(f.Peers[0]), dashed(f.Peers[1]), f.At.Format(time.RFC3339), serials.Remedy(h.Name))
	}
}
