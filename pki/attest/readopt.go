package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
)

// MaxReadopt is the longest that hosts may be admitted by their certificates.
const MaxReadopt = 30 * 24 * time.Hour

// Readopt says how long hosts that are not on record are admitted by their
// certificates, because the records were lost.
type Readopt struct {
	// Until is when that ends; zero means never.
	Until time.Time
	// Removed are those that stay out: hosts by name, and direct clients by their
	// workload, NAMESPACE/SERVICEACCOUNT, because their certificates say no name.
	Removed []string
}

// Proven is what certificates of the authority, all in force, prove of a host.
type Proven struct {
	// Name is the host's; empty for a direct client.
	Name    string
	Direct  bool
	Binding profile.Binding
	// Pairs are the workloads that were certified under the same binding.
	Pairs []profile.Pair
	Key   profile.KeyHash
}

// Readopt records a host anew, with what its certificates prove and no more.
func (e *Entitlements) Readopt(p Proven, now time.Time) (Host, error) {
	if !now.Before(e.readopt.Until) {
		return Host{}, ErrNotFound
	}
	if p.Direct && p.Name == "" {
		p.Name = "direct-" + p.Binding.String()[:12]
	}
	e.change.Lock()
	defer e.change.Unlock()
	if h, _, ok := e.Find(p.Binding); ok {
		return h, nil // another connection of it came first
	}
	if gone, ok := e.removed.has(p.Binding); ok {
		return Host{}, fmt.Errorf("host %q was removed or replaced at %s, and is not admitted again", gone.Name, gone.At.Format(time.RFC3339))
	}
	known := p.Name
	if p.Direct && len(p.Pairs) > 0 {
		known = p.Pairs[0].String()
	}
	if slices.Contains(e.readopt.Removed, known) {
		return Host{}, fmt.Errorf("host %q is listed as removed (%s), and is not admitted again", p.Name, known)
	}
	if e.find(p.Name) != nil {
		return Host{}, inUse(p.Name)
	}
	if n := len(e.List()); n >= e.max {
		return Host{}, fmt.Errorf("there are %d hosts already: remove some that are gone", n)
	}
	h := Host{
		Name: p.Name, Direct: p.Direct, Pairs: p.Pairs, Type: "sidecar", Binding: p.Binding,
		Joined: now.UTC(), Keys: []jointoken.Hash{jointoken.Hash(p.Key)}, Readopted: now.UTC(),
	}
	if err := h.check(); err != nil {
		return Host{}, fmt.Errorf("admitting host %q again: %w", h.Name, err)
	}
	if err := e.marks.write(h); err != nil {
		return Host{}, err
	}
	if err := e.store.put(h); err != nil {
		return Host{}, err
	}
	e.set(h)
	e.logger.Warn("host readmitted by its certificates (--readopt-until)", "host", h.Name, "direct", h.Direct, "pairs", h.Pairs, "type", h.Type)
	return h, nil
}

// markStore keeps which hosts were admitted by their certificates.
type markStore struct {
	dir  string
	fsys durable.FS
}

type mark struct {
	Binding profile.Binding `json:"binding"`
	At      time.Time       `json:"at"`
}

func (m markStore) path(name string) string { return filepath.Join(m.dir, name+hostSuffix) }

func (m markStore) write(h Host) error {
	if err := durable.MakeDir(m.dir); err != nil {
		return err
	}
	data, err := json.Marshal(mark{h.Binding, h.Readopted})
	if err != nil {
		return fmt.Errorf("encoding a mark: %w", err)
	}
	return durable.WriteFile(m.fsys, m.path(h.Name), append(data, '\n'), 0o600)
}

// of is when the host was admitted by its certificates; zero if it was not.
func (m markStore) of(h Host) (time.Time, error) {
	data, err := durable.ReadFile(m.path(h.Name), maxHostFile)
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	var got mark
	if err == nil {
		err = json.Unmarshal(data, &got)
	}
	if err != nil || got.Binding != h.Binding {
		return time.Time{}, err
	}
	return got.At, nil
}
