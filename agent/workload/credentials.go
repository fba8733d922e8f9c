package workload

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/fsnotify/fsnotify"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/internal/wallclock"
)

const (
	// maxCredentials bounds the secrets of credentials, over all streams.
	maxCredentials = 1024
	// settleTime is how long a folder rests after an event until it is read: the files of a
	// rotation follow each other.
	settleTime = 100 * time.Millisecond
)

// Credential is how one secret of a credential, or of certificates in files, stands. It has nothing
// of a key.
type Credential struct {
	// Name is that of Gateways and DestinationRules: a credentialName, or the path of a file.
	Name string `json:"name"`
	// Authorities says that it is the authorities that verify the other side, and not a
	// certificate with its key.
	Authorities bool             `json:"authorities,omitempty"`
	State       credential.State `json:"state"`
	// Reason is why it is not ready; empty if it is.
	Reason string `json:"reason,omitempty"`
	// Served says that Envoy has a content of it: while it is not ready, the last good one.
	Served bool `json:"served"`
	// NotBefore and NotAfter are those of what is served, ListEnds is when its list of revoked
	// certificates is to be replaced.
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	ListEnds  time.Time `json:"list_ends,omitzero"`
	// Warnings are what a person should change although it is used.
	Warnings []string `json:"warnings,omitempty"`
}

// held is what is known of the files of one secret. Guarded by the server's mu.
type held struct {
	stamp  string              // of a credential's files when they were read last, or empty
	read   *credential.Content // what they had, or nil
	err    error               // why they cannot be used, or nil
	served *credential.Content // what Envoy gets, or nil
	// rejected is why Envoy rejects served, or empty.
	rejected string
	state    credential.State // as it was logged last
}

// refreshCredential reads the files of a credential if they may have changed. While they cannot
// be used, the last content that could stays in force.
func (s *Server) refreshCredential(name string) {
	f := s.wantedFile(name)
	if f == nil {
		return // nobody wants it any more
	}
	f.reading.Lock()
	defer f.reading.Unlock()
	now, d := wallclock.Now(), credential.Directory{Path: s.c.CredentialsDir, Private: s.c.Private}
	stamp := d.Stamp(name, now)
	s.mu.Lock()
	again := stamp == "" || stamp != f.held.stamp
	s.mu.Unlock()
	var read *credential.Content
	var err error
	if again {
		read, err = d.Read(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if again {
		f.held.stamp, f.held.read, f.held.err = stamp, read, err
	}
	s.serveCredential(now, name, f)
}

// serveCredential decides what Envoy gets. s.mu is held.
func (s *Server) serveCredential(now time.Time, name string, f *fileSecret) {
	h := &f.held
	f.looked = true
	if h.read != nil && h.read != h.served && (isReady(h.read, now) || h.served == nil || !isReady(h.served, now)) {
		v, err := credentialSecret(name, h.read)
		switch {
		case err != nil:
			h.read, h.err = nil, err
		case f.now == nil || f.now.version != v.version:
			f.now, h.served, h.rejected = v, h.read, ""
		default:
			h.served = h.read
		}
	}
	s.logCredential(name, h, h.report(name, now))
	s.wakeStreams()
}

func isReady(c *credential.Content, now time.Time) bool {
	state, _ := c.State(now)
	return state == credential.Ready
}

// report is how a credential stands.
func (h *held) report(name string, now time.Time) Credential {
	out := Credential{State: credential.Ready}
	if out.Name, out.Authorities = credential.Name(name); IsFileSecret(name) {
		out.Name, out.Authorities = nameOfFiles(name)
	}
	if c := h.served; c != nil {
		out.Served, out.NotBefore, out.NotAfter, out.ListEnds = true, c.NotBefore, c.NotAfter, c.ListEnds
		out.Warnings = c.WarningsAt(now)
		out.State, out.Reason = c.State(now)
		if h.rejected != "" {
			out.State, out.Reason = credential.Rejected, "Envoy rejects it: "+h.rejected
		}
	}
	switch {
	case h.err != nil:
		out.State, out.Reason = credential.StateOf(h.err), h.err.Error()
	case h.read != nil && h.read != h.served:
		out.State, out.Reason = h.read.State(now)
	default:
		return out
	}
	if h.served != nil {
		out.Reason += "; the last good one stays in use"
	}
	return out
}

// logCredential logs a change of state.
func (s *Server) logCredential(name string, h *held, is Credential) {
	if h.state == is.State {
		return
	}
	h.state = is.State
	if is.State == credential.Ready {
		s.log.Info("credential is ready", "name", name, "not_after", is.NotAfter)
		for _, w := range is.Warnings {
			s.log.Warn("credential has a problem", "name", name, "reason", w)
		}
		return
	}
	s.log.Warn("credential cannot be used: handshakes of servers that name it fail, unless it was good before", "name", name, "reason", is.Reason)
}

// credentialSecret is a credential as Envoy gets it.
func credentialSecret(name string, c *credential.Content) (*secret, error) {
	if c.Chain != nil {
		return newSecret(name, slices.Concat(c.Chain, c.Key), &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_TlsCertificate{
			TlsCertificate: &tlsv3.TlsCertificate{CertificateChain: inline(c.Chain), PrivateKey: inline(c.Key)},
		}})
	}
	v := &tlsv3.CertificateValidationContext{TrustedCa: inline(c.CA)}
	if c.Revoked != nil {
		v.Crl = inline(c.Revoked)
	}
	return newSecret(name, bytes.Join([][]byte{c.CA, c.Revoked}, []byte{0}), &tlsv3.Secret{Name: name, Type: &tlsv3.Secret_ValidationContext{ValidationContext: v}})
}

// reject records that Envoy rejects a secret.
func (s *Server) reject(name, version, reason string) {
	const most = 256
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[name]; f != nil && f.now != nil && f.now.version == version {
		f.held.rejected = safetext.Sanitize(reason, most)
	}
}

// Credentials are the credentials and certificates in files that Envoy has asked for, sorted by the
// name of the secret. The public roots of the host are among them only if something is wrong.
func (s *Server) Credentials() []Credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := wallclock.Now()
	var out []Credential
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[name]
		if !f.looked {
			continue
		}
		if c := f.held.report(name, now); name != SystemRoots || c.State != credential.Ready {
			out = append(out, c)
		}
	}
	return out
}

