package agents

import (
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// TestSource holds what agents report to the contract of all sources. A fragment
// has what was said of health, and what is not said any more is not in it.
func TestSource(t *testing.T) {
	t.Parallel()
	sourcetest.Run(t, func(testing.TB) *sourcetest.Place {
		p := &reports{said: map[string]string{}, streams: map[string]uint64{}}
		return &sourcetest.Place{
			New: p.open, Put: p.put, Within: 5 * time.Second,
			Read: func(f *mesh.Fragment) map[string]string {
				out := map[string]string{}
				for _, r := range f.Health {
					if r.Health == mesh.Unhealthy {
						out[r.ServiceAccount.Name] = r.Reason
					}
				}
				return out
			},
		}
	})
}

// reports is what agents say, to every source that listens.
type reports struct {
	sources []*Source
	said    map[string]string
	streams map[string]uint64
	last    uint64
}

func (p *reports) open(tb testing.TB) registry.Source {
	tb.Helper()
	s, err := New(Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	p.sources = append(p.sources, s)
	for _, name := range slices.Sorted(maps.Keys(p.said)) {
		p.say(s, name)
	}
	return s
}

func (p *reports) say(s *Source, name string) {
	c := claimed("host", "10.0.0.1")
	c.ServiceAccount = mesh.ServiceAccount{Namespace: "default", Name: name}
	if err := s.StreamOpened(p.streams[name], c, nil); err != nil {
		panic(err)
	}
	s.ReportProbe(p.streams[name], mesh.Unhealthy, p.said[name])
}

func (p *reports) put(_ testing.TB, objects map[string]string) {
	for name := range p.said {
		if objects[name] != "" {
			continue
		}
		for _, s := range p.sources {
			// An agent that left while it was unhealthy would be told to be so for ever.
			s.ReportProbe(p.streams[name], mesh.Healthy, "")
			s.StreamClosed(p.streams[name])
		}
		delete(p.said, name)
		delete(p.streams, name)
	}
	for name, content := range objects {
		if p.said[name] == content {
			continue
		}
		p.said[name] = content
		if p.streams[name] == 0 {
			p.last++
			p.streams[name] = p.last
		}
		for _, s := range p.sources {
			p.say(s, name)
		}
	}
}
