package registry

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ownerSaver writes the record of owners behind the loop: a slow disk delays no
// snapshot.
type ownerSaver struct {
	store OwnerStore
	log   *slog.Logger
	// next is the record that is to be written: the latest, for it holds all.
	next  chan map[mesh.Hostname]Ownership
	fault atomic.Pointer[string] // or nil
}

func newOwnerSaver(store OwnerStore, log *slog.Logger) *ownerSaver {
	return &ownerSaver{store: store, log: log, next: make(chan map[mesh.Hostname]Ownership, 1)}
}

// save hands over a record. Only one goroutine may call it.
func (s *ownerSaver) save(record map[mesh.Hostname]Ownership) {
	select {
	case <-s.next:
	default:
	}
	s.next <- record
}

// why is what is wrong; empty if nothing is.
func (s *ownerSaver) why() string {
	if fault := s.fault.Load(); fault != nil {
		return *fault
	}
	return ""
}

// run writes until ctx is done, and then what is left.
func (s *ownerSaver) run(ctx context.Context) {
	var unsaved map[mesh.Hostname]Ownership
	again := time.NewTicker(saveAgain)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			select {
			case unsaved = <-s.next:
			default:
			}
			if unsaved != nil {
				s.write(unsaved)
			}
			return
		case unsaved = <-s.next:
		case <-again.C:
		}
		if unsaved != nil && s.write(unsaved) {
			unsaved = nil
		}
	}
}

func (s *ownerSaver) write(record map[mesh.Hostname]Ownership) bool {
	err := s.store.Save(record)
	if err != nil {
		if s.fault.Load() == nil {
			s.log.Error("saving host-owners.json failed: after a restart shared hosts may get another owner", "err", err)
		}
		why := err.Error()
		s.fault.Store(&why)
		return false
	}
	if s.fault.Swap(nil) != nil {
		s.log.Info("saving host-owners.json works again", "hosts", len(record))
	}
	return true
}
