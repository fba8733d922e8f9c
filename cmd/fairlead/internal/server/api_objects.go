package server

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"slices"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Object is a service or a workload that is in force.
type Object struct {
	// Key is "Kind namespace/name".
	Key string `json:"key"`
	// Host is the host name of a service, Address that of a workload.
	Host    string `json:"host,omitempty"`
	Address string `json:"address,omitempty"`
	// Hash is that of the content. Equal content has an equal hash in every server.
	Hash string `json:"hash"`
	// Unhealthy says that a workload takes no traffic, whoever said so.
	Unhealthy bool `json:"unhealthy,omitempty"`
	// Silent says that the agent of a workload is: it takes traffic where no other does.
	Silent bool   `json:"silent,omitempty"`
	Origin string `json:"origin"`
}

// objects lists the services and workloads of a source that are in force, what
// is held back of them included.
func (s *Server) objects(_ context.Context, r *http.Request, _ struct{}) ([]Object, error) {
	name := r.URL.Query().Get("source")
	known := func(st registry.SourceStatus) bool { return st.Name == name }
	if !slices.ContainsFunc(s.registry.Status().Sources, known) {
		return nil, fmt.Errorf("source %q: %w", name, fs.ErrNotExist)
	}
	out := []Object{}
	now := s.registry.Snapshot()
	if now == nil {
		return out, nil
	}
	add := func(m *mesh.Meta, o Object) {
		if m.Origin != nil && m.Origin.Source == name {
			o.Key, o.Hash, o.Origin = m.String(), m.Hash.String(), m.Origin.String()
			out = append(out, o)
		}
	}
	for _, svc := range now.Services {
		add(&svc.Meta, Object{Host: string(svc.Hostname)})
	}
	for _, w := range now.Workloads {
		add(&w.Meta, Object{Address: w.Address, Unhealthy: w.Health == mesh.Unhealthy, Silent: w.Health == mesh.Silent})
	}
	return out, nil
}
