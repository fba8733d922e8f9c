package server

import (
	"context"
	"runtime/debug"
)

// floodGCPercent is GOGC during a flood of unauthenticated connections. Their memory is used
// for a few seconds, so with the default of 100 half of it would be garbage.
const floodGCPercent = 50

// collectDuringFloods collects garbage earlier during a flood of unauthenticated connections,
// until ctx ends.
func (s *Server) collectDuringFloods(ctx context.Context) error {
	acceptor := s.hosts.acceptor
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-acceptor.FloodChanged():
		}
		if !acceptor.Flooded() {
			continue
		}
		s.duringFlood(ctx)
	}
}

// duringFlood returns when the flood is over.
func (s *Server) duringFlood(ctx context.Context) {
	acceptor := s.hosts.acceptor
	usual := debug.SetGCPercent(floodGCPercent)
	defer debug.SetGCPercent(usual)
	if usual < floodGCPercent { // GOGC is lower, or off
		debug.SetGCPercent(usual)
	}
	for acceptor.Flooded() {
		select {
		case <-ctx.Done():
			return
		case <-acceptor.FloodChanged():
		}
	}
}
