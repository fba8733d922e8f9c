package attest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
)

const (
	maxHostFile = 64 << 10
	hostSuffix  = ".json"
)

// hostStore keeps one file a host: joining costs the same however many there are.
type hostStore struct {
	dir  string
	fsys durable.FS
}

// load gives every host. A record that cannot be read is a host with a Fault: its
// name stays taken, because giving it to another would be worse than refusing it.
func (s hostStore) load() ([]Host, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("reading directory %q: %w", s.dir, err)
	}
	var out []Host
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), hostSuffix)
		if !ok || profile.CheckHostName(name) != nil {
			continue
		}
		h, err := s.read(name)
		if err != nil {
			h = Host{Name: name, Fault: err.Error()}
		}
		out = append(out, h)
	}
	return out, nil
}

func (s hostStore) read(name string) (Host, error) {
	path := s.path(name)
	data, err := durable.ReadFile(path, maxHostFile)
	if err != nil {
		return Host{}, err
	}
	var h Host
	if err := json.Unmarshal(data, &h); err != nil {
		return Host{}, fmt.Errorf("reading %q: %w", path, err)
	}
	if h.Name != name {
		return Host{}, fmt.Errorf("reading %q: it is the record of host %q", path, h.Name)
	}
	if err := h.check(); err != nil {
		return Host{}, fmt.Errorf("reading %q: %w", path, err)
	}
	return h, nil
}

func (s hostStore) put(h Host) error {
	data, err := json.MarshalIndent(h, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the record of host %q: %w", h.Name, err)
	}
	return durable.WriteFile(s.fsys, s.path(h.Name), append(data, '\n'), 0o600)
}

func (s hostStore) remove(name string) error { return durable.Remove(s.fsys, s.path(name)) }

func (s hostStore) path(name string) string { return filepath.Join(s.dir, name+hostSuffix) }

func (h Host) grant() jointoken.Grant {
	return jointoken.Grant{Host: h.Name, Pairs: h.Pairs, Type: h.Type, Direct: h.Direct}
}
