package envoys

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
)

// Kind is one of the types of resource that an Envoy takes.
type Kind uint8

// The kinds, in the order in which they are asked for.
const (
	Clusters Kind = iota
	Endpoints
	Listeners
	Routes
	Hosts
	kinds
)

//nolint:gochecknoglobals // read only
var typeURLs = [kinds]string{
	"type.googleapis.com/envoy.config.cluster.v3.Cluster",
	"type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
	"type.googleapis.com/envoy.config.listener.v3.Listener",
	"type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
	"type.googleapis.com/envoy.config.route.v3.VirtualHost",
}

// String is the kind as people call it.
func (k Kind) String() string { return [kinds]string{"CDS", "EDS", "LDS", "RDS", "VHDS"}[k] }

func kindOf(typeURL []byte) (Kind, bool) {
	for k, t := range typeURLs {
		if t == string(typeURL) {
			return Kind(k), true
		}
	}
	return 0, false
}

// entry is one resource that some stream has been sent, by its bytes.
type entry struct {
	id      uint32 // 0 and 1 are no entries
	name    uint32
	version string
	refs    []uint32 // EDS names of a cluster, RDS names of a listener
	vhds    bool     // of a route configuration
	probe   uint32   // the probe whose marker it has, or 0
	fault   string   // why an Envoy refuses it
}

// What a stream holds of a name is the id of an entry, or one of these.
const (
	nothing    = 0
	subscribed = 1
	firstEntry = 2
)

// catalog is every resource and every name that any stream has been sent.
type catalog struct {
	seed   maphash.Seed
	shards [64]shard

	mu      sync.RWMutex // guards all following fields
	entries []*entry     // by id
	names   [kinds]names
	probe   uint32
	marker  []byte
	bytes   int64 // of all entries
}

type shard struct {
	sync.RWMutex // guards the map

	by map[uint64]*entry
}

type names struct {
	ids  map[string]uint32
	list []string
}

func newCatalog() *catalog {
	c := &catalog{seed: maphash.MakeSeed(), entries: make([]*entry, firstEntry)}
	for i := range c.shards {
		c.shards[i].by = map[uint64]*entry{}
	}
	for k := range c.names {
		c.names[k].ids = map[string]uint32{}
	}
	return c
}

// arm makes entries that are new from now on, and have the marker, entries of
// a new probe.
func (c *catalog) arm(marker string) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probe++
	c.marker = []byte(marker)
	return c.probe
}

// find gives the entry of an encoded Resource, and decodes it if nobody has.
func (c *catalog) find(k Kind, raw []byte) (*entry, error) {
	key := maphash.Bytes(c.seed, raw) ^ uint64(k)
	s := &c.shards[key%uint64(len(c.shards))]
	s.RLock()
	e := s.by[key]
	s.RUnlock()
	if e != nil {
		return e, nil
	}
	s.Lock()
	defer s.Unlock()
	if e := s.by[key]; e != nil {
		return e, nil
	}
	r, err := scanResource(raw)
	if err != nil {
		return nil, err
	}
	e, err = c.add(k, r)
	if err != nil {
		return nil, err
	}
	s.by[key] = e
	return e, nil
}

func (c *catalog) add(k Kind, r resource) (*entry, error) {
	e := &entry{name: c.name(k, string(r.name)), version: string(r.version)}
	refs, err := e.decode(k, r)
	if err != nil {
		e.fault = err.Error()
	}
	to := Endpoints
	if k == Listeners {
		to = Routes
	}
	for _, ref := range refs {
		e.refs = append(e.refs, c.name(to, ref))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probe > 0 && bytes.Contains(r.body, c.marker) {
		e.probe = c.probe
	}
	e.id = uint32(len(c.entries))
	c.entries = append(c.entries, e)
	c.bytes += int64(len(r.body))
	return e, nil
}

func (c *catalog) name(k Kind, name string) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &c.names[k]
	id, ok := n.ids[name]
	if !ok {
		id = uint32(len(n.list))
		n.list = append(n.list, name)
		n.ids[name] = id
	}
	return id
}

// known is the number of a name that some resource had; false if none had it.
func (c *catalog) known(k Kind, name []byte) (uint32, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	id, ok := c.names[k].ids[string(name)]
	return id, ok
}

func (c *catalog) text(k Kind, id uint32) string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.names[k].list[id]
}

func (c *catalog) entry(id uint32) *entry {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.entries[id]
}

// decode reads what an Envoy does with a resource on its stream: what it asks
// for next. It refuses what its validation refuses.
func (e *entry) decode(k Kind, r resource) ([]string, error) {
	switch k {
	case Clusters:
		m := &clusterv3.Cluster{}
		if err := check(r, m); err != nil || m.GetType() != clusterv3.Cluster_EDS {
			return nil, err
		}
		if s := m.GetEdsClusterConfig().GetServiceName(); s != "" {
			return []string{s}, nil
		}
		return []string{m.GetName()}, nil
	case Endpoints:
		return nil, check(r, &endpointv3.ClusterLoadAssignment{})
	case Listeners:
		m := &listenerv3.Listener{}
		if err := check(r, m); err != nil {
			return nil, err
		}
		return routesOf(m)
	case Routes:
		m := &routev3.RouteConfiguration{}
		err := check(r, m)
		e.vhds = m.GetVhds() != nil
		return nil, err
	case Hosts:
		m := &routev3.VirtualHost{}
		if err := check(r, m); err != nil {
			return nil, err
		}
		// An Envoy accepts the first and drops it, and ignores the removal of the
		// second: here both are faults.
		if m.GetName() != string(r.name) || strings.Count(m.GetName(), "/") != 1 {
			return nil, fmt.Errorf("virtual host %q is sent as %q", m.GetName(), r.name)
		}
		return nil, nil
	default:
		return nil, nil
	}
}

type message interface {
	proto.Message
	ValidateAll() error
}

func check(r resource, m message) error {
	if err := proto.Unmarshal(r.body, m); err != nil {
		return fmt.Errorf("decoding %q: %w", r.name, err)
	}
	if err := m.ValidateAll(); err != nil {
		return fmt.Errorf("validating %q: %w", r.name, err)
	}
	return nil
}

func routesOf(l *listenerv3.Listener) ([]string, error) {
	var out []string
	chains := l.GetFilterChains()
	if d := l.GetDefaultFilterChain(); d != nil {
		chains = append(slices.Clip(chains), d)
	}
	seen := map[string]bool{}
	for _, chain := range chains {
		for _, f := range chain.GetFilters() {
			m := &hcmv3.HttpConnectionManager{}
			if !f.GetTypedConfig().MessageIs(m) {
				continue
			}
			if err := f.GetTypedConfig().UnmarshalTo(m); err != nil {
				return nil, fmt.Errorf("decoding %q: %w", l.GetName(), err)
			}
			if name := m.GetRds().GetRouteConfigName(); name != "" && !seen[name] {
				seen[name] = true
				out = append(out, name)
			}
		}
	}
	return out, nil
}

// size is how many names there are of a kind.
func (c *catalog) size(k Kind) int {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return len(c.names[k].list)
}
