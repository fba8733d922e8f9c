package relay

import (
	"time"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// Status is what a relay does at one moment, for people. Read-only.
type Status struct {
	// Envoy is what is reported upstream of the Envoy below.
	Envoy    bootstrap.EnvoyState `json:"envoy"`
	Envoys   []EnvoyStatus        `json:"envoys"`
	Upstream UpstreamStatus       `json:"upstream"`
	// Types are what Envoy has, by type.
	Types []TypeStatus `json:"types"`
	// Rejected are the resources that Envoy refuses.
	Rejected []Rejection `json:"rejected,omitempty"`
	// Generation is the server's name for what Envoy accepted last, and
	// AcceptedAt is when; from the store before anything was accepted.
	Generation string    `json:"generation"`
	AcceptedAt time.Time `json:"accepted_at"`
	// Held counts updates that Envoy has not yet answered for.
	Held int `json:"held"`
}

// EnvoyStatus is one connected Envoy.
type EnvoyStatus struct {
	Version string    `json:"version"`
	Since   time.Time `json:"since"`
	Live    bool      `json:"live"`
	Newest  bool      `json:"newest"`
}

// UpstreamStatus is the connection to a server.
type UpstreamStatus struct {
	// Server is the one that is connected, or empty.
	Server string `json:"server"`
	// Since is when it was connected, or lost.
	Since time.Time `json:"since"`
	// LastError is why the last connection or attempt ended, or empty.
	LastError string `json:"last_error,omitempty"`
}

// TypeStatus counts resources of a type.
type TypeStatus struct {
	Type     stream.TypeURL `json:"type"`
	Accepted int            `json:"accepted"`
	Offered  int            `json:"offered"`
}

// Rejection is one resource that Envoy refuses.
type Rejection struct {
	Type    stream.TypeURL `json:"type"`
	Name    string         `json:"name"`
	Version string         `json:"version"`
	Reason  string         `json:"reason"`
}
