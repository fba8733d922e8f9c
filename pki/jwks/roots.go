package jwks

import (
	"crypto/x509"
	"fmt"
	"os"
	"sync"

	"github.com/fairlead/fairlead/pki/durable"
)

// maxRoots bounds the file of authorities, in bytes.
const maxRoots = 4 << 20

// roots are the authorities of issuers' servers: those of the system, and a file's.
type roots struct {
	path string // or empty

	mu   sync.Mutex // guards all following fields
	info os.FileInfo
	pool *x509.CertPool // or nil
}

// current reads the file again when it has changed. While it cannot be read, what it had last
// is in force: it is being replaced, perhaps.
func (r *roots) current() (*x509.CertPool, error) {
	if r.path == "" {
		return nil, nil //nolint:nilnil // crypto/tls takes it for those of the system
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.path)
	if err == nil && r.pool != nil && os.SameFile(info, r.info) && info.ModTime().Equal(r.info.ModTime()) && info.Size() == r.info.Size() {
		return r.pool, nil
	}
	pool, err := readRoots(r.path)
	switch {
	case err == nil:
		r.info, r.pool = info, pool
	case r.pool == nil:
		return nil, err
	}
	return r.pool, nil
}

func readRoots(path string) (*x509.CertPool, error) {
	data, err := durable.ReadFile(path, maxRoots)
	if err != nil {
		return nil, fmt.Errorf("reading the authorities of issuers: %w", err)
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a system without any
	}
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("reading the authorities of issuers: %q has no certificate in PEM", path)
	}
	return pool, nil
}
