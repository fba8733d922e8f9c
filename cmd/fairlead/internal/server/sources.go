package server

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/analysis"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Names of the sources. Each directory is a source of its own, so that one that
// is away, or that lost much, stands for itself.
const (
	filesSource        = "files"
	meshConfigSource   = "mesh-config"
	meshNetworksSource = "mesh-networks"
	// maxPathName bounds a path in the name of a source: names are metric
	// labels and names of directories.
	maxPathName = 60
)

// rootName is the name of the source of a directory: "files" for the first one.
func rootName(i int, path string) string {
	if i == 0 {
		return filesSource
	}
	if len(path) > maxPathName || !utf8.ValidString(path) {
		sum := sha256.Sum256([]byte(path))
		tail := path[max(0, len(path)-maxPathName/2):]
		path = hex.EncodeToString(sum[:6]) + "…" + strings.ToValidUTF8(tail, "")
	}
	return filesSource + ":" + path
}

// newFiles makes the sources that read files, and finds the settings that count
// until they have been read.
func (s *Server) newFiles(context.Context) error {
	for i, r := range s.cfg.Roots {
		src, err := files.New(files.Config{
			Name: rootName(i, r.Path), Roots: []files.Root{r}, Ignore: s.cfg.settingsFiles(), MaxExpansion: s.cfg.maxExpansion(r.Namespaces),
			Observe: s.observeFiles(), Logger: s.cfg.Logger, StateDir: s.cfg.StateDir, ScanInterval: s.cfg.ScanInterval, LossAfter: s.cfg.LossAfter, AwaitDecision: true,
		})
		if err != nil {
			return err
		}
		s.files = append(s.files, src)
	}
	if err := s.newNetworks(); err != nil {
		return err
	}
	s.settings = manifest.DefaultMeshConfig()
	if s.cfg.MeshConfigFile == "" {
		return s.cfg.checkRoot(s.settings.Spec.GetRootNamespace())
	}
	src, err := files.New(files.Config{
		Name: meshConfigSource, MeshConfigFile: s.cfg.MeshConfigFile,
		Observe: s.observeFiles(), Logger: s.cfg.Logger, StateDir: s.cfg.StateDir, ScanInterval: s.cfg.ScanInterval, LossAfter: s.cfg.LossAfter,
	})
	if err != nil {
		return err
	}
	present, lastGood, err := src.ReadMeshConfig()
	switch {
	case present != nil:
		s.settings = present
	case lastGood != nil:
		s.cfg.Logger.Error("mesh configuration is invalid; its last good version stays in force", "path", s.cfg.MeshConfigFile, "err", err)
		s.settings = lastGood
	default:
		return fmt.Errorf("reading the mesh configuration (--mesh-config), of which no good version is known: %w", err)
	}
	s.files = slices.Insert(s.files, 0, src)
	s.immutable = &immutableSettings{files: src}
	if !s.cfg.BindRoot {
		s.immutable.closed = s.cfg.boundNamespaces()
	}
	return s.cfg.checkRoot(s.settings.Spec.GetRootNamespace())
}

// maxExpansion bounds a source that is bound to namespaces; those of others have no bound.
func (c *Config) maxExpansion(namespaces []string) int {
	if len(namespaces) == 0 {
		return 0
	}
	return cmp.Or(c.MaxExpansion, lastgood.DefaultMaxExpansion)
}

// newNetworks makes the source of MeshNetworks. Until it has delivered, the mesh is not complete: a
// server without networks would send requests to addresses of other sites.
func (s *Server) newNetworks() error {
	if s.cfg.MeshNetworksFile == "" {
		return nil
	}
	src, err := files.New(files.Config{
		Name: meshNetworksSource, MeshNetworksFile: s.cfg.MeshNetworksFile,
		Observe: s.observeFiles(), Logger: s.cfg.Logger, StateDir: s.cfg.StateDir, ScanInterval: s.cfg.ScanInterval, LossAfter: s.cfg.LossAfter, AwaitDecision: true,
	})
	if err != nil {
		return err
	}
	present, lastGood, err := src.ReadMeshNetworks()
	switch {
	case present != nil:
	case lastGood != nil:
		s.cfg.Logger.Error("mesh networks are invalid; their last good version stays in force", "path", s.cfg.MeshNetworksFile, "err", err)
	default:
		return fmt.Errorf("reading the networks of the mesh (--mesh-networks), of which no good version is known: %w", err)
	}
	s.files = append(s.files, src)
	return nil
}

