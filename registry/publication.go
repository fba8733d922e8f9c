package registry

import "time"

// Publication says when the readings of a snapshot arrived, and when it was made.
type Publication struct {
	Generation uint64
	// Readings are those that the snapshot has and the one before had not, by source. There
	// are none if something else was due: keys of issuers, the end of a reserved host name.
	Readings []SourceReading
	// Merging is when the merge began, Merged when it ended.
	Merging, Merged time.Time
}

// SourceReading says when readings of a source arrived that are new in a snapshot.
type SourceReading struct {
	Source      string
	First, Last time.Time
}

// observe reports the making of a snapshot, and forgets the readings that it has.
func (l *loop) observe(generation uint64, began time.Time) {
	if l.r.cfg.Observe == nil {
		return
	}
	p := Publication{Generation: generation, Merging: began, Merged: time.Now()}
	for _, s := range l.sources {
		if s.waiting.IsZero() || s.public != s.current { // the rest of its change is debounced
			continue
		}
		p.Readings = append(p.Readings, SourceReading{Source: s.name, First: s.waiting, Last: s.changed})
		s.waiting = time.Time{}
	}
	l.r.cfg.Observe(p)
}
