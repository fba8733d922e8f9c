package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/mesh"
)

// outages keeps in a file which workloads are out, for [agents.Store].
type outages struct{ path string }

// outage is one workload in the file.
type outage struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"service_account"`
	Address        string `json:"address"`
	Reason         string `json:"reason"`
	Network        string `json:"network,omitempty"`
	// Workload is empty where all in the place are out that no other entry names.
	Workload string `json:"workload,omitempty"`
}

// maxOutages bounds the file, in bytes.
const maxOutages = 64 << 20

// Load implements [agents.Store].
func (o outages) Load() ([]mesh.HealthReport, error) {
	b, err := durable.ReadFile(o.path, maxOutages)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []outage
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("reading %q: %w", o.path, err)
	}
	out := make([]mesh.HealthReport, 0, len(list))
	for _, x := range list {
		out = append(out, mesh.HealthReport{
			ServiceAccount: mesh.ServiceAccount{Namespace: x.Namespace, Name: x.ServiceAccount},
			Network:        x.Network, Address: x.Address, Workload: x.Workload, Health: mesh.Unhealthy, Reason: x.Reason, Own: true,
		})
	}
	return out, nil
}

// Save implements [agents.Store].
func (o outages) Save(out []mesh.HealthReport) error {
	list := make([]outage, 0, len(out))
	for _, r := range out {
		list = append(list, outage{r.ServiceAccount.Namespace, r.ServiceAccount.Name, r.Address, r.Reason, r.Network, r.Workload})
	}
	b, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("encoding %q: %w", o.path, err)
	}
	return durable.WriteFile(durable.OS{}, o.path, b, 0o600)
}
