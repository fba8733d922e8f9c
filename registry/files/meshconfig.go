package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
)

// ReadMeshConfig reads the file of mesh settings before Run. present is nil if the file cannot
// be read or is kept out, and err says why; lastGood is the version in the state directory, or
// nil. What present says of single fields that cannot be in force is for Run to report.
func (s *Source) ReadMeshConfig() (present, lastGood *mesh.MeshConfig, err error) {
	now, last, err := s.readFile(mesh.KindMeshConfig)
	return now.MeshConfig, last.MeshConfig, err
}

// ReadMeshNetworks is [Source.ReadMeshConfig] for the file of networks.
func (s *Source) ReadMeshNetworks() (present, lastGood *mesh.Networks, err error) {
	now, last, err := s.readFile(mesh.KindMeshNetworks)
	return now.MeshNetworks, last.MeshNetworks, err
}

// readFile reads the file with the one object of a kind; the fragments are empty where there is nothing.
func (s *Source) readFile(kind mesh.Kind) (present, lastGood *mesh.Fragment, err error) {
	present, lastGood = &mesh.Fragment{}, &mesh.Fragment{}
	roots, err := newRoots(s.cfg)
	if err != nil {
		return present, lastGood, err
	}
	i := slices.IndexFunc(roots, func(r *root) bool { return r.kind == kind })
	if i < 0 {
		return present, lastGood, fmt.Errorf("files: Config has no file of %s", kind)
	}
	r := roots[i]
	list, _, loadErr := s.persister.Load()
	t := newTree(s.cfg, roots)
	t.restore(list, time.Time{})
	var old *lastgood.Version
	if f := t.files[r.Path]; f != nil {
		old = f.V
	}
	if fragment := t.settingsOf(r); fragment != nil {
		lastGood = fragment
	}
	now, err := s.presentFile(r, old)
	if now == nil {
		return present, lastGood, errors.Join(err, loadErr)
	}
	return now, lastGood, err // Run reports what cannot be loaded
}

// presentFile is the file as it is now, over its last version, or nil.
func (s *Source) presentFile(r *root, old *lastgood.Version) (*mesh.Fragment, error) {
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
	v := lastgood.NextVersion(old, b, text, time.Time{})
	if v.Live() > 0 {
		return v.Fragment(r.key()), nil
	}
	var errs []error
	for _, f := range v.Faults() {
		errs = append(errs, errors.New(f.String()))
	}
	return nil, errors.Join(errs...)
}
