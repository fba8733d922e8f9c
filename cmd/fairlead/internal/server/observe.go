package server

import (
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/xds"
)

// What reports to the tracer; nil functions if there is none, so that nothing is kept for it.

func (s *Server) observeFiles() func(files.Composed) {
	if s.cfg.Tracer == nil {
		return nil
	}
	return s.cfg.Tracer.Composed
}

func (s *Server) observePublished() func(registry.Publication) {
	if s.cfg.Tracer == nil {
		return nil
	}
	return s.cfg.Tracer.Published
}

func (s *Server) observeRollouts() func(xds.Rollout) {
	if s.cfg.Tracer == nil {
		return nil
	}
	return s.cfg.Tracer.Answered
}
