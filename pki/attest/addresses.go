package attest

import (
	"cmp"
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

// Address is where a workload of a host is, by the host's token.
type Address struct {
	IP netip.Addr
	// InNetwork says that it is the address of Network alone, which is empty for
	// workloads that name none. Otherwise the token says nothing of networks.
	InNetwork bool
	Network   string
}

// maxNetwork bounds the name of a network, in bytes.
const maxNetwork = 256

// ParseAddress reads ADDRESS or NETWORK/ADDRESS.
func ParseAddress(text string) (Address, error) {
	network, ip, qualified := "", text, false
	if i := strings.LastIndexByte(text, '/'); i >= 0 {
		network, ip, qualified = text[:i], text[i+1:], true
	}
	a, err := netip.ParseAddr(ip)
	if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return Address{}, fmt.Errorf("address %.80q: write the IP address of a workload without a port, as ADDRESS or NETWORK/ADDRESS", text)
	}
	if len(network) > maxNetwork || strings.ContainsFunc(network, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
		return Address{}, fmt.Errorf("address %.80q: the name of its network is too long, or has spaces or control characters", text)
	}
	return Address{IP: a.Unmap(), InNetwork: qualified, Network: network}, nil
}

// String is what [ParseAddress] reads.
func (a Address) String() string {
	if a.InNetwork {
		return a.Network + "/" + a.IP.String()
	}
	return a.IP.String()
}

// MarshalText implements [encoding.TextMarshaler].
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (a *Address) UnmarshalText(text []byte) (err error) {
	*a, err = ParseAddress(string(text))
	return err
}

// Compare puts addresses in order.
func (a Address) Compare(b Address) int {
	return cmp.Or(a.IP.Compare(b.IP), cmp.Compare(a.String(), b.String()))
}

// recorded is how addresses are on disk. Those with a network are in a field that
// earlier releases do not read: to them such an address proves nothing.
type recorded struct {
	Addresses  []netip.Addr `json:"addresses,omitempty"`
	InNetworks []Address    `json:"addresses_in_networks,omitempty"`
}

func record(list []Address) (out recorded) {
	for _, a := range list {
		if a.InNetwork {
			out.InNetworks = append(out.InNetworks, a)
		} else {
			out.Addresses = append(out.Addresses, a.IP)
		}
	}
	return out
}

func (r recorded) list() (out []Address) {
	for _, ip := range r.Addresses {
		out = append(out, Address{IP: ip})
	}
	return append(out, r.InNetworks...)
}

// addressFile is the content of a file.
type addressFile struct {
	// Binding is that of the host; a record of another one means nothing. Of a token
	// it is empty.
	Binding *profile.Binding `json:"binding,omitempty"`

	recorded
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
func (s addressStore) put(file string, addresses []Address) error {
	if len(addresses) > MaxAddresses {
		return fmt.Errorf("a token for %d addresses: %d at most", len(addresses), MaxAddresses)
	}
	return s.write(file, addressFile{recorded: record(addresses)})
}

func (s addressStore) remove(file string) error {
	path := filepath.Join(s.dir, file)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return durable.Remove(s.fsys, path)
}

// ofHost are the addresses that a host's token named.
func (s addressStore) ofHost(h Host) ([]Address, error) {
	f, err := s.read(hostFile(h.Name))
	if err != nil || f.Binding == nil || *f.Binding != h.Binding {
		return nil, err
	}
	return f.list(), nil
}

// redeem makes the addresses of a token those of a host.
func (s addressStore) redeem(token jointoken.Hash, h Host) ([]Address, error) {
	f, err := s.read(tokenFile(token))
	if err != nil {
		return nil, err
	}
	list := f.list()
	if len(list) == 0 {
		return nil, s.remove(hostFile(h.Name))
	}
	return list, s.SetHost(h.Name, h.Binding, list)
}

// SetHost records the addresses of a host.
func (s addressStore) SetHost(name string, b profile.Binding, addresses []Address) error {
	return s.write(hostFile(name), addressFile{Binding: &b, recorded: record(addresses)})
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
