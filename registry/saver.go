package registry

import (
	"context"
	"sync/atomic"
	"time"
)

// A record is written as a whole: for 50,000 hosts it has 2 MB, so without a limit a mesh
// that always changes would always write.
const (
	// saveAgain is the time between two tries after an error.
	saveAgain = 10 * time.Second
	// saveShare is the length of the pause after a write, in lengths of the write.
	saveShare = 20
	// maxSaveRest limits the pause: changes during it are lost if the machine fails.
	maxSaveRest = 30 * time.Second
)

// saver writes a record in the background: a slow disk delays no snapshot.
type saver[T comparable] struct {
	store  func(T) error
	failed func(error) // the first error of several
	works  func(T)     // after an error
	// next is the record to write: the latest, which includes all earlier changes.
	next  chan T
	fault atomic.Pointer[string] // or nil
}

func newSaver[T comparable](store func(T) error, failed func(error), works func(T)) *saver[T] {
	return &saver[T]{store: store, failed: failed, works: works, next: make(chan T, 1)}
}

// save sets the record to write. Only one goroutine may call it.
func (s *saver[T]) save(record T) {
	select {
	case <-s.next:
	default:
	}
	s.next <- record
}

// why is the error of the last write; empty if there is none.
func (s *saver[T]) why() string {
	if fault := s.fault.Load(); fault != nil {
		return *fault
	}
	return ""
}

// run writes until ctx is done, and then the last record.
func (s *saver[T]) run(ctx context.Context) {
	var none, unsaved T
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
			if unsaved != none {
				s.write(unsaved)
			}
			return
		case <-rested:
			next, rested = s.next, nil
			continue
		case unsaved = <-next:
		case <-again.C:
			if unsaved == none {
				continue
			}
			select { // what failed is written as it is now
			case unsaved = <-s.next:
			default:
			}
		}
		began := time.Now()
		if s.write(unsaved) {
			unsaved = none
		}
		next, rested = nil, time.After(min(saveShare*time.Since(began), maxSaveRest))
	}
}

func (s *saver[T]) write(record T) bool {
	err := s.store(record)
	if err != nil {
		if s.fault.Load() == nil {
			s.failed(err)
		}
		why := err.Error()
		s.fault.Store(&why)
		return false
	}
	if s.fault.Swap(nil) != nil {
		s.works(record)
	}
	return true
}
