package bootstrap

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Credentials are what an agent reports of the credentials that its Envoy has asked for: names,
// states and ends, and nothing of their content.
type Credentials struct {
	// Total is how many there are, NotReady how many of them are not ready.
	Total    int `json:"total"`
	NotReady int `json:"not_ready,omitempty"`
	// List has the first few: those that are not ready, then those that end first.
	List []Credential `json:"list,omitempty"`
	// Problems are what else is wrong on the host so that requests fail, or will. They are no credentials;
	// earlier servers read what an agent reports only here, and take fields that they do not know.
	Problems []string `json:"problems,omitempty"`
}

// SetProblems adds what is wrong on the host, the first few.
func (c *Credentials) SetProblems(list []string) {
	c.Problems = nil
	for _, p := range list[:min(len(list), maxProblems)] {
		c.Problems = append(c.Problems, cut(p, maxProblem))
	}
}

// Credential is one certificate, or the authorities, of a credential.
type Credential struct {
	// Name is that of the folder; that of authorities ends in -cacert.
	Name string `json:"name"`
	// State is "ready", or what is wrong.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Served says that Envoy has one: if it is not ready, the last good one.
	Served   bool      `json:"served,omitempty"`
	NotAfter time.Time `json:"not_after,omitzero"`
}

// CredentialReady is the state of a credential of which nothing is wrong.
const CredentialReady = "ready"

// Limits of a report: the server keeps one for each stream.
const (
	maxCredentials       = 32
	maxCredentialName    = 253
	maxCredentialReason  = 160
	maxCredentialState   = 16
	maxProblems          = 8
	maxProblem           = 512
	maxCredentialsReport = 32 << 10 // bytes
)

// ReportCredentials makes the report of a list.
func ReportCredentials(list []Credential) Credentials {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Credential) int {
		if ar, br := a.State == CredentialReady, b.State == CredentialReady; ar != br {
			if br {
				return -1
			}
			return 1
		}
		return cmp.Or(a.NotAfter.Compare(b.NotAfter), strings.Compare(a.Name, b.Name))
	})
	out := Credentials{Total: len(list)}
	for i, c := range list {
		if c.State != CredentialReady {
			out.NotReady++
		}
		if i < maxCredentials {
			c.Name, c.State, c.Reason = cut(c.Name, maxCredentialName), cut(c.State, maxCredentialState), cut(c.Reason, maxCredentialReason)
			c.NotAfter = c.NotAfter.UTC().Truncate(time.Second)
			out.List = append(out.List, c)
		}
	}
	return out
}

// Equal reports whether two reports say the same.
func (c *Credentials) Equal(o *Credentials) bool {
	return c.Total == o.Total && c.NotReady == o.NotReady && slices.Equal(c.Problems, o.Problems) && slices.EqualFunc(c.List, o.List, func(a, b Credential) bool {
		return a.Name == b.Name && a.State == b.State && a.Reason == b.Reason && a.Served == b.Served && a.NotAfter.Equal(b.NotAfter)
	})
}

// Encode is the report as [ParseCredentials] reads it.
func (c *Credentials) Encode() (string, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("encoding the report of credentials: %w", err)
	}
	return string(b), nil
}

// ParseCredentials reads the report of an agent. What is beyond the limits is an error; what
// cannot be seen is left out of its texts.
func ParseCredentials(text string) (*Credentials, error) {
	if len(text) > maxCredentialsReport {
		return nil, fmt.Errorf("reading the report of credentials: it has %d bytes, at most %d are allowed", len(text), maxCredentialsReport)
	}
	c := &Credentials{}
	if err := json.Unmarshal([]byte(text), c); err != nil {
		return nil, fmt.Errorf("reading the report of credentials: %w", err)
	}
	if len(c.List) > maxCredentials || c.Total < len(c.List) || c.NotReady < 0 || c.NotReady > c.Total {
		return nil, fmt.Errorf("reading the report of credentials: it lists %d of %d, of which %d are not ready", len(c.List), c.Total, c.NotReady)
	}
	c.SetProblems(c.Problems)
	for i := range c.List {
		x := &c.List[i]
		x.Name, x.State, x.Reason = cut(x.Name, maxCredentialName), cut(x.State, maxCredentialState), cut(x.Reason, maxCredentialReason)
	}
	return c, nil
}

// cut is the beginning of a text, without what cannot be seen.
func cut(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, s)
	for len(s) > most {
		_, size := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-size]
	}
	return strings.Clone(s)
}
