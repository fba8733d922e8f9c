package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/fairlead/fairlead/pki/attest"
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
func parseAddresses(texts []string) ([]attest.Address, error) {
	var out []attest.Address
	for _, text := range texts {
		a, err := attest.ParseAddress(text)
		if err != nil {
			return nil, fmt.Errorf("--address: %w", err)
		}
		out = append(out, a)
	}
	slices.SortFunc(out, attest.Address.Compare)
	return slices.Compact(out), nil
}

func addressNames(list []attest.Address) []string {
	out := make([]string, 0, len(list))
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
