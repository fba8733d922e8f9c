package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairlead/fairlead/agent/capture/beat"
)

// serve serves the socket for people.
func (k *Keeper) serve(ctx context.Context) error {
	// For the group of the process, which is that of the agents.
	if err := os.MkdirAll(filepath.Dir(k.c.Socket), 0o750); err != nil {
		return fmt.Errorf("making the directory of the socket: %w", err)
	}
	s := beat.Server{
		Logger: k.log, Path: k.c.Socket, Allowed: func(uid uint32) bool { return uid == 0 },
		Alive: func(uint16) {}, Status: func() any { return k.Status() },
	}
	return s.Run(ctx)
}
