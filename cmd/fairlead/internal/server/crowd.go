package server

import (
	"context"
	"runtime/debug"
)

// crowdPercent is how much the heap may grow between two collections of garbage
// while there is a crowd of unauthenticated peers. What they have lives for some
// seconds, so that half of what they take by Go's own 100 % is garbage.
const crowdPercent = 50

// followCrowds has garbage collected earlier while there is a crowd of peers that
// have proved nothing, until ctx ends.
func (s *Server) followCrowds(ctx context.Context) error {
	acceptor := s.hosts.acceptor
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-acceptor.Crowd():
		}
		if !acceptor.Crowded() {
			continue
		}
		s.inCrowd(ctx)
	}
}

// inCrowd returns when there is no crowd any more.
func (s *Server) inCrowd(ctx context.Context) {
	acceptor := s.hosts.acceptor
	usual := debug.SetGCPercent(crowdPercent)
	defer debug.SetGCPercent(usual)
	if usual < crowdPercent { // somebody has chosen less by GOGC, or a limit and no percentage
		debug.SetGCPercent(usual)
	}
	for acceptor.Crowded() {
		select {
		case <-ctx.Done():
			return
		case <-acceptor.Crowd():
		}
	}
}
