package picture

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/hashicorp/consul/api"
)

// Key names a service of a datacenter. Namespace and Partition are empty where
// Consul has none.
type Key struct {
	Service   string `json:"service"`
	Namespace string `json:"namespace,omitempty"`
	Partition string `json:"partition,omitempty"`
}

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Partition, o.Partition), cmp.Compare(k.Namespace, o.Namespace), cmp.Compare(k.Service, o.Service))
}

// Service is what Consul said of one.
type Service struct {
	// Protocol is Connect's default for it; empty means none.
	Protocol string
	// Entries are its instances. The output of checks, which may have secrets in
	// it, and what changes without a meaning, are not kept.
	Entries []*api.ServiceEntry
}

// Picture is a whole catalog.
type Picture struct {
	// Read is when it was last known to be Consul's.
	Read     time.Time
	Services map[Key]Service
}

// Config says where a Store is.
type Config struct {
	// Dir is the directory; it is made if it is not there. Required.
	Dir string
	// Of says what the picture is of, such as the datacenter and the filter. A
	// picture of something else counts as none.
	Of string
	// WriteEvery is the least time between two writes of changes; 0 means 5 s.
	WriteEvery time.Duration
	// Logger is required.
	Logger *slog.Logger
}

// slim is an entry as it is kept.
func slim(e *api.ServiceEntry) *api.ServiceEntry {
	out := &api.ServiceEntry{}
	if e.Node != nil {
		node := *e.Node
		node.CreateIndex, node.ModifyIndex = 0, 0
		out.Node = &node
	}
	if e.Service != nil {
		svc := *e.Service
		svc.CreateIndex, svc.ModifyIndex, svc.ContentHash = 0, 0, ""
		svc.Proxy = nil
		if svc.Connect != nil {
			svc.Connect = &api.AgentServiceConnect{Native: svc.Connect.Native}
		}
		out.Service = &svc
	}
	for _, c := range e.Checks {
		if c == nil {
			continue
		}
		out.Checks = append(out.Checks, &api.HealthCheck{
			Node: c.Node, CheckID: c.CheckID, Name: c.Name, Status: c.Status,
			ServiceID: c.ServiceID, ServiceName: c.ServiceName, Type: c.Type, Namespace: c.Namespace, Partition: c.Partition,
		})
	}
	return out
}
