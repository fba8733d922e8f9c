package registry

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// The record is written as a whole: for 50,000 hosts it has 2 MB, so without a limit a mesh
// that always changes would always write.
const (
	// saveShare is the length of the pause after a write, in lengths of the write.
	saveShare = 20
	// maxSaveRest limits the pause: changes during it are lost if the machine fails.
	maxSaveRest = 30 * time.Second
)

// ownerMoment is the record of owners at one time. It is immutable.
type ownerMoment struct {
	owners *mesh.Owners
	left   map[mesh.Hostname]time.Time
}

func (r *ownerMoment) hosts() map[mesh.Hostname]Ownership {
	out := make(map[mesh.Hostname]Ownership, r.owners.Len())
	for h, owner := range r.owners.All {
		out[h] = Ownership{Owner: owner, Left: r.left[h]}
	}
	return out
}

// ownerSaver writes the record of owners in the background: a slow disk delays no snapshot.
type ownerSaver struct {
	store OwnerStore
	log   *slog.Logger
	// next is the record to write: the latest, which includes all earlier changes.
	next  chan *ownerMoment
	fault atomic.Pointer[string] // or nil
}

func newOwnerSaver(store OwnerStore, log *slog.Logger) *ownerSaver {
	return &ownerSaver{store: store, log: log, next: make(chan *ownerMoment, 1)}
}

// save sets the record to write. Only one goroutine may call it.
func (s *ownerSaver) save(record *ownerMoment) {
	select {
	case <-s.next:
	default:
	}
	s.next <- record
}

// why is the error of the last write; empty if there is none.
func (s *ownerSaver) why() string {
	if fault := s.fault.Load(); fault != nil {
		return *fault
	}
	return ""
}

// run writes until ctx is done, and then the last record.
func (s *ownerSaver) run(ctx context.Context) {
	var unsaved *ownerMoment
	again := time.NewTicker(saveAgain)
	defer again.Stop()
	next, rested := s.next, (<-chan time.Time)(nil)
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
		case <-rested:
			next, rested = s.next, nil
			continue
		case unsaved = <-next:
		case <-again.C:
			if unsaved == nil {
				continue
			}
			select { // what failed is written as it is now
			case unsaved = <-s.next:
			default:
			}
		}
		began := time.Now()
		if s.write(unsaved) {
			unsaved = nil
		}
		next, rested = nil, time.After(min(saveShare*time.Since(began), maxSaveRest))
	}
}

func (s *ownerSaver) write(record *ownerMoment) bool {
	err := s.store.Save(record.hosts())
	if err != nil {
		if s.fault.Load() == nil {
			s.log.Error("saving host-owners.json failed: after a restart shared hosts may get another owner", "err", err)
		}
		why := err.Error()
		s.fault.Store(&why)
		return false
	}
	if s.fault.Swap(nil) != nil {
		s.log.Info("saving host-owners.json works again", "hosts", record.owners.Len())
	}
	return true
}
