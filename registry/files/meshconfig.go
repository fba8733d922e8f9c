package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fairlead/fairlead/registry/mesh"
)

// ReadMeshConfig reads the file of mesh settings, for what has to be known
// before Run. present is nil where the file cannot be read or is broken, and
// err says why; lastGood is what the state directory has, or nil.
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
	if s.keeper == nil {
		return present, nil, err
	}
	list, loadErr := s.keeper.store.load()
	if loadErr != nil && present == nil {
		err = errors.Join(err, loadErr) // and Run tells it
	}
	t := newTree(s.cfg, roots)
	t.restore(list, time.Time{})
	if f := t.files[r.Path]; f != nil {
		lastGood = meshConfigOf(f.v)
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
	b := newBlob(content)
	text := r.decode(&s.cfg, r.Path, b)
	if c := meshConfigOf(judge(nil, b, text, time.Time{})); c != nil {
		return c, nil
	}
	var errs []error
	for _, f := range text.Faults {
		errs = append(errs, errors.New(f.String()))
	}
	return nil, errors.Join(errs...)
}

// meshConfigOf is what a file of settings gives, or gave last.
func meshConfigOf(v *version) *mesh.MeshConfig {
	key := meshConfigKey()
	if g := v.live[key]; g != nil {
		return g.Piece.MeshConfig
	}
	if k, ok := v.kept[key]; ok {
		return k.Piece.MeshConfig
	}
	return nil
}
