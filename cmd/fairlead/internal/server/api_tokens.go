package server

import (
	"context"
	"net/http"
	"time"

	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
)

// TokenStatus is what is on record of a join token. The secret is not.
type TokenStatus struct {
	ID        string   `json:"id"`
	Host      string   `json:"host"`
	Workloads []string `json:"workloads"` // NAMESPACE/SERVICEACCOUNT
	Type      string   `json:"type"`
	Direct    bool     `json:"direct,omitempty"`
	Replace   bool     `json:"replace,omitempty"`
	// Addresses are those that the token proves to be the host's.
	Addresses []string  `json:"addresses,omitempty"`
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	// State is unused, used or expired.
	State string    `json:"state"`
	Used  time.Time `json:"used,omitzero"`
	// Fault is what could not be read of its record.
	Fault string `json:"fault,omitempty"`
}

func tokenStatus(r jointoken.Record) TokenStatus {
	out := TokenStatus{
		ID: r.ID(), Host: r.Grant.Host, Workloads: pairNames(r.Grant.Pairs), Type: r.Grant.Type, Direct: r.Grant.Direct,
		Replace: r.Grant.Replace, Created: r.Created, Expires: r.Expires, State: r.State(wallclock.Now()),
	}
	if r.Use != nil {
		out.Used = r.Use.At
	}
	return out
}

func (s *Server) listTokens(context.Context, *http.Request, struct{}) ([]TokenStatus, error) {
	out := []TokenStatus{}
	for _, r := range s.entitled.Tokens() {
		t := tokenStatus(r)
		addresses, err := s.entitled.TokenAddresses(r)
		if err != nil {
			t.Fault = err.Error()
		}
		t.Addresses = addressNames(addresses)
		out = append(out, t)
	}
	return out, nil
}

func (s *Server) revokeToken(_ context.Context, r *http.Request, _ struct{}) (TokenStatus, error) {
	record, err := s.entitled.RevokeToken(r.PathValue("id"))
	if err != nil {
		return TokenStatus{}, err
	}
	return tokenStatus(record), nil
}
