package attest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/profile"
)

// maxAddressFile bounds a file, in bytes, and MaxAddresses what a token may name.
const (
	maxAddressFile = 16 << 10
	MaxAddresses   = 64
)

// addressStore keeps which addresses a token names: by token until it is redeemed,
// by host from then on. They are apart from the records of tokens and hosts, which
// other releases read and write.
type addressStore struct {
	dir  string
	fsys durable.FS
}

// addressFile is the content of a file.
type addressFile struct {
	// Binding is that of the host; a record of another one means nothing. Of a token
	// it is empty.
	Binding   *profile.Binding `json:"binding,omitempty"`
	Addresses []netip.Addr     `json:"addresses"`
}

func newAddressStore(dir string, fsys durable.FS) (addressStore, error) {
	return addressStore{dir: dir, fsys: fsys}, durable.MakeDir(dir)
}

const tokenPrefix, addressSuffix = "token-", ".json"

func tokenFile(h jointoken.Hash) string { return tokenPrefix + h.String() + addressSuffix }

func hostFile(name string) string { return "host-" + name + addressSuffix }

func (s addressStore) read(file string) (out addressFile, err error) {
	path := filepath.Join(s.dir, file)
	b, err := durable.ReadFile(path, maxAddressFile)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return addressFile{}, fmt.Errorf("reading %q: %w", path, err)
	}
	return out, nil
}

func (s addressStore) write(file string, content addressFile) error {
	b, err := json.Marshal(content)
	if err != nil {
		return fmt.Errorf("encoding %q: %w", file, err)
	}
	return durable.WriteFile(s.fsys, filepath.Join(s.dir, file), append(b, '\n'), 0o600)
}

// put writes the addresses of a token.
func (s addressStore) put(file string, addresses []netip.Addr) error {
	if len(addresses) > MaxAddresses {
		return fmt.Errorf("a token for %d addresses: %d at most", len(addresses), MaxAddresses)
	}
	return s.write(file, addressFile{Addresses: addresses})
}

func (s addressStore) remove(file string) error {
	path := filepath.Join(s.dir, file)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return durable.Remove(s.fsys, path)
}

// ofHost are the addresses that a host's token named.
func (s addressStore) ofHost(h Host) ([]netip.Addr, error) {
	f, err := s.read(hostFile(h.Name))
	if err != nil || f.Binding == nil || *f.Binding != h.Binding {
		return nil, err
	}
	return f.Addresses, nil
}

// redeem makes the addresses of a token those of a host.
func (s addressStore) redeem(token jointoken.Hash, h Host) ([]netip.Addr, error) {
	f, err := s.read(tokenFile(token))
	if err != nil {
		return nil, err
	}
	if len(f.Addresses) == 0 {
		return nil, s.remove(hostFile(h.Name))
	}
	return f.Addresses, s.SetHost(h.Name, h.Binding, f.Addresses)
}

// SetHost records the addresses of a host.
func (s addressStore) SetHost(name string, b profile.Binding, addresses []netip.Addr) error {
	return s.write(hostFile(name), addressFile{Binding: &b, Addresses: addresses})
}

// sweep removes the files of tokens that are not kept any more.
func (s addressStore) sweep(tokens []jointoken.Record) {
	kept := make(map[string]bool, len(tokens))
	for _, t := range tokens {
		kept[tokenFile(t.Hash)] = true
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return // the next write tells
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), tokenPrefix) && !kept[e.Name()] {
			_ = s.remove(e.Name()) // it means nothing; the next sweep tries again
		}
	}
}
