package consul

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"

	"github.com/hashicorp/consul/api"
)

// entry has the fields of a health entry that package mapping reads, and none that
// changes by itself, such as the output of a check. Its JSON is Consul's, and that of
// the state directory.
type entry struct {
	Node    *entryNode
	Service *entryService
	Checks  []entryCheck
}

type entryNode struct {
	ID              string `json:",omitempty"`
	Node            string
	Address         string
	Datacenter      string            `json:",omitempty"`
	TaggedAddresses map[string]string `json:",omitempty"`
	Meta            map[string]string `json:",omitempty"`
	Partition       string            `json:",omitempty"`
	PeerName        string            `json:",omitempty"`
	Locality        *api.Locality     `json:",omitempty"`
}

type entryService struct {
	Kind            api.ServiceKind `json:",omitempty"`
	ID              string
	Service         string
	Tags            []string                      `json:",omitempty"`
	Meta            map[string]string             `json:",omitempty"`
	Port            int                           `json:",omitempty"`
	Ports           api.ServicePorts              `json:",omitempty"`
	Address         string                        `json:",omitempty"`
	SocketPath      string                        `json:",omitempty"`
	TaggedAddresses map[string]api.ServiceAddress `json:",omitempty"`
	Weights         api.AgentWeights
	Connect         *entryConnect `json:",omitempty"`
	PeerName        string        `json:",omitempty"`
	Namespace       string        `json:",omitempty"`
	Partition       string        `json:",omitempty"`
	Locality        *api.Locality `json:",omitempty"`
}

type entryConnect struct {
	Native bool `json:",omitempty"`
}

type entryCheck struct {
	CheckID   string
	Name      string `json:",omitempty"`
	Status    string
	ServiceID string `json:",omitempty"`
}

// key identifies an entry within its service.
func (e *entry) key() string {
	return e.Node.Partition + "\x00" + e.Node.Node + "\x00" + e.Service.ID
}

// sortEntries sorts the entries of an answer: Consul shuffles them.
func sortEntries(list []*entry) ([]*entry, error) {
	for _, e := range list {
		if e == nil || e.Node == nil || e.Service == nil {
			return nil, errors.New("reading Consul's answer: an entry has no node or no service")
		}
		slices.SortFunc(e.Checks, func(a, b entryCheck) int { return cmp.Compare(a.CheckID, b.CheckID) })
	}
	slices.SortFunc(list, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.Node.Partition, b.Node.Partition), cmp.Compare(a.Node.Node, b.Node.Node),
			cmp.Compare(a.Service.ID, b.Service.ID))
	})
	return list, nil
}

// decodeEntries reads what encodeEntries wrote.
func decodeEntries(raw []byte) ([]*entry, error) {
	var list []*entry
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, err
	}
	return sortEntries(list)
}

// encodeEntries writes entries that are in order: equal entries give equal bytes.
func encodeEntries(list []*entry) ([]byte, error) {
	if len(list) == 0 {
		return nil, nil
	}
	return json.Marshal(list)
}

// checkStatus is a check that does not pass.
type checkStatus struct{ node, check, status string }

// failing are the checks of the entries that do not pass, each once.
func failing(list []*entry) []checkStatus {
	var out []checkStatus
	seen := map[checkStatus]bool{}
	for _, e := range list {
		for _, c := range e.Checks {
			x := checkStatus{e.Node.Node, c.CheckID, c.Status}
			if c.Status != api.HealthPassing && !seen[x] {
				seen[x] = true
				out = append(out, x)
			}
		}
	}
	return out
}

// nodeNames are the nodes of the entries, sorted, each once.
func nodeNames(list []*entry) []string {
	out := make([]string, 0, len(list))
	for _, e := range list {
		out = append(out, e.Node.Node)
	}
	slices.Sort(out)
	return slices.Clip(slices.Compact(out))
}

// toAPI converts entries to those of Consul's package api.
func toAPI(list []*entry) []*api.ServiceEntry {
	out := make([]*api.ServiceEntry, len(list))
	for i, e := range list {
		n, s := e.Node, e.Service
		x := &api.ServiceEntry{
			Node: &api.Node{
				ID: n.ID, Node: n.Node, Address: n.Address, Datacenter: n.Datacenter, TaggedAddresses: n.TaggedAddresses,
				Meta: n.Meta, Partition: n.Partition, PeerName: n.PeerName, Locality: n.Locality,
			},
			Service: &api.AgentService{
				Kind: s.Kind, ID: s.ID, Service: s.Service, Tags: s.Tags, Meta: s.Meta, Port: s.Port, Ports: s.Ports,
				Address: s.Address, SocketPath: s.SocketPath, TaggedAddresses: s.TaggedAddresses, Weights: s.Weights,
				PeerName: s.PeerName, Namespace: s.Namespace, Partition: s.Partition, Locality: s.Locality,
			},
			Checks: make(api.HealthChecks, len(e.Checks)),
		}
		if s.Connect != nil && s.Connect.Native {
			x.Service.Connect = &api.AgentServiceConnect{Native: true}
		}
		for j, c := range e.Checks {
			x.Checks[j] = &api.HealthCheck{Node: n.Node, CheckID: c.CheckID, Name: c.Name, Status: c.Status, ServiceID: c.ServiceID}
		}
		out[i] = x
	}
	return out
}
