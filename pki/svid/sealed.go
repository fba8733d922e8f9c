package svid

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/fairlead/fairlead/pki/durable"
)

// A sealed file is magic, version, salt, and AES-256-GCM's nonce and ciphertext.
// The key is HKDF-SHA-256 of the sealing secret and the salt, so each file has a
// key of its own; the workload's name is authenticated with it, so one file
// cannot be put in another's place.
const (
	sealedMagic   = "FLSEALED"
	sealedVersion = 1
	sealedSaltLen = 32
	sealedInfo    = "fairlead workload identity 1"
	minSecret     = 16
)

// ErrSealBroken says that a sealed file was made with another secret or for
// another workload, or has been changed.
var ErrSealBroken = errors.New("sealed with another host key, for another workload, or changed since")

// SealingSecret is the host's key as the secret of a SealedStore.
func SealingSecret(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("taking the sealing secret: %w", err)
	}
	return der, nil
}

// SealedStore is where a host keeps its workloads' identities, so that they
// survive a restart of the agent with the control plane away. It is as safe as
// the secret it is made with.
type SealedStore struct {
	dir    string
	secret []byte
	fsys   durable.FS

	mu sync.Mutex // guards the files
}

// NewSealedStore uses dir, which it makes. secret is SealingSecret's, or a
// credential from elsewhere. fsys may be nil: the operating system's.
func NewSealedStore(dir string, secret []byte, fsys durable.FS) (*SealedStore, error) {
	if len(secret) < minSecret {
		return nil, fmt.Errorf("sealing secret of %d bytes: want at least %d", len(secret), minSecret)
	}
	if fsys == nil {
		fsys = durable.OS{}
	}
	// A directory that cannot be made is no reason to have no identity: Save tries
	// again, and says what is wrong.
	_ = durable.MakeDir(dir)
	return &SealedStore{dir: dir, secret: bytes.Clone(secret), fsys: fsys}, nil
}

// Load gives the workload's identity, ended or not, ErrNoIdentity when there is
// none, or ErrSealBroken.
func (s *SealedStore) Load(pair Pair) (*Identity, error) {
	path, err := s.path(pair)
	if err != nil {
		return nil, err
	}
	return s.load(pair, path)
}

func (s *SealedStore) load(pair Pair, path string) (*Identity, error) {
	s.mu.Lock()
	data, err := durable.ReadFile(path, maxIdentityFile)
	s.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q does not exist", ErrNoIdentity, path)
	}
	if err != nil {
		return nil, err
	}
	plain, err := s.open(pair, data)
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w; remove it, the identity is asked for again", path, err)
	}
	i, err := decodeIdentity(plain)
	if err != nil {
		return nil, fmt.Errorf("opening %q: %w", path, err)
	}
	return i, nil
}

// Save replaces the workload's identity.
func (s *SealedStore) Save(pair Pair, i *Identity) error {
	path, err := s.path(pair)
	if err != nil {
		return err
	}
	return s.save(pair, path, i)
}

func (s *SealedStore) save(pair Pair, path string, i *Identity) error {
	if err := i.check(); err != nil {
		return fmt.Errorf("saving an identity: %w", err)
	}
	plain, err := encodeIdentity(i)
	if err != nil {
		return err
	}
	data, err := s.seal(pair, plain)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err = durable.WriteFile(s.fsys, path, data, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(s.dir, 0o700); err != nil { // not its parents: a disk may be away
			return fmt.Errorf("saving an identity: %w", err)
		}
		err = durable.WriteFile(s.fsys, path, data, 0o600)
	}
	return err
}

// Remove forgets the workload's identity.
func (s *SealedStore) Remove(pair Pair) error {
	path, err := s.path(pair)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(durable.Remove(s.fsys, path), durable.Remove(s.fsys, path+previousSuffix))
}

// Path is the file of a workload.
func (s *SealedStore) Path(pair Pair) (string, error) { return s.path(pair) }

// path is injective: neither half of a pair can contain '_'.
func (s *SealedStore) path(pair Pair) (string, error) {
	if err := pair.Check(); err != nil {
		return "", err
	}
	const longest = 180 // leaves room for the name of a temporary file
	name := pair.Namespace + "_" + pair.ServiceAccount
	if len(name) > longest {
		sum := sha256.Sum256([]byte(name))
		name = "_" + hex.EncodeToString(sum[:])
	}
	return filepath.Join(s.dir, name+".sealed"), nil
}

func (s *SealedStore) seal(pair Pair, plain []byte) ([]byte, error) {
	header := append([]byte(sealedMagic), sealedVersion)
	salt := make([]byte, sealedSaltLen)
	if _, err := rand.Read(salt); err != nil {
		return nil, fmt.Errorf("drawing a salt: %w", err)
	}
	aead, err := s.aead(salt)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, aead.NonceSize())
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("drawing a nonce: %w", err)
	}
	out := append(append(header, salt...), nonce...)
	return aead.Seal(out, nonce, plain, additional(pair)), nil
}

func (s *SealedStore) open(pair Pair, data []byte) ([]byte, error) {
	rest, ok := bytes.CutPrefix(data, []byte(sealedMagic))
	if !ok || len(rest) < 1 {
		return nil, errors.New("not a sealed identity")
	}
	if rest[0] != sealedVersion {
		return nil, fmt.Errorf("sealed identity of version %d, this program knows %d", rest[0], sealedVersion)
	}
	rest = rest[1:]
	if len(rest) < sealedSaltLen {
		return nil, errors.New("sealed identity cut short")
	}
	aead, err := s.aead(rest[:sealedSaltLen])
	if err != nil {
		return nil, err
	}
	rest = rest[sealedSaltLen:]
	if len(rest) < aead.NonceSize() {
		return nil, errors.New("sealed identity cut short")
	}
	plain, err := aead.Open(nil, rest[:aead.NonceSize()], rest[aead.NonceSize():], additional(pair))
	if err != nil {
		return nil, ErrSealBroken
	}
	return plain, nil
}

func (s *SealedStore) aead(salt []byte) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, s.secret, salt, sealedInfo, 32)
	if err != nil {
		return nil, fmt.Errorf("deriving the sealing key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("deriving the sealing key: %w", err)
	}
	return cipher.NewGCM(block)
}

func additional(pair Pair) []byte {
	return append([]byte{sealedVersion}, pair.String()...)
}
