package proxyconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// dumped is a resource in any of the lists of a config_dump: each list has other fields.
type dumped struct {
	Name           string          `json:"name"`
	VersionInfo    string          `json:"version_info"`
	Cluster        json.RawMessage `json:"cluster"`
	EndpointConfig json.RawMessage `json:"endpoint_config"`
	Extension      json.RawMessage `json:"ecds_filter"`
	Listener       json.RawMessage `json:"listener"`
	RouteConfig    json.RawMessage `json:"route_config"`
	Secret         json.RawMessage `json:"secret"`
	ActiveState    *dumped         `json:"active_state"`
	WarmingState   *dumped         `json:"warming_state"`
	ErrorState     *struct {
		Details string `json:"details"`
	} `json:"error_state"`
}

// ErrNoDump means that a document is no config_dump.
var ErrNoDump = errors.New("this is no config_dump of Envoy: make one with `fairlead proxy-config all --agent-run-dir DIR -o dump`, or with /config_dump?include_eds of Envoy's admin interface")

// Read reads a config_dump of Envoy.
func Read(dump []byte) ([]Entry, error) {
	var whole struct {
		Configs []map[string]json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(bytes.TrimPrefix(dump, []byte("\xef\xbb\xbf")), &whole); err != nil {
		return nil, fmt.Errorf("%w (%w)", ErrNoDump, err)
	}
	if len(whole.Configs) == 0 {
		return nil, ErrNoDump
	}
	var out []Entry
	for _, config := range whole.Configs {
		if raw, ok := config[Bootstrap]; ok {
			out = append(out, Entry{Type: Bootstrap, Name: Bootstrap, Accepted: true, Resource: raw})
			continue
		}
		for _, list := range slices.Sorted(maps.Keys(config)) {
			if !strings.HasPrefix(list, "static_") && !strings.HasPrefix(list, "dynamic_") && list != "ecds_filters" {
				continue
			}
			var resources []dumped
			if err := json.Unmarshal(config[list], &resources); err != nil {
				return nil, fmt.Errorf("reading %s of the config_dump: %w", list, err)
			}
			for i := range resources {
				e, err := resources[i].entry(!strings.Contains(list, "warming"))
				if err != nil {
					return nil, err
				}
				if e.Type != "" {
					out = append(out, e)
				}
			}
		}
	}
	return out, nil
}

// entry is a resource as others have it; without a type for what nobody shows.
func (d *dumped) entry(active bool) (Entry, error) {
	state := d
	switch {
	case d.ActiveState != nil:
		state = d.ActiveState
	case d.WarmingState != nil:
		state, active = d.WarmingState, false
	}
	e := Entry{Name: d.Name, Version: state.VersionInfo, Accepted: active}
	if d.ErrorState != nil {
		e.Rejected = d.ErrorState.Details
	}
	for _, of := range []struct {
		name string
		raw  json.RawMessage
	}{{Cluster, state.Cluster}, {Endpoint, state.EndpointConfig}, {Extension, state.Extension}, {Listener, state.Listener}, {Route, state.RouteConfig}, {Secret, state.Secret}} {
		if of.raw == nil {
			continue
		}
		var named struct {
			Name        string `json:"name"`
			ClusterName string `json:"cluster_name"`
		}
		if err := json.Unmarshal(of.raw, &named); err != nil {
			return e, fmt.Errorf("reading a %s of the config_dump: %w", of.name, err)
		}
		e.Type, e.Name, e.Resource = of.name, cmp.Or(d.Name, named.Name, named.ClusterName), of.raw
	}
	if e.Type != Secret {
		return e, nil
	}
	var err error
	e.Resource, err = publicOf(e.Resource)
	return e, err
}

// AddHealth adds to endpoints what Envoy's /clusters?format=json says of them.
func AddHealth(entries []Entry, answer []byte) error {
	var hosts struct {
		Clusters []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket *struct {
						Address string      `json:"address"`
						Port    json.Number `json:"port_value"`
					} `json:"socket_address"`
					Pipe *struct {
						Path string `json:"path"`
					} `json:"pipe"`
				} `json:"address"`
				Health struct {
					EDS          string `json:"eds_health_status"`
					FailedActive bool   `json:"failed_active_health_check"`
					Ejected      bool   `json:"failed_outlier_check"`
				} `json:"health_status"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal(answer, &hosts); err != nil {
		return fmt.Errorf("reading the list of clusters of Envoy: %w", err)
	}
	health := map[string]map[string]HostHealth{}
	for _, c := range hosts.Clusters {
		health[c.Name] = map[string]HostHealth{}
		for _, h := range c.Hosts {
			at := ""
			switch {
			case h.Address.Socket != nil && strings.Contains(h.Address.Socket.Address, ":"):
				at = "[" + h.Address.Socket.Address + "]:" + h.Address.Socket.Port.String()
			case h.Address.Socket != nil:
				at = h.Address.Socket.Address + ":" + h.Address.Socket.Port.String()
			case h.Address.Pipe != nil:
				at = h.Address.Pipe.Path
			}
			status := h.Health.EDS
			if h.Health.FailedActive {
				status = "UNHEALTHY"
			}
			health[c.Name][at] = HostHealth{Status: status, Ejected: h.Health.Ejected}
		}
	}
	for i := range entries {
		if entries[i].Type == Endpoint {
			entries[i].Health = health[entries[i].Name]
		}
	}
	return nil
}
