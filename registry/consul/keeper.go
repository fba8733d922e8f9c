package consul

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/keep"
)

const (
	// saveEvery is the least time between two writes of the picture.
	saveEvery = 3 * time.Second
	// markEvery is how often it is written that the picture is still Consul's.
	markEvery = 30 * time.Second
)

// keeper writes the picture.
type keeper struct {
	store store
	*keep.Writer[[]stored, mark]
}

func newKeeper(s store, log *slog.Logger) *keeper {
	return &keeper{s, keep.New(keep.Config[[]stored, mark]{What: "the stored catalog", Save: s.save, SaveMark: s.saveMark, Logger: log})}
}

// saver is what the loop knows of the disk.
type saver struct {
	savedAt, markedAt time.Time
	diskAt            time.Time // of what is on disk
	fromDisk          bool      // the picture is the stored one
	seenAt            time.Time // when the picture was last known to be Consul's
	stateFault        string
}

// restore takes the stored picture, and has it sent.
func (l *loop) restore() {
	k := l.s.keeper
	if k == nil {
		return
	}
	list, m, err := k.store.load()
	if err != nil {
		l.stateFault = "the stored catalog is damaged: " + err.Error()
		l.log.Error("stored catalog is damaged, using the readable part", "err", err)
	}
	foreign := m.Datacenter != l.s.cfg.Client.Datacenter
	if foreign || err != nil {
		// What is written next speaks for all of the directory: nothing of another
		// datacenter, and nothing damaged, stays in it.
		defer func() {
			for i := range shards {
				l.unsaved[i] = true
			}
		}()
	}
	if foreign || len(list) == 0 {
		return
	}
	of := map[string]string{}
	for _, x := range list {
		of[x.Name] = x.Protocol
	}
	// What Connect says is known before the entries are: until it answers.
	l.redefine(&protocols{of: of})
	for _, x := range list {
		entries, err := parse(x.Entries)
		if err != nil {
			l.stateFault = "the stored catalog is damaged: " + err.Error()
			continue
		}
		svc := &service{name: x.Name, filtered: x.Filtered, held: setOf(x.Held)}
		l.services[x.Name] = svc
		r := &reading{name: x.Name, Meta: client.Meta{Filtered: x.Filtered}, entries: entries}
		l.remake(r)
		l.apply(svc, r)
	}
	clear(l.unsaved)
	l.fromDisk, l.seenAt, l.delivered, l.diskAt = true, m.Read, true, m.Read
	l.log.Info("serving the stored catalog until Consul answers", "services", len(l.services), "read", m.Read.Format(time.RFC3339))
}

// save hands what changed to the keeper, if it is time to; it returns when it
// will be. What the receiver has not judged, or holds back, is not written: after
// a restart it is to be judged again.
func (l *loop) save(now time.Time, last bool) time.Time {
	k := l.s.keeper
	if k == nil || !l.liveEver {
		return time.Time{}
	}
	stale := l.live && now.Sub(l.markedAt) >= markEvery
	if len(l.unsaved) == 0 && !stale {
		return time.Time{}
	}
	if at := l.savedAt.Add(saveEvery); at.After(now) && !last {
		return at
	}
	if l.s.cfg.AwaitSettled {
		judged, held := l.s.verdict.Last()
		if held > 0 {
			k.Withhold("removals are on hold: until they are released, the stored catalog is that of " + l.diskAt.UTC().Format(time.RFC3339))
		}
		if judged == nil || judged != l.last || held > 0 || len(l.changed) > 0 {
			return time.Time{} // the receiver says when
		}
	}
	l.savedAt, l.diskAt = now, now
	k.Withhold("")
	list := map[int][]stored{}
	for i := range l.unsaved {
		list[i] = nil
	}
	if len(list) > 0 {
		for name, svc := range l.services {
			i := shardOf(name)
			if _, ok := list[i]; ok && svc.raw != nil {
				list[i] = append(list[i], stored{name, svc.filtered, svc.protocol, svc.raw, slices.Sorted(maps.Keys(svc.held))})
			}
		}
		for _, services := range list {
			slices.SortFunc(services, func(a, b stored) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	clear(l.unsaved)
	var m *mark
	if l.live {
		l.markedAt = now
		m = &mark{schema, l.s.cfg.Client.Datacenter, now}
	}
	k.Offer(list, m)
	return time.Time{}
}
