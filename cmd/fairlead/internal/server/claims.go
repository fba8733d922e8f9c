package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/agents"
)

// claims keeps in a file which host a workload is of, for [agents.ClaimStore]. It is
// a file of its own: servers that do not know of it leave it alone.
type claims struct{ path string }

// maxClaims bounds the file, in bytes.
const maxClaims = 64 << 20

// LoadClaims implements [agents.ClaimStore].
func (c claims) LoadClaims() (out agents.SavedClaims, err error) {
	b, err := durable.ReadFile(c.path, maxClaims)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(b, &out); err != nil {
		return agents.SavedClaims{}, fmt.Errorf("reading %q: %w", c.path, err)
	}
	return out, nil
}

// SaveClaims implements [agents.ClaimStore].
func (c claims) SaveClaims(list agents.SavedClaims) error {
	b, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encoding %q: %w", c.path, err)
	}
	return durable.WriteFile(durable.OS{}, c.path, append(b, '\n'), 0o600)
}

// parseAddresses reads the addresses of a token.
func parseAddresses(texts []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return nil, fmt.Errorf("--address %q: write the IP address of a workload, without a port", text)
		}
		out = append(out, a.Unmap())
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out), nil
}

func addressNames(list []netip.Addr) []string {
	out := make([]string, 0, len(list))
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
