package scenario

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

const (
	// settle is how long after a start nothing is measured: it gives memory back.
	settle = 12 * time.Second
	// between is how long nothing happens after a change.
	between = 150 * time.Millisecond
	// lost separates a slow change from one that never comes.
	lost = 2 * time.Minute
)

// flipped are the services whose checks change: 20, evenly spread.
func (p *catalogRun) flipped() []int {
	var out []int
	n := min(20, p.cfg.Spec.Services)
	for i := range n {
		out = append(out, i*p.cfg.Spec.Services/n)
	}
	return out
}

// flips makes checks fail and pass, one after the other, and waits for the
// endpoint each time.
func (p *catalogRun) flips(ctx context.Context, way *CatalogWay) error {
	done := p.profile(ctx, way.Secure, "flips", 20*time.Second)
	services := p.flipped()
	for i := range p.cfg.Flips {
		service, instance := services[i%len(services)], i/len(services)%p.cfg.Spec.Instances
		for _, passing := range []bool{false, true} {
			write := func() error { return p.consul.writer.SetHealth(ctx, service, instance, passing) }
			took, err := p.follow(ctx, write, service, p.cfg.Spec.Address(service, instance), passing)
			if err != nil {
				return fmt.Errorf("a check passes: %t: %w", passing, err)
			}
			if passing {
				way.In = append(way.In, took)
			} else {
				way.Out = append(way.Out, took)
			}
		}
	}
	return done()
}

// follow writes to Consul and waits until an address gets traffic, or none.
func (p *catalogRun) follow(ctx context.Context, write func() error, service int, address string, in bool) (float64, error) {
	begin := time.Now()
	if err := write(); err != nil {
		return 0, err
	}
	within, cancel := context.WithTimeout(ctx, lost)
	defer cancel()
	at, err := p.watch.Await(within, service, address, in)
	if err != nil {
		return 0, err
	}
	return at.Sub(begin).Seconds(), pause(ctx, between)
}

// flap makes one check change every second.
func (p *catalogRun) flap(ctx context.Context, way *CatalogWay) error {
	if p.cfg.Flap == 0 {
		return nil
	}
	done := p.profile(ctx, way.Secure, "flap", p.cfg.Flap)
	before, err := p.server.usage()
	if err != nil {
		return err
	}
	counts := p.counter.Counts()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for passing := false; time.Duration(way.Flapped)*time.Second < p.cfg.Flap || passing; passing = !passing {
		if err := p.consul.writer.SetHealth(ctx, p.flipped()[0], 0, passing); err != nil {
			return err
		}
		way.Flapped++
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	after, err := p.server.usage()
	if err != nil {
		return err
	}
	way.FlapCPU, way.FlapCounts = after.CPU-before.CPU, p.counter.Counts().Minus(counts)
	return done()
}

// added registers and deregisters instances, which table watches do not report by name.
func (p *catalogRun) added(ctx context.Context, way *CatalogWay) error {
	before, err := p.server.usage()
	if err != nil {
		return err
	}
	for i := range p.cfg.Added {
		service := p.flipped()[i%len(p.flipped())]
		var address string
		register := func() (err error) {
			address, err = p.consul.writer.Add(ctx, service)
			return err
		}
		took, err := p.follow(ctx, register, service, p.cfg.Spec.Address(service, p.cfg.Spec.Instances), true)
		if err != nil {
			return fmt.Errorf("an instance is added: %w", err)
		}
		way.AddedIn = append(way.AddedIn, took)
		took, err = p.follow(ctx, func() error { return p.consul.writer.Remove(ctx, service) }, service, address, false)
		if err != nil {
			return fmt.Errorf("an instance is removed: %w", err)
		}
		way.AddedOut = append(way.AddedOut, took)
	}
	after, err := p.server.usage()
	way.AddedCPU = after.CPU - before.CPU
	return err
}

// profile takes a CPU profile of the control plane meanwhile.
func (p *catalogRun) profile(ctx context.Context, secure bool, name string, d time.Duration) (done func() error) {
	if !p.cfg.Profile {
		return func() error { return nil }
	}
	way := "http"
	if secure {
		way = "https"
	}
	ended := make(chan error, 1)
	go func() {
		path := fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(d.Seconds())))
		ended <- p.server.Save(ctx, path, filepath.Join(p.cfg.Dir, name+"-"+way+".pprof"))
	}()
	return func() error { return <-ended }
}
