package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// slowDisk takes a while to save a record.
type slowDisk struct {
	grantFile
	writes int
}

func (d *slowDisk) Save(list []mesh.Grant) error {
	<-time.After(500 * time.Millisecond)
	d.writes++
	return d.grantFile.Save(list)
}

// TestRecordsAreNotSavedAllTheTime has the record change again and again: it is on the
// disk at once after a while of quiet, and at the end, and else now and then.
func TestRecordsAreNotSavedAllTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		disk := &slowDisk{}
		s := newGrantSaver(disk, silent())
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		var list []mesh.Grant
		n := 0
		change := func() {
			list = append(slices.Clone(list), mesh.Grant{Name: mesh.Hostname(fmt.Sprint("h", n)), Namespace: "shop"})
			n++
			s.save(&grantMoment{list})
		}
		pass := func(d time.Duration) { <-time.After(d); synctest.Wait() }
		change()
		pass(time.Second)
		if len(disk.saved) != 1 {
			t.Errorf("after a second %d hosts are saved", len(disk.saved))
		}
		for range 600 {
			change()
			pass(100 * time.Millisecond)
		}
		if disk.writes < 3 || disk.writes > 10 || len(disk.saved) < n-2*saveShare*10 {
			t.Errorf("in a minute it is written %d times, and %d of %d hosts are saved", disk.writes, len(disk.saved), n)
		}
		stop()
		wg.Wait()
		if len(disk.saved) != n {
			t.Errorf("at the end %d of %d hosts are saved", len(disk.saved), n)
		}
	})
}

// slowFile is a record on a disk that takes a second, and may be full.
type slowFile struct {
	grantFile
	full atomic.Bool
}

func (f *slowFile) Save(list []mesh.Grant) error {
	<-time.After(time.Second)
	if f.full.Load() {
		return errors.New("disk full")
	}
	return f.grantFile.Save(list)
}

// TestNewestRecordIsSavedAfterAFailure has a disk that is full for a while: when it is
// not any more, what is written first is the record of now, not that of the failure.
func TestNewestRecordIsSavedAfterAFailure(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := &slowFile{}
		file.full.Store(true)
		s := newGrantSaver(file, silent())
		ctx, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { s.run(ctx) })
		moment := func(h mesh.Hostname) *grantMoment { return &grantMoment{[]mesh.Grant{{Name: h, Namespace: "shop"}}} }
		s.save(moment("old"))
		<-time.After(15 * time.Second)
		s.save(moment("new"))
		<-time.After(time.Minute)
		file.full.Store(false)
		<-time.After(saveAgain + 2*time.Second)
		synctest.Wait()
		if s.why() != "" || len(file.saved) != 1 || file.saved[0].Name != "new" {
			t.Errorf("on record: %v, %q", file.saved, s.why())
		}
		stop()
		wg.Wait()
	})
}
