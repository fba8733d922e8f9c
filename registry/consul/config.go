package consul

import (
	"cmp"
	"errors"
	"log/slog"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

// Config is what a Source needs.
type Config struct {
	// Name is the name of the source; empty means "consul".
	Name string
	// Logger is required.
	Logger *slog.Logger
	// Client says how Consul is reached; its Datacenter is the one that is read.
	// Its Logger may be nil.
	Client client.Config
	// Mapper makes objects of the mesh of the catalog. Required.
	Mapper *mapping.Mapper
	// Local says that the datacenter is that of the mesh's own servers.
	Local bool
	// Filter chooses health entries, in Consul's filter language; empty means
	// all.
	Filter string
	// StateDir is where the last known catalog is kept; empty means nowhere.
	StateDir string
	// SweepEvery is the time between two sweeps of all services if not each has a
	// watch; 0 means five minutes. Table watches report most changes at once, and a
	// sweep of 5,000 services takes about a CPU second.
	SweepEvery time.Duration
	// AwaitDecision keeps on disk what the guard still holds; see [Source.Decided].
	AwaitDecision bool
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("consul: Config.Logger is missing"))
	}
	if c.Mapper == nil {
		errs = append(errs, errors.New("consul: Config.Mapper is missing"))
	}
	if c.SweepEvery < 0 {
		errs = append(errs, errors.New("consul: the time between sweeps is negative"))
	}
	c.Name = cmp.Or(c.Name, "consul")
	c.SweepEvery = cmp.Or(c.SweepEvery, 5*time.Minute)
	if c.Client.Logger == nil {
		c.Client.Logger = c.Logger
	}
	return c, errors.Join(errs...)
}
