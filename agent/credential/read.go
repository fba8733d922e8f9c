package credential

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of one file, in bytes. Lists of revoked certificates of large authorities have MiBs.
const (
	maxFile = 1 << 20
	maxList = 4 << 20
)

// Directory reads the credentials of a host.
type Directory struct {
	// Path is the directory with a folder for each credential.
	Path string
	// Private are directories whose files are never read, whatever links lead there.
	Private []string
}

// files are the names of the files of one kind of Secret.
type files struct{ cert, key, ca, list string }

// kinds are Istio's names, in its order: those of generic Secrets, and of Secrets for TLS.
func kinds() []files {
	return []files{{"cert", "key", "cacert", "crl"}, {"tls.crt", "tls.key", "ca.crt", "ca.crl"}}
}

// Read reads and checks what a secret is to have. An error has a [State].
func (d *Directory) Read(secret string) (*Content, error) {
	// The name alone counts: with the suffix of authorities it may be too long for a folder.
	if err := CheckName(base(secret)); err != nil {
		return nil, &Error{Broken, err}
	}
	name, authorities := Name(secret)
	folder := filepath.Join(d.Path, d.folder(name, authorities))
	r := reader{d: d, folder: folder}
	read := r.pair
	if authorities {
		read = r.authorities
	}
	c, err := read()
	if err != nil {
		return nil, err
	}
	c.Warnings = r.warnings
	return c, nil
}

// folder is the folder of a credential. As in Istio, authorities are in a folder of their own,
// or beside the certificate.
func (d *Directory) folder(name string, authorities bool) string {
	if authorities {
		_, err := os.Stat(filepath.Join(d.Path, name))
		if len(name) > maxName || errors.Is(err, fs.ErrNotExist) {
			return base(name)
		}
	}
	return name
}

// Folders are where the files of a secret may be, for who watches them.
func (d *Directory) Folders(secret string) []string {
	if CheckName(base(secret)) != nil {
		return nil
	}
	name, authorities := Name(secret)
	var out []string
	if len(name) <= maxName {
		out = append(out, filepath.Join(d.Path, name))
	}
	if authorities {
		out = append(out, filepath.Join(d.Path, base(name)))
	}
	return out
}

// settled is how old a change must be for the stamp of a file to tell it from the next one.
const settled = 2 * time.Second

// Stamp tells two states of the files of a secret apart without reading them; empty if they
// changed so recently that it cannot.
func (d *Directory) Stamp(secret string, now time.Time) string {
	var b strings.Builder
	for _, folder := range d.Folders(secret) {
		names := []string{""} // the folder itself: who may write into it
		for _, k := range kinds() {
			names = append(names, k.cert, k.key, k.ca, k.list)
		}
		for _, name := range names {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(folder, name), &st); err != nil {
				_, _ = fmt.Fprintf(&b, "%v;", err)
				continue
			}
			changed := time.Unix(st.Ctim.Unix())
			if now.Sub(changed) < settled {
				return ""
			}
			_, _ = fmt.Fprintf(&b, "%d %d %d %d %o %d;", st.Dev, st.Ino, st.Size, changed.UnixNano(), st.Mode, st.Uid)
		}
	}
	return b.String()
}

// reader reads the files of one folder.
type reader struct {
	d        *Directory
	folder   string
	warnings []string
}

// present are the names in the folder.
func (r *reader) present() ([]string, error) {
	f, err := os.Open(r.folder)
	if err != nil {
		return nil, stateOf(fmt.Errorf("opening the folder of the credential: %w", err))
	}
	defer func() { _ = f.Close() }()
	const most = 256
	names, err := f.Readdirnames(most)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, stateOf(fmt.Errorf("reading the folder of the credential: %w", err))
	}
	slices.Sort(names)
	r.warnFolder(f)
	return names, nil
}

func (r *reader) pair() (*Content, error) {
	names, err := r.present()
	if err != nil {
		return nil, err
	}
	has := func(name string) bool { return slices.Contains(names, name) }
	for _, k := range kinds() {
		if !has(k.cert) || !has(k.key) {
			continue
		}
		cert, err := r.file(k.cert, maxFile)
		if err != nil {
			return nil, err
		}
		key, err := r.file(k.key, maxFile)
		if err != nil {
			return nil, err
		}
		return readPair(k, cert, key)
	}
	return nil, &Error{Missing, fmt.Errorf("the folder %q has neither tls.crt and tls.key nor cert and key; it has: %s", r.folder, listed(names))}
}

