package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestSaverRetriesUntilSaved: the newest content is saved once the disk accepts it, and
// meanwhile the status has the error.
func TestSaverRetriesUntilSaved(t *testing.T) {
	t.Parallel()
	for _, refusal := range []error{syscall.ENOSPC, syscall.EROFS, syscall.EACCES, syscall.EIO, syscall.EDQUOT} {
		t.Run(refusal.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				log := &syncBuffer{}
				s := newSaver(slog.New(slog.NewTextHandler(log, nil)))
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { s.run(ctx) })
				var disk string
				var room atomic.Bool
				write := func(content string) {
					s.save("/state/host.json", func() error {
						if !room.Load() {
							return refusal
						}
						disk = content
						return nil
					})
				}
				write("1")
				time.Sleep(20 * time.Second) //nolint:forbidigo // the bubble's clock
				write("2")
				synctest.Wait()
				list := s.unsaved(time.Now())
				if len(list) != 1 || list[0].File != "host.json" || list[0].Err != refusal.Error() || time.Since(list[0].Since) != 20*time.Second {
					t.Errorf("unsaved: %+v", list)
				}
				room.Store(true)
				time.Sleep(saveRetryInterval) //nolint:forbidigo // the bubble's clock
				synctest.Wait()
				if list := s.unsaved(time.Now()); disk != "2" || len(list) != 0 {
					t.Errorf("on disk is %q, unsaved %+v", disk, list)
				}
				// What comes last is saved, too.
				write("3")
				cancel()
				wg.Wait()
				if disk != "3" {
					t.Errorf("at the end %q is on disk", disk)
				}
				text := string(log.bytes())
				if strings.Count(text, "saving state failed") != 1 || strings.Count(text, "saving state works again") != 1 {
					t.Errorf("the log says:\n%s", text)
				}
			})
		})
	}
}

// TestSaverWithAHangingDisk: nothing waits, and the status reports it.
func TestSaverWithAHangingDisk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSaver(slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		hung := make(chan struct{})
		s.save("/state/a", func() error {
			<-hung
			return nil
		})
		synctest.Wait()
		s.save("/state/a", func() error { return nil }) // returns at once
		time.Sleep(time.Minute)                         //nolint:forbidigo // the bubble's clock
		if list := s.unsaved(time.Now()); len(list) != 1 || !strings.Contains(list[0].Err, "does not respond") {
			t.Errorf("unsaved: %+v", list)
		}
		close(hung)
		synctest.Wait()
		if list := s.unsaved(time.Now()); len(list) != 0 {
			t.Errorf("unsaved: %+v", list)
		}
		cancel()
		wg.Wait()
	})
}

// TestStateCannotBeSaved makes the state directory of a running agent unusable for longer than
// its certificates last: they are renewed and used, the agent reports it, and saves everything
// when the directory works again.
func TestStateCannotBeSaved(t *testing.T) {
	t.Parallel()
	cp := newPlane(t, 10*time.Second)
	port := envoytest.FreePorts(t, 1)[0]
	cp.set(port)
	m := newMachine(t, cp.token("orders-1", "shop/orders"))
	m.set.StateDir = filepath.Join(t.TempDir(), "state")
	a := agentHere(t, m.set.config(&syncBuffer{}))
	web := cp.caller(port)
	envoytest.Eventually(t, deadline, web.call)
	stop := web.load()
	ends := a.workload.Load().NotAfter()
	if host := a.host.Load().NotAfter(); host.After(ends) {
		ends = host
	}
	away := m.set.StateDir + ".away"
	if err := errors.Join(os.Rename(m.set.StateDir, away), os.WriteFile(m.set.StateDir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if time.Now().Before(ends.Add(2 * time.Second)) {
			return errors.New("the certificates have not ended")
		}
		return nil
	})
	calls, failed := stop()
	if len(failed) > 0 || calls < 100 {
		t.Errorf("%d of %d requests failed, the first: %v", len(failed), calls, failed)
	}
	// Another configuration, which the next stream brings.
	moved := envoytest.FreePorts(t, 1)[0]
	cp.set(moved)
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if err := cp.caller(moved).call(); err != nil {
			return err
		}
		files := map[string]bool{}
		for _, u := range a.Status().Unsaved {
			files[u.File] = true
		}
		for _, want := range []string{"host.json", "shop_orders.sealed", acceptedFile} {
			if !files[want] {
				return fmt.Errorf("%q is not reported: %v", want, files)
			}
		}
		return nil
	})
	if why := a.NotReady(t.Context()); len(why) > 0 {
		t.Errorf("not ready: %q", why)
	}
	if r := a.Remarks(); len(r) < 3 || !strings.Contains(strings.Join(r, "\n"), "host.json could not be saved") {
		t.Errorf("remarks: %q", r)
	}
	if err := errors.Join(os.Remove(m.set.StateDir), os.Rename(away, m.set.StateDir)); err != nil {
		t.Fatal(err)
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		if list := a.Status().Unsaved; len(list) > 0 {
			return fmt.Errorf("not saved: %+v", list)
		}
		chain, _, err := a.host.Load().Marshal()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(m.set.StateDir, "host.json"))
		if err == nil && !bytes.Contains(b, bytes.TrimSpace(bytes.ReplaceAll(chain, []byte("\n"), []byte(`\n`)))) {
			err = errors.New("host.json is old")
		}
		return err
	})
}
