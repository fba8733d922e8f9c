package svid

import (
	"crypto"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/fairlead/fairlead/pki/durable"
)

// ErrNoIdentity says that a store holds no identity yet.
var ErrNoIdentity = errors.New("no identity on disk")

// maxIdentityFile bounds what is read of an identity.
const maxIdentityFile = 256 << 10

// HostStore is where a host keeps its own identity: one file with key,
// certificates and bundle, mode 0600, replaced in one step, so that a key never
// stands beside a certificate for another one.
type HostStore struct {
	path string
	fsys durable.FS

	mu sync.Mutex // guards the file, and what follows
	// warning says who can read the file besides its owner; empty when nobody does.
	warning string
}

// NewHostStore uses dir, which it makes. fsys may be nil: the operating system's.
func NewHostStore(dir string, fsys durable.FS) (*HostStore, error) {
	if fsys == nil {
		fsys = durable.OS{}
	}
	if err := durable.MakeDir(dir); err != nil {
		return nil, err
	}
	return &HostStore{path: filepath.Join(dir, "host.json"), fsys: fsys}, nil
}

// OpenHostStore is for reading: it makes no directory.
func OpenHostStore(dir string) *HostStore {
	return &HostStore{path: filepath.Join(dir, "host.json"), fsys: durable.OS{}}
}

// Path is the file.
func (s *HostStore) Path() string { return s.path }

// Load gives the identity, ended or not, or ErrNoIdentity when the host has not
// joined.
func (s *HostStore) Load() (*Identity, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.read()
	if err == nil && len(i.Certificates) == 0 {
		return nil, fmt.Errorf("%w: %q has a key that no certificate was given for yet", ErrNoIdentity, s.path)
	}
	return i, err
}

// Warning says which group can read the file as it was read last, if one can that
// should not. It is for the log.
func (s *HostStore) Warning() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.warning
}

// Key gives the host's key; the first call makes it and puts it on the disk
// before it returns, because a join token is bound to the key it is first used
// with: a host that is killed while it joins must come back with the same one.
func (s *HostStore) Key() (crypto.Signer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, err := s.read()
	if err == nil {
		return i.PrivateKey, nil
	}
	if !errors.Is(err, ErrNoIdentity) {
		return nil, err
	}
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	data, err := encodeNewKey(key)
	if err != nil {
		return nil, err
	}
	return key, s.write(data)
}

// Save replaces the identity.
func (s *HostStore) Save(i *Identity) error {
	if err := i.check(); err != nil {
		return fmt.Errorf("saving an identity: %w", err)
	}
	data, err := encodeIdentity(i)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.write(data)
}

func (s *HostStore) read() (*Identity, error) {
	data, warning, err := durable.ReadKey(s.path, maxIdentityFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q does not exist", ErrNoIdentity, s.path)
	}
	if err != nil {
		return nil, err
	}
	s.warning = warning
	i, err := decodeIdentity(data)
	if err != nil {
		return nil, fmt.Errorf("reading the host's identity from %q: %w; restore the file, or remove it and join with a token made with --replace", s.path, err)
	}
	return i, nil
}

func (s *HostStore) write(data []byte) error {
	return durable.WriteFile(s.fsys, s.path, data, 0o600)
}
