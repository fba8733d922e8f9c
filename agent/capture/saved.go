package capture

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

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

// Forget removes what was saved.
func Forget(dir string) error {
	var errs []error
	for _, name := range []string{pendingFile, confirmedFile} {
		if err := durable.Remove(durable.OS{}, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func load(path string) (*Saved, error) {
	var s Saved
	if err := durable.Unseal(path, &s, maxSaved); err != nil {
		return nil, err
	}
	return &s, nil
}
