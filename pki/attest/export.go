package attest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/profile"
)

// exportVersion is of the format of a Document.
const exportVersion = 1

// Document is who may have which identity, for a backup. No secret is in it.
type Document struct {
	Version     int    `json:"version"`
	TrustDomain string `json:"trust_domain"`
	// Authority is the SHA-256 of its public key: records are of no use to another.
	Authority jointoken.Hash `json:"authority"`
	At        time.Time      `json:"at"`
	Hosts     []Exported     `json:"hosts"`
	Removed   []Removed      `json:"removed,omitempty"`
	// Unreadable are the hosts whose records are damaged; they are not in Hosts.
	Unreadable []string `json:"unreadable,omitempty"`
}

// Exported is a host with what is on record in files of its own.
type Exported struct {
	Host

	recorded
}

// Imported is what came of a Document, by names.
type Imported struct {
	Added    []string `json:"added,omitempty"`
	Replaced []string `json:"replaced,omitempty"`
	// Same were there already.
	Same []string `json:"same,omitempty"`
}

// ErrConflict says that a Document differs from what is on record.
var ErrConflict = errors.New("the file differs from what is on record")

// Export gives all that is needed to know every host again.
func (e *Entitlements) Export(td spiffeid.TrustDomain, authority profile.KeyHash, now time.Time) Document {
	e.change.Lock()
	defer e.change.Unlock()
	d := Document{
		Version: exportVersion, TrustDomain: td.Name(), Authority: jointoken.Hash(authority), At: now.UTC(),
		Hosts: []Exported{}, Removed: slices.Clone(e.removed.list),
	}
	for _, h := range e.List() {
		if h.Fault != "" {
			d.Unreadable = append(d.Unreadable, h.Name)
			continue
		}
		d.Hosts = append(d.Hosts, Exported{h, record(h.Addresses)})
	}
	return d
}

// Import takes in the hosts of a Document. What is on record already stays as it
// is. Where both have a name and differ, and where a host was removed since,
// nothing at all is taken in, unless overwrite says that the document counts.
func (e *Entitlements) Import(d Document, td spiffeid.TrustDomain, authority profile.KeyHash, overwrite bool, now time.Time) (Imported, error) {
	if err := d.check(td, authority); err != nil {
		return Imported{}, err
	}
	e.change.Lock()
	defer e.change.Unlock()
	var (
		out       Imported
		conflicts []string
		wanted    []Exported
	)
	for _, x := range d.Hosts {
		if other, _, ok := e.Find(x.Binding); ok && other.Name != x.Name {
			return Imported{}, fmt.Errorf("importing host %q: its admission is on record as that of %q, and nothing was imported", x.Name, other.Name)
		}
		old := e.find(x.Name)
		switch gone, removed := e.removed.has(x.Binding); {
		case old != nil && old.host.Fault == "" && old.host.entitledAs(x.Host):
			out.Same = append(out.Same, x.Name)
			continue
		case old != nil:
			conflicts = append(conflicts, x.Name+" is on record as another")
			out.Replaced = append(out.Replaced, x.Name)
		case removed:
			conflicts = append(conflicts, x.Name+" was removed at "+gone.At.Format(time.RFC3339))
			out.Added = append(out.Added, x.Name)
		default:
			out.Added = append(out.Added, x.Name)
		}
		wanted = append(wanted, x)
	}
	if len(conflicts) > 0 && !overwrite {
		const shown = 10
		more := ""
		if n := len(conflicts) - shown; n > 0 {
			conflicts, more = conflicts[:shown], fmt.Sprintf(" and %d more", n)
		}
		return Imported{}, fmt.Errorf("%w, and nothing was imported: %s%s; take them out of the file, or say with --overwrite that the file counts",
			ErrConflict, strings.Join(conflicts, ", "), more)
	}
	if n := len(e.List()) + len(out.Added); n > e.max {
		return Imported{}, fmt.Errorf("%d hosts with those of the file: at most %d", n, e.max)
	}
	return out, e.take(wanted, d.Removed, now)
}

// take writes what was imported. An error leaves part of it in, which importing
// again completes.
func (e *Entitlements) take(hosts []Exported, removed []Removed, now time.Time) error {
	bindings := map[profile.Binding]bool{}
	for _, x := range hosts {
		if err := e.put(x.Host, x.list(), now); err != nil {
			return fmt.Errorf("importing host %q: %w", x.Name, err)
		}
		bindings[x.Binding] = true
	}
	for _, h := range e.List() {
		bindings[h.Binding] = true
	}
	back := func(b profile.Binding) bool { return bindings[b] }
	removed = slices.DeleteFunc(slices.Clone(removed), func(r Removed) bool { return back(r.Binding) })
	return errors.Join(e.removed.forget(now, back), e.removed.add(now, removed...))
}

// put records a host in the place of whoever had the name.
func (e *Entitlements) put(h Host, addresses []Address, now time.Time) error {
	if err := e.named.SetHost(h.Name, h.Binding, addresses); err != nil {
		return err
	}
	if err := e.store.put(h); err != nil {
		return err
	}
	if old := e.find(h.Name); old != nil && old.host.Binding != h.Binding {
		e.noteRemoved(old.host, now)
	}
	h.Addresses = addresses
	e.set(h)
	e.logger.Info("host imported", "host", h.Name, "pairs", h.Pairs, "type", h.Type)
	return nil
}

func (d Document) check(td spiffeid.TrustDomain, authority profile.KeyHash) error {
	switch {
	case d.Version != exportVersion:
		return fmt.Errorf("exported hosts of version %d: this server knows %d", d.Version, exportVersion)
	case d.TrustDomain != td.Name() || d.Authority != jointoken.Hash(authority):
		return fmt.Errorf("exported hosts are of another authority (trust domain %q): their certificates prove nothing here; every host has to join again", d.TrustDomain)
	}
	names, bindings := map[string]bool{}, map[profile.Binding]bool{}
	for _, x := range d.Hosts {
		if err := x.check(); err != nil {
			return fmt.Errorf("exported host %q: %w", x.Name, err)
		}
		if n := len(x.list()); n > MaxAddresses {
			return fmt.Errorf("exported host %q: %d addresses: at most %d", x.Name, n, MaxAddresses)
		}
		if names[x.Name] || bindings[x.Binding] {
			return fmt.Errorf("exported host %q is there twice, or shares its binding with another", x.Name)
		}
		names[x.Name], bindings[x.Binding] = true, true
	}
	return nil
}

// check says what is wrong with a record.
func (h Host) check() error {
	if err := h.grant().Check(); err != nil {
		return err
	}
	if (h.Binding == profile.Binding{}) || len(h.Keys) == 0 || len(h.Keys) > keptKeys {
		return errors.New("no binding or no key")
	}
	return nil
}

// entitledAs says whether two records give the same to the same.
func (h Host) entitledAs(o Host) bool {
	pairs := func(x Host) []profile.Pair {
		out := slices.Clone(x.Pairs)
		slices.SortFunc(out, profile.Pair.Compare)
		return out
	}
	return h.Name == o.Name && h.Direct == o.Direct && h.Type == o.Type && h.Binding == o.Binding && slices.Equal(pairs(h), pairs(o))
}