func (r *reader) authorities() (*Content, error) {
	names, err := r.present()
	if err != nil {
		return nil, err
	}
	for _, k := range kinds() {
		if !slices.Contains(names, k.ca) {
			continue
		}
		ca, err := r.file(k.ca, maxFile)
		if err != nil {
			return nil, err
		}
		var list []byte
		if slices.Contains(names, k.list) {
			if list, err = r.file(k.list, maxList); err != nil {
				return nil, err
			}
		}
		return readAuthorities(k, ca, list)
	}
	return nil, &Error{Missing, fmt.Errorf("the folder %q has neither ca.crt nor cacert; it has: %s", r.folder, listed(names))}
}

// listed is the first few names of a folder.
func listed(names []string) string {
	const few = 8
	switch {
	case len(names) == 0:
		return "nothing"
	case len(names) > few:
		return fmt.Sprintf("%q and %d more", names[:few], len(names)-few)
	default:
		return fmt.Sprintf("%q", names)
	}
}

// file reads one file of the folder. It looks at the file that is open: links may change.
func (r *reader) file(name string, limit int64) ([]byte, error) {
	path := filepath.Join(r.folder, name)
	// Opening a named pipe would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, stateOf(fmt.Errorf("opening a file of the credential: %w", err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, stateOf(fmt.Errorf("reading %q: %w", path, err))
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{Unreadable, fmt.Errorf("reading %q: it is not a regular file", path)}
	}
	at, err := opened(f, path)
	if err != nil {
		return nil, stateOf(fmt.Errorf("reading %q: %w", path, err))
	}
	if own := r.d.privateDir(at); own != "" {
		return nil, &Error{Unreadable, fmt.Errorf("reading %q: it is in the agent's own directory %q, of which no configuration may use files", path, own)}
	}
	r.warnKey(name, path, at, info.Mode())
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	switch {
	case err != nil:
		return nil, stateOf(fmt.Errorf("reading %q: %w", path, err))
	case int64(len(b)) > limit:
		return nil, &Error{Unreadable, fmt.Errorf("reading %q: it has more than %d MiB", path, limit>>20)}
	case len(b) == 0:
		return nil, &Error{Broken, fmt.Errorf("reading %q: it is empty", path)}
	}
	return b, nil
}

// opened is where an open file is.
func opened(f *os.File, path string) (string, error) {
	at, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if errors.Is(err, fs.ErrNotExist) {
		return filepath.EvalSymlinks(path)
	}
	return at, err
}

// privateDir is the directory of the agent that has the file; or empty.
func (d *Directory) privateDir(at string) string {
	for _, dir := range d.Private {
		resolved := dir
		if own, err := filepath.EvalSymlinks(dir); err == nil {
			resolved = own
		}
		if rel, err := filepath.Rel(resolved, at); err == nil && filepath.IsLocal(rel) {
			return dir
		}
	}
	return ""
}

// warnKey warns of a key that every user of the machine can read.
func (r *reader) warnKey(name, path, at string, mode fs.FileMode) {
	isKey := slices.ContainsFunc(kinds(), func(k files) bool { return k.key == name })
	if !isKey || mode.Perm()&0o004 == 0 || !reachable(filepath.Dir(at)) {
		return
	}
	r.warnings = append(r.warnings, fmt.Sprintf("every user of the machine can read the key %q: chmod o-rwx, and replace the key", path))
}

// warnFolder warns of a folder in which every user of the machine can put a key.
func (r *reader) warnFolder(f *os.File) {
	info, err := f.Stat()
	if err != nil || info.Mode().Perm()&0o002 == 0 || info.Mode()&fs.ModeSticky != 0 {
		return
	}
	at, err := opened(f, r.folder)
	if err == nil && reachable(filepath.Dir(at)) {
		r.warnings = append(r.warnings, fmt.Sprintf("every user of the machine can write into the folder %q: chmod o-w", r.folder))
	}
}

// reachable reports whether every user may pass all directories down to this one.
func reachable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return true
		}
		dir = up
	}
}
