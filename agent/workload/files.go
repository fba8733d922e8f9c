package workload

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/internal/wallclock"
)

// Names of secrets that are in files, as in Istio: file-cert:CERTIFICATE~KEY,
// file-root:ROOTS, and the public roots of this host. What these cannot say is the query of a URL:
// files:cert=CERTIFICATE&key=KEY and files:ca=ROOTS&crl=LIST, with paths as the configuration has them.
const (
	certPrefix  = "file-cert:"
	rootPrefix  = "file-root:"
	filesPrefix = "files:"
	system      = "system"
	SystemRoots = rootPrefix + system
)

// envoyDir is where Envoy runs, and where paths begin that are not absolute.
const envoyDir = "/"

const (
	// maxFile bounds one file; the roots of a system have a quarter of a MiB.
	maxFile = 4 << 20
	// maxFiles bounds the secrets of files, over all streams.
	maxFiles = 256
	// fileInterval is how often files are looked at.
	fileInterval = 5 * time.Second
)

// SystemRootFiles are where distributions keep the public roots, in the order in which they
// are looked for. certFile is the value of SSL_CERT_FILE, or empty.
func SystemRootFiles(certFile string) []string {
	list := []string{
		"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Gentoo, Arch
		"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // newer Fedora, RHEL
		"/etc/ssl/ca-bundle.pem",                            // SUSE
		"/etc/ssl/cert.pem",                                 // Alpine
	}
	if certFile != "" {
		list = slices.Insert(list, 0, certFile)
	}
	return list
}

// IsFileSecret reports whether a secret is in files.
func IsFileSecret(name string) bool {
	return strings.HasPrefix(name, certPrefix) || strings.HasPrefix(name, rootPrefix) || strings.HasPrefix(name, filesPrefix)
}

// isHostSecret reports whether a secret is read from files of this host.
func isHostSecret(name string) bool { return IsFileSecret(name) || credential.IsSecret(name) }

// fileSecret is a secret that streams want.
type fileSecret struct {
	// reading is held while its files are read, before the server's mu: what is read earlier must not
	// replace what is read later.
	reading sync.Mutex

	// Guarded by the server's mu.
	users int     // streams
	now   *secret // the newest usable content, or nil
	// looked means that the files have been looked at: without content, there is none.
	looked bool
	held   held
}

// useFile adds a stream to a secret's users, and reads the files if it is the first one.
func (s *Server) useFile(name string) error {
	s.mu.Lock()
	f := s.files[name]
	if f == nil {
		if limit, err := limitFor(name); s.count(credential.IsSecret(name)) >= limit {
			s.mu.Unlock()
			return err
		}
		f = &fileSecret{}
		s.files[name] = f
	}
	f.users++
	first := f.users == 1
	s.mu.Unlock()
	switch {
	case !first:
	case credential.IsSecret(name):
		s.refreshCredential(name)
		select {
		case s.wanted <- struct{}{}:
		default: // it is signalled already
		}
	default:
		s.refreshFile(name)
	}
	return nil
}

// count is how many secrets of a kind streams want. s.mu is held.
func (s *Server) count(credentials bool) int {
	n := 0
	for name := range s.files {
		if credential.IsSecret(name) == credentials {
			n++
		}
	}
	return n
}

func (s *Server) leaveFile(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[name]
	if f == nil {
		return
	}
	if f.users--; f.users == 0 {
		delete(s.files, name)
	}
}

// refreshFiles reads all files that streams want. Files that did not change cost their
// reading.
func (s *Server) refreshFiles() {
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.files))
	s.mu.Unlock()
	for _, name := range names {
		if credential.IsSecret(name) {
			s.refreshCredential(name)
		} else {
			s.refreshFile(name)
		}
	}
}

// refreshFile reads a secret's files. While they cannot be used, the last content that could
// stays in force.
func (s *Server) refreshFile(name string) {
	f := s.wantedFile(name)
	if f == nil {
		return // nobody wants it any more
	}
	f.reading.Lock()
	defer f.reading.Unlock()
	s.mu.Lock()
	was := f.held.read
	s.mu.Unlock()
	read, err := s.readFile(name, was)
	s.mu.Lock()
	defer s.mu.Unlock()
	f.held.read, f.held.err = read, err
	s.serveCredential(wallclock.Now(), name, f)
}

// wantedFile is a secret that streams want; or nil.
func (s *Server) wantedFile(name string) *fileSecret {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.files[name]
}

// readFile reads the files of a secret; was is what they had before, or nil.
func (s *Server) readFile(name string, was *credential.Content) (*credential.Content, error) {
	switch {
	case name == SystemRoots:
		return s.systemRoots(was)
	case strings.HasPrefix(name, rootPrefix):
		return s.rootsIn(strings.TrimPrefix(name, rootPrefix), was)
	case strings.HasPrefix(name, filesPrefix):
		return s.readQuery(name, was)
	default:
		cert, key, ok := strings.Cut(strings.TrimPrefix(name, certPrefix), "~")
		if !ok || strings.Contains(key, "~") {
			return nil, errors.New("the name is not file-cert:CERTIFICATE~KEY")
		}
		return s.readPair(cert, key)
	}
}

