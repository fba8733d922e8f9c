package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/fairlead/fairlead/pki/durable"
)

// Saved is what a table was made of, with all names as numbers, so that it can be loaded before
// users can be looked up.
type Saved struct {
	Settings Settings `json:"settings"`
	Facts    Facts    `json:"facts"`
}

// The files of the state directory.
const (
	pendingFile   = "pending"   // applied, not confirmed
	confirmedFile = "confirmed" // confirmed
	removedFile   = "removed"   // being removed
	maxSaved      = 1 << 20
)

// SavePending saves what is about to be applied.
func SavePending(dir string, s *Saved) error {
	return durable.Seal(filepath.Join(dir, pendingFile), s, maxSaved)
}

// LoadPending returns what was applied and not confirmed; [fs.ErrNotExist] if there is none.
func LoadPending(dir string) (*Saved, error) { return load(filepath.Join(dir, pendingFile)) }

// LoadConfirmed returns what was confirmed; [fs.ErrNotExist] if there is none.
func LoadConfirmed(dir string) (*Saved, error) { return load(filepath.Join(dir, confirmedFile)) }

// SaveConfirmed makes what is pending confirmed.
func SaveConfirmed(dir string) error {
	fsys := durable.OS{}
	if err := fsys.Rename(filepath.Join(dir, pendingFile), filepath.Join(dir, confirmedFile)); err != nil {
		return fmt.Errorf("saving the confirmed table: %w", err)
	}
	return fsys.SyncDir(dir)
}

// ForgetPending removes what was applied and not confirmed.
func ForgetPending(dir string) error { return forget(dir, pendingFile) }

// Retire says that the table is being removed: from now on nothing is to be captured, also if
// what removes the table is interrupted. It returns the ports of the Envoys that connections were
// redirected to; the usual ones are always among them.
func Retire(dir string) (envoys []uint16, err error) {
	out := []uint16{defaultOutboundPort, defaultInboundPort}
	var before []uint16
	switch err := durable.Unseal(filepath.Join(dir, removedFile), &before, maxSaved); {
	case err == nil:
		out = append(out, before...)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	for _, load := range []func(string) (*Saved, error){LoadPending, LoadConfirmed} {
		saved, err := load(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for i := range saved.Settings.Workloads {
			out = append(out, saved.Settings.Workloads[i].OutboundPort, saved.Settings.Workloads[i].InboundPort)
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	if err := durable.Seal(filepath.Join(dir, removedFile), out, maxSaved); err != nil {
		return nil, err
	}
	return out, forget(dir, pendingFile, confirmedFile)
}

// Forget removes all that was saved.
func Forget(dir string) error { return forget(dir, pendingFile, confirmedFile, removedFile) }

func forget(dir string, names ...string) error {
	var errs []error
	for _, name := range names {
		if err := durable.Remove(durable.OS{}, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// load reads what only root and the user of this process can have written: it says which
// connections a privileged process redirects.
func load(path string) (*Saved, error) {
	content, err := durable.ReadTrusted(path, maxSaved)
	if err != nil {
		return nil, err
	}
	var s Saved
	if err := durable.OpenSeal(content, &s); err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	return &s, nil
}
