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
// be read or is broken, and err says why; lastGood is the version in the state directory, or
// nil.
func (s *Source) ReadMeshConfig() (present, lastGood *mesh.MeshConfig, err error) {
	roots, err := newRoots(s.cfg)
	if err != nil {
		return nil, nil, err
	}
	r := roots[len(roots)-1]
	if !r.meshConfig {
		return nil, nil, errors.New("files: Config.MeshConfigFile is missing")
	}
	present, err = s.presentMeshConfig(r)
	list, _, loadErr := s.persister.Load()
	if loadErr != nil && present == nil {
		err = errors.Join(err, loadErr) // and Run tells it
	}
	t := newTree(s.cfg, roots)
	t.restore(list, time.Time{})
	if fragment := t.settingsOf(r); fragment != nil {
		lastGood = fragment.MeshConfig
	}
	return present, lastGood, err
}

func (s *Source) presentMeshConfig(r *root) (*mesh.MeshConfig, error) {
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
	if fragment := lastgood.NextVersion(nil, b, text, time.Time{}).Fragment(meshConfigKey()); fragment != nil {
		return fragment.MeshConfig, nil
	}
	var errs []error
	for _, f := range text.Faults {
		errs = append(errs, errors.New(f.String()))
	}
	return nil, errors.Join(errs...)
}
