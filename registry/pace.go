package registry

import (
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

const (
	// gather is how long health, or a single change of endpoints, waits for
	// others that belong to the same event.
	gather = 5 * time.Millisecond
	// calm is how long nothing has to change for a burst to be over, as far as
	// endpoints are concerned: however long configuration is debounced, they do not
	// wait for that.
	calm = 100 * time.Millisecond
	// apart is the least time between two publications of configuration, and of
	// endpoints that change all the time. While what a publication costs those
	// who receive it is more than half of that, it is twice the cost, so that they
	// have time for other things; but see apartMost.
	apart     = 200 * time.Millisecond
	apartMost = 2 * time.Second
	// crowd is the number of files that change within burst from which on they
	// belong together: they go out by themselves no sooner than burst after the
	// first of those that went out before them. So what is written within a second,
	// with whatever pauses, makes two publications at most, and a person who edits
	// one file and another one does not wait.
	crowd = 10
	burst = time.Second
	// spare is how many publications of health may follow one another at once.
	spare = 4
)

// change is what a reading changes.
type change struct {
	// config says that configuration, or an origin, is among it; endpoints and
	// health, that these are.
	config, endpoints, health bool
	// files is in how many files configuration changed, up to crowd.
	files int
}

// pace decides when to publish. It is a value without a clock.
type pace struct {
	quiet, longest time.Duration // DebounceAfter, DebounceMax
	// cost is how long the latest publication kept those busy who receive it.
	cost time.Duration

	// busy is when configuration changed last, stir when that or endpoints did,
	// and stirred since when they do so without a rest.
	busy, stir, stirred time.Time
	// config and endpoints are when the oldest unpublished change of that kind
	// came, both that of endpoints that came with configuration; zero means there
	// is none.
	config, endpoints, both time.Time
	// files are the latest changes of configuration, within burst.
	files []filesAt
	// out is when configuration was published last, before when the oldest change
	// in that had come; last is when anything was published.
	out, before, last time.Time
	// prompt is when health, or a single change of endpoints, is due; credit is
	// until when the publications of such are paid for.
	prompt, credit time.Time
}

type filesAt struct {
	at    time.Time
	files int
}

// note takes a change into account.
func (p *pace) note(c change, now time.Time) {
	rested := p.stir.IsZero() || now.Sub(p.stir) >= p.rest()
	if c.config || c.endpoints {
		if rested {
			p.stirred = now
		}
		p.stir = now
	}
	if c.health || c.endpoints && !c.config && rested {
		p.hurry(now)
	}
	switch {
	case !c.endpoints:
	case c.config && p.both.IsZero():
		p.both = now
	case !c.config && p.endpoints.IsZero():
		p.endpoints = now
	}
	if c.config {
		p.busy = now
		if p.config.IsZero() {
			p.config = now
		}
		for len(p.files) > 0 && now.Sub(p.files[0].at) > burst {
			p.files = p.files[1:]
		}
		p.files = append(p.files, filesAt{now, c.files})
	}
}

func (p *pace) hurry(now time.Time) {
	if p.prompt.IsZero() {
		p.prompt = later(now.Add(gather), p.owed().Add(-spare*p.gap()))
	}
}

// owed is until when the publications of health are paid for. What was dear then,
// as the first one of all is, does not delay what is cheap now.
func (p *pace) owed() time.Time { return sooner(p.credit, p.last.Add((spare+1)*p.gap())) }

// gap is the least time between two publications while there is always something
// to publish.
func (p *pace) gap() time.Duration { return min(max(apart, 2*p.cost), apartMost) }

// due returns when to publish, and whether configuration is to go out then;
// zero means that nothing waits.
func (p *pace) due() (at time.Time, config bool) {
	if !p.config.IsZero() {
		at, config = p.configDue(), true
	}
	if !p.endpoints.IsZero() {
		if end := p.endpointsDue(); at.IsZero() || end.Before(at) {
			at, config = end, false
		}
	}
	if !p.both.IsZero() {
		// They go with the configuration, unless that takes too long.
		if end := p.both.Add(burst + p.rest()); at.IsZero() || end.Before(at) {
			at, config = end, false
		}
	}
	if !p.prompt.IsZero() && (at.IsZero() || p.prompt.Before(at)) {
		at, config = p.prompt, false
	}
	return at, config
}

func (p *pace) configDue() time.Time {
	at := later(p.busy.Add(p.quiet), p.out.Add(p.gap()))
	files := 0
	for _, f := range p.files {
		files += f.files
	}
	if files > crowd {
		at = later(at, p.before.Add(burst))
	}
	return sooner(at, p.config.Add(p.longest))
}

// rest is after how long without a change one of endpoints is the first of its
// burst.
func (p *pace) rest() time.Duration { return min(p.quiet, calm) }

// endpointsDue is when endpoints go out that are not the first after a rest:
// when the burst is over or, if it does not end, every now and then. However short
// a rest is, a publication has its time.
func (p *pace) endpointsDue() time.Time {
	long := p.stirred.Add(burst + p.rest())
	if p.stir.Before(long) {
		return sooner(later(p.stir.Add(p.rest()), p.last.Add(p.gap())), long)
	}
	return later(p.endpoints.Add(gather), p.last.Add(p.gap()))
}

// published forgets what went out.
func (p *pace) published(config bool, now time.Time) {
	if !p.prompt.IsZero() {
		p.credit = later(p.owed(), now).Add(p.gap())
	}
	p.last, p.prompt, p.endpoints, p.both = now, time.Time{}, time.Time{}, time.Time{}
	if config {
		p.out, p.before, p.config = now, p.config, time.Time{}
	}
}

// reached tells what of a difference there is.
func reached(d *mesh.Difference) change {
	c := change{config: d.Reach() == mesh.ReachNone}
	switch d.ConfigReach() {
	case mesh.ReachConfig:
		c.config = true
	case mesh.ReachEndpoints:
		c.endpoints = true
	case mesh.ReachHealth:
		c.health = true
	case mesh.ReachNone:
	}
	switch d.EndpointsReach() {
	case mesh.ReachEndpoints, mesh.ReachConfig:
		c.endpoints = true
	case mesh.ReachHealth:
		c.health = true
	case mesh.ReachNone:
	}
	if c.config {
		c.files = d.Files(crowd + 1)
	}
	return c
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
