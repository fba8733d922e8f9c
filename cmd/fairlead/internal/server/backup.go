package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/attest"
	"github.com/fairlead/fairlead/pki/profile"
)

// maxImport bounds the file of exported hosts, in bytes.
const maxImport = 256 << 20

// ImportRequest brings exported hosts back.
type ImportRequest struct {
	Document attest.Document `json:"document"`
	// Overwrite: where the document differs from what is on record, it counts.
	Overwrite bool `json:"overwrite,omitempty"`
}

func (s *Server) exportHosts(context.Context, *http.Request, struct{}) (attest.Document, error) {
	pin, err := s.authority.Pin()
	if err != nil {
		return attest.Document{}, err
	}
	return s.entitled.Export(s.authority.TrustDomain(), pin, wallclock.Now()), nil
}

func (s *Server) importHosts(ctx context.Context, _ *http.Request, in ImportRequest) (attest.Imported, error) {
	pin, err := s.authority.Pin()
	if err != nil {
		return attest.Imported{}, err
	}
	out, err := s.entitled.Import(in.Document, s.authority.TrustDomain(), pin, in.Overwrite, wallclock.Now())
	if err == nil {
		s.cfg.Logger.InfoContext(ctx, "hosts imported", "count", len(out.Added)+len(out.Replaced))
	}
	return out, err
}

// readopt reads the settings by which hosts are admitted whose records are lost.
func (c Config) readopt(now time.Time) (out attest.Readopt, err error) {
	switch {
	case c.ReadoptUntil == "" && c.ReadoptRemoved == "":
		return out, nil
	case c.ReadoptUntil == "" || c.ReadoptRemoved == "":
		return out, errors.New("--readopt-until and --readopt-removed go together: the file names the hosts that were removed lately, one a line; " +
			"an empty one says that there were none")
	}
	if out.Until, err = time.Parse(time.RFC3339, c.ReadoptUntil); err != nil {
		return out, fmt.Errorf("--readopt-until %q: write a time such as %s", c.ReadoptUntil, now.Add(24*time.Hour).UTC().Format(time.RFC3339))
	}
	if out.Until.Sub(now) > attest.MaxReadopt {
		return out, fmt.Errorf("--readopt-until %s: it is for a repair: at most %d days from now", c.ReadoptUntil, attest.MaxReadopt/(24*time.Hour))
	}
	content, err := os.ReadFile(c.ReadoptRemoved)
	if err != nil {
		return out, fmt.Errorf("--readopt-removed: %w", err)
	}
	for line := range strings.Lines(string(content)) {
		name, _, _ := strings.Cut(line, "#")
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		err := profile.CheckHostName(name)
		if strings.Contains(name, "/") {
			_, err = profile.ParsePair(name)
		}
		if err != nil {
			return out, fmt.Errorf("--readopt-removed %s: write one name of a host, or the NAMESPACE/SERVICEACCOUNT of a direct client, a line: %w", c.ReadoptRemoved, err)
		}
		out.Removed = append(out.Removed, name)
	}
	slices.Sort(out.Removed)
	return out, nil
}
