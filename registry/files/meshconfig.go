package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

// ReadMeshConfig reads the file of mesh settings before Run. present is nil if the file cannot
// be read or is kept out, and err says why; lastGood is the version in the state directory, or
// nil. What present says of single fields that cannot be in force is for Run to report.
func (s *Source) ReadMeshConfig() (present, lastGood *mesh.MeshConfig, err error) {
	roots, err := newRoots(s.cfg)
	if err != nil {
		return nil, nil, err
	}
	r := roots[len(roots)-1]
	if !r.meshConfig {
		return nil, nil, errors.New("files: Config.MeshConfigFile is missing")
	}
	list, _, loadErr := s.persister.Load()
	t := newTree(s.cfg, roots)
	t.restore(list, time.Time{})
	var old *lastgood.Version
	if f := t.files[r.Path]; f != nil {
		old = f.V
	}
	if fragment := t.settingsOf(r); fragment != nil {
		lastGood = fragment.MeshConfig
	}
	present, err = s.presentMeshConfig(r, old)
	if loadErr != nil && present == nil {
		err = errors.Join(err, loadErr) // and Run tells it
	}
	return present, lastGood, err
}

// presentMeshConfig is the file as it is now, over its last version, or nil.
func (s *Source) presentMeshConfig(r *root, old *lastgood.Version) (*mesh.MeshConfig, error) {
	f, err := os.Open(r.abs)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, s.cfg.MaxFileSize+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %q: %w", r.Path, err)
	case int64(len(content)) > s.cfg.MaxFileSize:
		return nil, fmt.Errorf("reading %q: %w", r.Path, errTooBig)
	}
	b := lastgood.NewBlob(content)
	text := r.decode(&s.cfg, r.Path, b)
	if v := lastgood.NextVersion(old, b, text, time.Time{}); v.Live() > 0 {
		return v.Fragment(meshConfigKey()).MeshConfig, nil
	}
	var errs []error
	for _, f := range text.Faults {
		errs = append(errs, errors.New(f.String()))
	}
	return nil, errors.Join(errs...)
}