// Foremost is a list of credentials with those that are not ready first, and then those that end
// first.
func Foremost(list []Credential) []Credential {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Credential) int {
		switch ar, br := a.State == credential.Ready, b.State == credential.Ready; {
		case ar == br:
			return cmp.Or(a.NotAfter.Compare(b.NotAfter), strings.Compare(a.Name, b.Name))
		case br:
			return -1
		default:
			return 1
		}
	})
	return list
}

// refresh reads all files again, at intervals and after events in the folders of credentials.
// Events are a hint: links may lead elsewhere, and there may be too many watches.
func (s *Server) refresh(ctx context.Context) {
	var events chan fsnotify.Event
	var failures chan error
	w, err := fsnotify.NewWatcher()
	if err == nil {
		defer func() { _ = w.Close() }()
		events, failures = w.Events, w.Errors
	} else {
		s.log.WarnContext(ctx, "cannot watch the folders of credentials; they are read at intervals", "path", s.c.CredentialsDir, "err", err)
	}
	ticker := time.NewTicker(fileInterval)
	defer ticker.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	for pending := true; ; {
		select {
		case <-ticker.C:
			s.watch(w)
			s.refreshFiles()
		case <-settle.C:
			s.watch(w) // before the files are read: what is written after that is an event
			s.refreshCredentials()
			pending = false
		case <-events:
			if !pending {
				settle.Reset(settleTime)
				pending = true
			}
		case <-s.wanted:
			if !pending {
				settle.Reset(0)
				pending = true
			}
		case err := <-failures: // the next interval is soon
			s.log.DebugContext(ctx, "watching the folders of credentials failed", "err", err)
		case <-ctx.Done():
			return
		}
	}
}

// watch has all folders of credentials watched, and no others.
func (s *Server) watch(w *fsnotify.Watcher) {
	if w == nil || s.c.CredentialsDir == "" {
		return
	}
	d := credential.Directory{Path: s.c.CredentialsDir}
	want := map[string]bool{s.c.CredentialsDir: true}
	for _, name := range s.credentialNames() {
		for _, folder := range d.Folders(name) {
			want[folder] = true
		}
	}
	for _, dir := range w.WatchList() {
		if !want[dir] {
			_ = w.Remove(dir)
		}
	}
	for dir := range want {
		_ = w.Add(dir) // one that does not exist is found at the next interval
	}
}

func (s *Server) credentialNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for name := range s.files {
		if credential.IsSecret(name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

func (s *Server) refreshCredentials() {
	for _, name := range s.credentialNames() {
		s.refreshCredential(name)
	}
}

// limitFor is how many secrets of a kind all streams may want.
func limitFor(name string) (int, error) {
	if credential.IsSecret(name) {
		return maxCredentials, fmt.Errorf("more than %d secrets of credentials", maxCredentials)
	}
	return maxFiles, fmt.Errorf("more than %d secrets of files", maxFiles)
}