// settingsFiles are files that are no manifests, wherever they lie.
func (c *Config) settingsFiles() []string {
	return slices.DeleteFunc([]string{c.MeshConfigFile, c.MeshNetworksFile}, func(path string) bool { return path == "" })
}

// trustDomain is the authority's where there is one, for its root carries it;
// else it is that of the settings.
func (s *Server) trustDomain() (spiffeid.TrustDomain, error) {
	name := s.settings.Spec.GetTrustDomain()
	td, err := spiffeid.TrustDomainFromString(name)
	if err != nil {
		return td, fmt.Errorf("trustDomain %q of the mesh configuration: %w", name, err)
	}
	old, exists := s.authorityDomain()
	switch {
	case s.immutable == nil && exists && old != td:
		return td, fmt.Errorf("the authority in %q is of trust domain %q, and without --mesh-config that of the mesh is %q: "+
			"name the mesh configuration, or begin a new mesh with another --state-dir", s.pkiDir(), old.Name(), td.Name())
	case exists:
		td = old
	}
	if s.immutable != nil {
		s.immutable.domain = td.Name()
		s.settings = s.immutable.keep(s.settings)
	}
	return td, nil
}

// authorityDomain is the trust domain of an authority that was made before.
func (s *Server) authorityDomain() (spiffeid.TrustDomain, bool) {
	content, err := os.ReadFile(filepath.Join(s.pkiDir(), "bundle.pem"))
	if err != nil {
		return spiffeid.TrustDomain{}, false
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return spiffeid.TrustDomain{}, false
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return spiffeid.TrustDomain{}, false
	}
	td, err := profile.CheckRoot(root)
	return td, err == nil
}

// sourceList is what the registry reads, and what of it is bound to namespaces.
func (s *Server) sourceList() (list []registry.Source, bound map[string]*mesh.Binding) {
	bound = map[string]*mesh.Binding{}
	for _, src := range s.files {
		if src.Name() == meshConfigSource {
			list = append(list, s.immutable)
		} else {
			list = append(list, src)
		}
	}
	for i, r := range s.cfg.Roots {
		if b := r.Binding(); b != nil {
			bound[rootName(i, r.Path)] = b
		}
	}
	list = append(list, s.catalogs.sources()...)
	if b, err := s.cfg.Consul.Binding(); err == nil && s.catalogs.kv != nil && b != nil {
		bound[kvSource] = b
	}
	return list, bound
}

// fileStatus is how the sources of manifests stand, with what is wrong between them.
func (s *Server) fileStatus() []files.Status {
	list := make([]files.Status, 0, len(s.files))
	for _, src := range s.files {
		st := *src.Status()
		st.Faults = slices.Clone(st.Faults)
		if src.Name() == meshConfigSource {
			st.Faults = append(st.Faults, s.immutable.faults()...)
		}
		list = append(list, st)
	}
	list = append(list, s.catalogs.texts()...)
	for _, c := range s.registry.Status().Conflicts {
		if c.Dropped == nil {
			continue
		}
		i := slices.IndexFunc(list, func(st files.Status) bool { return st.Source == c.Dropped.Source })
		if i >= 0 {
			list[i].Faults = append(list[i].Faults, conflictFault(c))
		}
	}
	return list
}

// conflictFault reports that two directories have the same object, or that one names
// the host of another.
func conflictFault(c mesh.Conflict) manifest.Fault {
	if c.OfTenant() {
		return analysis.FaultOf(c)
	}
	return manifest.Fault{
		Origin: c.Dropped, Key: c.Key, Code: files.CodeTwice, Severity: manifest.Error,
		Message: fmt.Sprintf("defined twice, at %s and at %s: the first, whose --config-dir is named first, is in force; remove one of them", c.Kept, c.Dropped),
	}
}

// whyMissing says why a source has not delivered. One with which nothing is wrong
// is on its way: at the start that takes a moment.
func (s *Server) whyMissing(source string) string {
	for _, src := range s.files {
		if st := src.Status(); st.Source == source && st.Reason != "" {
			return st.Reason
		}
	}
	return cmp.Or(s.catalogs.whyMissing(source), "it is being read since "+s.started.UTC().Format(time.RFC3339))
}
