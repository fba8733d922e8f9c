package jwks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// directory reads key sets from files.
type directory struct{ root string }

func (d *directory) every() (refresh, firstRetry, lastRetry time.Duration) {
	return FileInterval, FileInterval, FileInterval
}

func (d *directory) host(location) string { return "" }

func (d *directory) fetch(_ context.Context, j job) answer {
	path := filepath.Join(d.root, FileName(j.uri))
	body, err := readRegular(path)
	if err != nil {
		return answer{from: path, err: err}
	}
	return j.read(body, path)
}

// readRegular reads a file that may be somebody's trap: a pipe blocks whoever opens it.
func readRegular(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("reading the key set: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the key set: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading the key set: %q is not a file", path)
	}
	body, err := io.ReadAll(io.LimitReader(f, MaxBody+1))
	if err != nil {
		return nil, fmt.Errorf("reading the key set: %w", err)
	}
	if len(body) > MaxBody {
		return nil, fmt.Errorf("reading the key set: %q has more than %d bytes", path, MaxBody)
	}
	return body, nil
}

// FileName is where the keys of a jwksUri, or of an issuer that is discovered, are below the
// directory of key sets: the URI without its scheme, user and fragment, and ".json" behind.
// https://login.example.com/oauth2/keys is login.example.com/oauth2/keys.json, and the issuer
// https://accounts.example.com is accounts.example.com.json. Everything but letters, digits
// and ._:@~- is escaped as in a URI (%3F), as are names of dots only. A name never leads out
// of the directory, and two URIs have one name only if they differ in scheme, user or
// fragment, in a slash at the end, or in the case of the host.
func FileName(uri string) string {
	rest := uri
	if u, err := url.Parse(uri); err == nil && u.Host != "" {
		rest = strings.ToLower(u.Host) + u.EscapedPath()
		if u.RawQuery != "" {
			rest += "?" + u.RawQuery
		}
	}
	parts := strings.Split(strings.TrimSuffix(rest, "/"), "/")
	for i, p := range parts {
		parts[i] = escapeName(p)
	}
	return filepath.Join(parts...) + ".json"
}

func escapeName(s string) string {
	if s == "" {
		return "%"
	}
	dots := strings.Trim(s, ".") == ""
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("_:@~-", c) >= 0, c == '.' && !dots:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// checkDir says early that a directory cannot be read.
func checkDir(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("reading the directory of key sets: %w", err)
	}
	if !info.IsDir() {
		return errors.New("reading the directory of key sets: it is not a directory")
	}
	return nil
}
