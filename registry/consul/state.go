package consul

import (
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/persist"
)

const (
	// saveEvery is the least time between two writes of the catalog cache.
	saveEvery = 3 * time.Second
	// markEvery is the time between two writes of stateMark without a change.
	markEvery = 30 * time.Second
)

// stateWriter writes the catalog cache to the state directory.
type stateWriter struct {
	store store
	*persist.Writer[[]storedService, stateMark]
}

func newStateWriter(s store, log *slog.Logger) *stateWriter {
	return &stateWriter{s, persist.New(persist.Config[[]storedService, stateMark]{What: "the stored catalog", Save: s.save, SaveMark: s.saveMark, Logger: log})}
}

// savedState is what the loop knows of the state directory.
type savedState struct {
	savedAt, markedAt time.Time
	diskAt            time.Time // of what is on disk
	fromDisk          bool      // the catalog cache is the stored one
	seenAt            time.Time // when the catalog cache was last known to be Consul's
	stateFault        string
}

// restore loads the stored catalog, which is sent.
func (l *loop) restore() {
	k := l.s.stateWriter
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
		// All files are written again: none of another datacenter, or damaged, may stay.
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
	// These stay until Connect's defaults are read.
	l.setProtocols(&protocols{of: of})
	for _, x := range list {
		entries, err := decodeEntries(x.Entries)
		if err != nil {
			l.stateFault = "the stored catalog is damaged: " + err.Error()
			continue
		}
		svc := &service{name: x.Name, filtered: x.Filtered, held: setOf(x.Held)}
		l.services[x.Name] = svc
		r := &reading{name: x.Name, Meta: client.Meta{Filtered: x.Filtered}, entries: entries}
		l.remap(r)
		l.apply(svc, r)
	}
	clear(l.unsaved)
	l.fromDisk, l.seenAt, l.delivered, l.diskAt = true, m.Read, true, m.Read
	l.log.Info("serving the stored catalog until Consul answers", "services", len(l.services), "read", m.Read.Format(time.RFC3339))
}

// save hands changes to the writer when it is time to, and returns when it will be.
// What the receiver has not validated, or holds back, is not written: it is validated
// again after a restart.
func (l *loop) save(now time.Time, last bool) time.Time {
	k := l.s.stateWriter
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
	if l.s.cfg.AwaitDecision {
		decided, held := l.s.decision.Last()
		if held > 0 {
			k.Withhold("removals are on hold: until they are released, the stored catalog is that of " + l.diskAt.UTC().Format(time.RFC3339))
		}
		if decided == nil || decided != l.last || held > 0 || len(l.changed) > 0 {
			return time.Time{} // the receiver says when
		}
	}
	l.savedAt, l.diskAt = now, now
	k.Withhold("")
	list := map[int][]storedService{}
	for i := range l.unsaved {
		list[i] = nil
	}
	if len(list) > 0 {
		for name, svc := range l.services {
			i := shardOf(name)
			if _, ok := list[i]; ok && svc.raw != nil {
				list[i] = append(list[i], storedService{name, svc.filtered, svc.protocol, svc.raw, slices.Sorted(maps.Keys(svc.held))})
			}
		}
		for _, services := range list {
			slices.SortFunc(services, func(a, b storedService) int { return strings.Compare(a.Name, b.Name) })
		}
	}
	clear(l.unsaved)
	var m *stateMark
	if l.live {
		l.markedAt = now
		m = &stateMark{schema, l.s.cfg.Client.Datacenter, now}
	}
	k.Offer(list, m)
	return time.Time{}
}
