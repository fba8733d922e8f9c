package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
)

const (
	removedFile    = "removed.json"
	maxRemovedFile = 16 << 20
	// maxRemoved bounds what is kept of removed hosts: the last ones.
	maxRemoved = 50_000
	// keepRemoved is longer than a certificate is good for anything.
	keepRemoved = profile.MaxTTL + 200*24*time.Hour
)

// Removed is a host whose identity was taken back.
type Removed struct {
	Name    string          `json:"name"`
	Binding profile.Binding `json:"binding"`
	At      time.Time       `json:"at"`
}

// removedList is the file of all removed hosts, so that neither an old export nor
// a certificate that is still in force brings one back. Its owner is whoever holds
// Entitlements.change.
type removedList struct {
	path string
	fsys durable.FS
	list []Removed // by time
}

func openRemoved(dir string, fsys durable.FS) (*removedList, error) {
	r := &removedList{path: filepath.Join(dir, removedFile), fsys: fsys}
	data, err := durable.ReadFile(r.path, maxRemovedFile)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r.list)
	}
	if err != nil {
		return nil, fmt.Errorf("reading which hosts were removed: %w: restore %q from a backup, or remove it: then an old export may bring them back", err, r.path)
	}
	return r, nil
}

func (r *removedList) has(b profile.Binding) (Removed, bool) {
	i := slices.IndexFunc(r.list, func(x Removed) bool { return x.Binding == b })
	if i < 0 {
		return Removed{}, false
	}
	return r.list[i], true
}

// add notes removed hosts, and forgets those that cannot come back any more.
func (r *removedList) add(now time.Time, hosts ...Removed) error {
	before := len(r.list)
	for _, x := range hosts {
		if _, ok := r.has(x.Binding); !ok && x.Binding != (profile.Binding{}) {
			r.list = append(r.list, x)
		}
	}
	if len(r.list) == before {
		return nil
	}
	return r.write(now)
}

// forget takes hosts off the list that a person has brought back.
func (r *removedList) forget(now time.Time, back func(profile.Binding) bool) error {
	before := len(r.list)
	r.list = slices.DeleteFunc(r.list, func(x Removed) bool { return back(x.Binding) })
	if len(r.list) == before {
		return nil
	}
	return r.write(now)
}

func (r *removedList) write(now time.Time) error {
	slices.SortFunc(r.list, func(a, b Removed) int {
		if c := a.At.Compare(b.At); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	r.list = slices.DeleteFunc(r.list, func(x Removed) bool { return now.Sub(x.At) > keepRemoved })
	r.list = r.list[max(0, len(r.list)-maxRemoved):]
	data, err := json.Marshal(r.list)
	if err != nil {
		return fmt.Errorf("encoding which hosts were removed: %w", err)
	}
	return durable.WriteFile(r.fsys, r.path, append(data, '\n'), 0o600)
}

// noteRemoved is of a host whose record goes. That it cannot be written is no
// reason to leave a host in that a person wants out.
func (e *Entitlements) noteRemoved(h Host, now time.Time) {
	if err := e.removed.add(now, Removed{Name: h.Name, Binding: h.Binding, At: now.UTC()}); err != nil {
		e.logger.Error("saving the list of removed hosts failed: importing an old export could restore a removed host", "host", h.Name, "err", err)
	}
}
