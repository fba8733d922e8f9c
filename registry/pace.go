package registry

import (
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// gather is how long health, or a single change of endpoints, waits for
	// others that belong to the same event.
	gather = 5 * time.Millisecond
	// endpointsMax is the longest that a burst of endpoint changes waits to be
	// over.
	endpointsMax = 2 * time.Second
	// apart is the time from the first change that a publication of configuration
	// had until the next one may go out. So what is written within a second, with
	// whatever pauses, makes two at most. A person who edits one file again and
	// again does not wait.
	apart = time.Second
)

// change is what a reading changes.
type change struct {
	reach mesh.Reach
	// file is what all of it comes from; empty where that is not one file.
	file string
}

// pace decides when to publish. It is a value without a clock.
type pace struct {
	quiet, longest time.Duration // DebounceAfter, DebounceMax

	// busy is when configuration or endpoints changed last.
	busy time.Time
	// config and endpoints are when the oldest unpublished change of that reach
	// came; zero means there is none.
	config, endpoints time.Time
	// before is when the oldest change came of the configuration published last.
	before time.Time
	// file is what all unpublished configuration comes from, beforeFile what the
	// one published last did; empty where that is not one file.
	file, beforeFile string
	// prompt is when health, or a single change of endpoints, is due.
	prompt time.Time
}

// note takes a change into account.
func (p *pace) note(c change, now time.Time) {
	burst := !p.busy.IsZero() && now.Sub(p.busy) < p.quiet
	switch c.reach {
	case mesh.ReachHealth:
		p.hurry(now)
	case mesh.ReachEndpoints:
		p.busy = now
		if !burst {
			p.hurry(now)
		}
		if p.endpoints.IsZero() {
			p.endpoints = now
		}
	case mesh.ReachNone, mesh.ReachConfig:
		// What reaches no proxy still has new origins, for people.
		p.busy = now
		switch {
		case p.config.IsZero():
			p.config, p.file = now, c.file
		case p.file != c.file:
			p.file = ""
		}
	}
}

func (p *pace) hurry(now time.Time) {
	if p.prompt.IsZero() {
		p.prompt = now.Add(gather)
	}
}

// due returns when to publish, and whether configuration is to go out then;
// zero means that nothing waits.
func (p *pace) due() (at time.Time, config bool) {
	if !p.config.IsZero() {
		at = p.busy.Add(p.quiet)
		if p.file == "" || p.file != p.beforeFile {
			at = later(at, p.before.Add(apart))
		}
		at, config = sooner(at, p.config.Add(p.longest)), true
	}
	if !p.endpoints.IsZero() {
		end := p.endpoints.Add(min(endpointsMax, p.longest))
		if p.config.IsZero() {
			end = sooner(end, p.busy.Add(p.quiet))
		}
		if at.IsZero() || end.Before(at) {
			at, config = end, false
		}
	}
	if !p.prompt.IsZero() && (at.IsZero() || p.prompt.Before(at)) {
		at, config = p.prompt, false
	}
	return at, config
}

// published forgets what went out.
func (p *pace) published(config bool) {
	p.prompt, p.endpoints = time.Time{}, time.Time{}
	if config {
		p.before, p.beforeFile, p.config = p.config, p.file, time.Time{}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func sooner(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