// nameOfFiles is how the status names a secret that is in files: by the path of its certificate or
// authorities, as the configuration has it.
func nameOfFiles(name string) (path string, authorities bool) {
	if path, ok := strings.CutPrefix(name, rootPrefix); ok {
		return path, true
	}
	if pair, ok := strings.CutPrefix(name, certPrefix); ok {
		path, _, _ := strings.Cut(pair, "~")
		return path, false
	}
	q, err := url.ParseQuery(strings.TrimPrefix(name, filesPrefix))
	if err != nil {
		return name, false
	}
	if q.Has("ca") {
		return q.Get("ca"), true
	}
	return cmp.Or(q.Get("cert"), name), false
}

// readQuery reads what the query of a name says.
func (s *Server) readQuery(name string, was *credential.Content) (*credential.Content, error) {
	q, err := url.ParseQuery(strings.TrimPrefix(name, filesPrefix))
	if err != nil {
		return nil, fmt.Errorf("reading the name of a secret: %w", err)
	}
	in := func(field string) string {
		if path := q.Get(field); path != "" && !filepath.IsAbs(path) {
			return filepath.Join(envoyDir, path)
		}
		return q.Get(field)
	}
	switch {
	case q.Has("cert") && q.Has("key") && len(q) == 2:
		return s.readPair(in("cert"), in("key"))
	case q.Has("ca") && len(q) == 1:
		return s.rootsIn(in("ca"), was)
	case q.Has("ca") && q.Has("crl") && len(q) == 2:
		return s.readRevoked(q.Get("ca") == system, in("ca"), in("crl"))
	}
	return nil, errors.New("the name is none of files:cert=CERTIFICATE&key=KEY, files:ca=ROOTS and files:ca=ROOTS&crl=LIST")
}

// readRevoked reads roots and a list of revoked certificates. Without a list that can be read there is no
// secret: an Envoy would take revoked certificates, or reject whatever uses the secret.
func (s *Server) readRevoked(public bool, caPath, listPath string) (*credential.Content, error) {
	var roots []byte
	var err error
	if public {
		var c *credential.Content
		if c, err = s.systemRoots(nil); err == nil {
			roots = c.CA
		}
	} else {
		roots, err = s.readPEM(caPath)
	}
	if err != nil {
		return nil, err
	}
	list, err := s.readPEM(listPath)
	if err != nil {
		return nil, err
	}
	c, err := credential.ReadAuthorities(caPath, roots, listPath, list)
	if err != nil {
		return nil, fmt.Errorf("using a list of revoked certificates: %w", err)
	}
	return c, nil
}

// systemRoots are the public roots of this host.
func (s *Server) systemRoots(was *credential.Content) (*credential.Content, error) {
	var errs []error
	for _, path := range s.c.SystemRootFiles {
		roots, err := s.rootsIn(path, was)
		if err == nil {
			return roots, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("no public root certificates on this host; install the package ca-certificates, or set SSL_CERT_FILE for the agent: %w", errors.Join(errs...))
}

// rootsIn are the roots in a file; was is what it had before, or nil.
func (s *Server) rootsIn(path string, was *credential.Content) (*credential.Content, error) {
	b, err := s.readPEM(path)
	if err != nil {
		return nil, err
	}
	return credential.ReadRoots(path, b, was)
}

func (s *Server) readPair(certPath, keyPath string) (*credential.Content, error) {
	cert, err := s.readPEM(certPath)
	if err != nil {
		return nil, err
	}
	key, err := s.readPEM(keyPath)
	if err != nil {
		return nil, err
	}
	return credential.ReadPair(certPath, cert, keyPath, key)
}

// readPEM reads a file that the configuration names. The agent has the rights of its Envoy,
// which could read the same; but it never reads its own directories, where the keys of this
// host are, nor anything that is no regular file.
func (s *Server) readPEM(path string) ([]byte, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("reading %q: the path is not absolute", path)
	}
	// Opening a named pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, unreadable(fmt.Errorf("reading a certificate file: %w", err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading a certificate file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading %q: it is not a regular file", path)
	}
	if err := s.checkPrivate(f, path); err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("reading %q: %w", path, err)
	}
	if len(b) > maxFile {
		return nil, fmt.Errorf("reading %q: it has more than %d MiB", path, maxFile>>20)
	}
	return b, nil
}

// unreadable is an error with the state of a file that cannot be opened.
func unreadable(err error) error {
	state := credential.Unreadable
	if errors.Is(err, fs.ErrNotExist) {
		state = credential.Missing
	}
	return &credential.Error{State: state, Err: err}
}

// checkPrivate refuses a file of the agent's own directories, whatever links lead there. It
// looks at the file that is open.
func (s *Server) checkPrivate(f *os.File, path string) error {
	opened, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if errors.Is(err, fs.ErrNotExist) {
		opened, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		return fmt.Errorf("reading %q: %w", path, err)
	}
	for _, dir := range s.c.Private {
		if own, err := filepath.EvalSymlinks(dir); err == nil {
			dir = own
		}
		if rel, err := filepath.Rel(dir, opened); err == nil && filepath.IsLocal(rel) {
			return fmt.Errorf("reading %q: it is in the agent's own directory %q, of which no configuration may use files", path, dir)
		}
	}
	return nil
}
