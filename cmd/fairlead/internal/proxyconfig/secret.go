package proxyconfig

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/internal/wallclock"
)

// certificate is all that is read of a secret: nothing of it is secret.
type certificate struct {
	Kind      string    `json:"kind"`
	Serial    string    `json:"serial,omitempty"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	NotBefore time.Time `json:"not_before,omitzero"`
	// Identity is the SPIFFE ID, or the subject of a certificate without one.
	Identity string `json:"identity,omitempty"`
	Valid    bool   `json:"valid"`
	Fault    string `json:"fault,omitempty"`
}

// secret has the fields of a Secret that are public, and no other.
type secret struct {
	Name           string `json:"name"`
	TLSCertificate *struct {
		Chain *source `json:"certificate_chain"`
	} `json:"tls_certificate"`
	Context *struct {
		TrustedCA *source `json:"trusted_ca"`
		Custom    struct {
			Config struct {
				Domains []struct {
					Name   string  `json:"name"`
					Bundle *source `json:"trust_bundle"`
				} `json:"trust_domains"`
			} `json:"typed_config"`
		} `json:"custom_validator_config"`
	} `json:"validation_context"`
	Tickets json.RawMessage `json:"session_ticket_keys"`
	Generic json.RawMessage `json:"generic_secret"`
}

// source is a DataSource.
type source struct {
	Bytes    []byte `json:"inline_bytes"`
	Text     string `json:"inline_string"`
	Filename string `json:"filename"`
}

// publicOf is what is public of a secret, as the JSON that stands for it.
func publicOf(raw json.RawMessage) (json.RawMessage, error) {
	var s secret
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, errors.New("reading a secret: it has not the form of Envoy's secrets") // the cause may quote it
	}
	var list []certificate
	switch {
	case s.TLSCertificate != nil:
		list = certificates("Cert Chain", s.TLSCertificate.Chain)
	case s.Context != nil:
		for _, d := range s.Context.Custom.Config.Domains {
			list = append(list, certificates("CA of "+d.Name, d.Bundle)...)
		}
		if s.Context.TrustedCA != nil || list == nil {
			list = append(list, certificates("CA", s.Context.TrustedCA)...)
		}
	case s.Tickets != nil:
		list = []certificate{{Kind: "Session Ticket Keys"}}
	case s.Generic != nil:
		list = []certificate{{Kind: "Generic Secret"}}
	}
	return json.Marshal(map[string]any{"name": s.Name, "certificates": list})
}

// certificates are those in a text of PEM. Nothing else of it is looked at.
func certificates(kind string, from *source) (list []certificate) {
	if from == nil {
		from = &source{}
	}
	if from.Filename != "" {
		return []certificate{{Kind: kind, Fault: "in the file " + from.Filename}}
	}
	rest := slices.Concat(from.Bytes, []byte(from.Text))
	now := wallclock.Now()
	for block, rest := pem.Decode(rest); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			list = append(list, certificate{Kind: kind, Fault: "not a certificate"})
			continue
		}
		identity := c.Subject.String()
		if len(c.URIs) > 0 {
			identity = c.URIs[0].String()
		}
		list = append(list, certificate{
			Kind: kind, Serial: c.SerialNumber.Text(16), NotAfter: c.NotAfter, NotBefore: c.NotBefore, Identity: identity,
			Valid: !now.Before(c.NotBefore) && !now.After(c.NotAfter),
		})
	}
	if len(list) == 0 {
		return []certificate{{Kind: kind, Fault: "no certificate"}}
	}
	return list
}

func secretRows(e *Entry) (rows [][]string, _ error) {
	var s struct {
		Certificates []certificate `json:"certificates"`
	}
	if e.empty() {
		return nil, nil
	}
	if err := json.Unmarshal(e.Resource, &s); err != nil {
		return nil, fmt.Errorf("reading secret %q: %w", e.Name, err)
	}
	status := "ACTIVE"
	if !e.Accepted {
		status = "WARMING"
	}
	stamp := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339)
	}
	for _, c := range s.Certificates {
		valid, identity := strconv.FormatBool(c.Valid), c.Identity
		if c.Serial == "" {
			valid, identity = "", c.Fault
		}
		rows = append(rows, []string{e.Name, c.Kind, status, valid, c.Serial, stamp(c.NotAfter), stamp(c.NotBefore), identity})
	}
	if len(rows) == 0 {
		rows = [][]string{{e.Name, "", status, "", "", "", "", ""}}
	}
	return rows, nil
}
