package registry

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/mesh"
)

// AddressStore saves the addresses of hosts that have none of their own.
type AddressStore interface {
	// Load returns what was saved last; nothing where nothing ever was.
	Load() (addresses.Saved, error)
	Save(addresses.Saved) error
}

// addressSaver writes the addresses.
type addressSaver = saver[*addresses.Saved]

func newAddressSaver(store AddressStore, log *slog.Logger) *addressSaver {
	return newSaver(func(record *addresses.Saved) error { return store.Save(*record) },
		func(err error) {
			log.Error("saving host-addresses.json failed: after a restart hosts may get other addresses", "err", err)
		},
		func(record *addresses.Saved) {
			log.Info("saving host-addresses.json works again", "hosts", len(record.Hosts))
		})
}

// addressRecord is the addresses of hosts in the loop.
type addressRecord struct {
	table    *addresses.Table // nil where none are allocated
	saver    *addressSaver    // or nil
	bindings []*mesh.Binding  // by source; nil where none is bound
	log      *slog.Logger
	// lists are the services that the table knows: those of each source that are published, and
	// those that will be.
	lists [][]*mesh.Service
	// assigned is when the table was asked last.
	assigned time.Time
	// current are the addresses that the next snapshot has.
	current *mesh.Allocations
	// full and moved count the hosts without an IPv4 address, and those with one that other
	// servers may not choose. refused counts those that have another host's address as their own.
	full, moved, refused int
}

// load reads what was saved. If that cannot be read, hosts get the addresses of their names.
func (a *addressRecord) load(ipv4 netip.Prefix, store AddressStore, log *slog.Logger) {
	if a.log = log; !ipv4.IsValid() {
		return
	}
	var saved addresses.Saved
	if store != nil {
		var err error
		if saved, err = store.Load(); err != nil {
			log.Error("reading host-addresses.json failed: hosts that shared an address may get others", "err", err)
		}
	}
	table, err := addresses.New(ipv4, saved)
	if err != nil {
		log.Warn("some hosts do not keep their addresses", "err", err)
	}
	a.table = table
}

// assign gives addresses to the hosts of the sources. incomplete says that some source has
// delivered nothing yet.
func (a *addressRecord) assign(sources []*source, incomplete bool, now time.Time) {
	if a.table == nil {
		return
	}
	if a.lists == nil {
		a.lists = make([][]*mesh.Service, 2*len(sources))
	}
	for i, s := range sources {
		bound := len(a.bindings) > 0 && a.bindings[i] != nil
		for j, f := range []*mesh.Fragment{s.current, s.public} {
			if f == nil {
				continue
			}
			known := &a.lists[2*i+j]
			a.table.Change(mesh.DiffServices(*known, f.Services), bound)
			*known = f.Services
		}
	}
	changed := a.table.Assign(now.Sub(a.assigned), incomplete)
	a.assigned = now
	full := a.full
	for h, is := range changed {
		a.count(a.current.Of(h), -1)
		a.count(is, 1)
	}
	a.current = a.current.With(changed)
	if a.full > full {
		a.log.Error("no IPv4 address is left for some hosts: widen --address-range", "hosts", a.full)
	}
	if a.saver != nil && a.table.Unsaved() {
		saved := a.table.Save()
		a.saver.save(&saved)
	}
}

func (a *addressRecord) count(x mesh.Allocation, n int) {
	if x.Full {
		a.full += n
	}
	if x.Moved {
		a.moved += n
	}
	if len(x.Refused) > 0 {
		a.refused += n
	}
}

// AddressStatus is how the addresses of hosts stand.
type AddressStatus struct {
	// Hosts is the number of hosts that have addresses from the control plane, Resting that of
	// addresses that are kept for hosts that are gone.
	Hosts, Resting int
	// Moved is the number of hosts with an address that another server may not choose, Full that
	// of hosts for which no IPv4 was left, and Refused that of hosts whose objects say that the
	// address of another one is theirs.
	Moved, Full, Refused int
}

func (a *addressRecord) report() AddressStatus {
	if a.table == nil {
		return AddressStatus{}
	}
	return AddressStatus{Hosts: a.current.Len(), Resting: a.table.Resting(), Moved: a.moved, Full: a.full, Refused: a.refused}
}
