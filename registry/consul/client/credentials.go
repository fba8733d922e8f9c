package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
)

// maxSecret bounds a token or certificate file, in bytes.
const maxSecret = 1 << 20

// fileVersion reports whether a file is the one that was read.
type fileVersion struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func fileVersionOf(path string) (fileVersion, error) {
	if path == "" {
		return fileVersion{}, nil
	}
	fi, err := os.Stat(path)
	if err != nil {
		return fileVersion{}, err
	}
	return fileVersion{fi.ModTime(), fi.Size(), fi}, nil
}

func (s fileVersion) same(o fileVersion) bool {
	if s.info == nil || o.info == nil {
		return s.info == nil && o.info == nil
	}
	return s.modified.Equal(o.modified) && s.size == o.size && os.SameFile(s.info, o.info)
}

// tokenFile is the ACL token, as its file has it now.
type tokenFile struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex // guards all following fields
	read  fileVersion
	known bool
	token string
}

// current is the token now. One that was read stays in use while its file is
// away: it is being replaced, perhaps.
func (t *tokenFile) current() (string, error) {
	if t.path == "" {
		return "", nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now, err := fileVersionOf(t.path)
	if err == nil && t.known && now.same(t.read) {
		return t.token, nil
	}
	var data []byte
	if err == nil {
		var warning string
		data, warning, err = durable.ReadToken(t.path, maxSecret)
		if warning != "" {
			t.log.Warn("Consul token file is readable by other users", "reason", warning)
		}
	}
	token := strings.TrimSpace(string(data))
	switch {
	case err == nil && token != "" && !strings.ContainsAny(token, "\r\n\x00"):
		t.token, t.read, t.known = token, now, true
	case t.known: // empty or half-written, too
	case err != nil:
		return "", fmt.Errorf("reading the token: %w", err)
	default:
		return "", fmt.Errorf("reading the token: %q has none", t.path)
	}
	return t.token, nil
}

// tlsFiles is what a handshake needs, as the files have it now.
type tlsFiles struct {
	ca, cert, key, server string

	log *slog.Logger
	// certificateAsked says that the server asked for a certificate, and there is none.
	certificateAsked atomic.Bool

	mu     sync.Mutex // guards all following fields
	read   [3]fileVersion
	config *tls.Config // or nil
	err    error       // why the present files are not in use, or nil
}

// current is the configuration by the present files, and whether it is another
// one than before. Files that cannot be read while a configuration is in use
// change nothing: they are being replaced, perhaps.
func (t *tlsFiles) current() (config *tls.Config, changed bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var now [3]fileVersion
	for i, path := range []string{t.ca, t.cert, t.key} {
		s, statErr := fileVersionOf(path)
		err = errors.Join(err, statErr)
		now[i] = s
	}
	if err == nil && t.config != nil && now[0].same(t.read[0]) && now[1].same(t.read[1]) && now[2].same(t.read[2]) {
		return t.config, false, nil
	}
	var made *tls.Config
	if err == nil {
		made, err = t.load()
	}
	if t.err = err; err != nil {
		if t.config != nil {
			return t.config, false, nil
		}
		return nil, false, fmt.Errorf("reading the files of TLS: %w", err)
	}
	changed = t.config != nil
	t.config, t.read = made, now
	return made, changed, nil
}

func (t *tlsFiles) load() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.server, NextProtos: []string{"h2", "http/1.1"}}
	if t.ca != "" {
		pem, err := durable.ReadFile(t.ca, maxSecret)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%q has no certificate", t.ca)
		}
	}
	if t.cert != "" {
		certPEM, err := durable.ReadFile(t.cert, maxSecret)
		if err != nil {
			return nil, err
		}
		keyPEM, warning, err := durable.ReadKey(t.key, maxSecret)
		if err != nil {
			return nil, err
		}
		if warning != "" {
			t.log.Warn("Consul key file is readable by a group", "reason", warning)
		}
		pair, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			return nil, fmt.Errorf("%q and %q: %w", t.cert, t.key, err)
		}
		c.Certificates = []tls.Certificate{pair}
		return c, nil
	}
	// By TLS 1.3 a client without one learns of it after the handshake, if at all.
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		t.certificateAsked.Store(true)
		return &tls.Certificate{}, nil
	}
	return c, nil
}

// handshake makes a TLS connection of one.
func (t *tlsFiles) handshake(ctx context.Context, nc net.Conn) (net.Conn, error) {
	c, _, err := t.current()
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	tc := tls.Client(nc, c)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("shaking hands by TLS: %w", err), nc.Close())
	}
	return tc, nil
}
