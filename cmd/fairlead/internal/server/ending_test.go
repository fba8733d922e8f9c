package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/pki/durable"
)

// slowDisk takes its time to sync a directory.
type slowDisk struct {
	durable.OS
	takes time.Duration
}

func (d slowDisk) SyncDir(dir string) error {
	<-time.After(d.takes)
	return d.OS.SyncDir(dir)
}

// TestEndWaitsForTheDisk: the process ends without a part that computes, and not without what is being written.
func TestEndWaitsForTheDisk(t *testing.T) {
	for name, c := range map[string]struct {
		computes bool // beside the write
		log      bool // that a part still computes
	}{
		"only_the_disk":        {},
		"beside_what_computes": {computes: true, log: true},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			s := &Server{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
			process, stop := context.WithCancel(t.Context())
			g, ctx := errgroup.WithContext(process)
			written, computed := make(chan error, 1), make(chan struct{})
			defer close(computed)
			g.Go(func() error {
				<-ctx.Done()
				err := durable.WriteFile(slowDisk{takes: 2 * stopWithin}, filepath.Join(t.TempDir(), "record"), []byte("x"), 0o600)
				written <- err
				return err
			})
			if c.computes {
				g.Go(func() error { <-computed; return nil })
			}
			stop()
			if err := s.wait(process, ctx, g); err != nil {
				t.Error(err)
			}
			select {
			case err := <-written:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error("the process ended before its record was written")
			}
			if got := strings.Contains(log.String(), "still computing"); got != c.log {
				t.Errorf("log that a part computes: %v\n%s", got, log.String())
			}
		})
	}
}
