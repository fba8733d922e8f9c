package consul

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"net/url"
	"strings"
	"unicode"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

const (
	// maxServices bounds the services of a datacenter.
	maxServices = 200_000
	// maxName is how long a service's name may be, in bytes.
	maxName = 512
	// unusedTag is a tag that nothing has: a query with it returns an index and nothing
	// else, at a tenth of the cost.
	unusedTag = "fairlead.io/none"
	// unusedNode is a node that does not exist, for the parameter near. Nothing is sorted
	// for it, but the agent passes the query on to a server, and does not answer from a
	// view of its own (streaming), which is late by seconds after the loss of a leader,
	// and by more after a longer loss.
	unusedNode = "fairlead.io-none"
)

const errName = client.Unusable("its name cannot be asked for")

// errUnprintable is for names that Consul accepts in registrations and in no query.
const errUnprintable = client.Unusable("its name has characters that cannot be seen: Consul answers no question for it (status 400); register it under another name")

// checkHashes are hashes of the checks in one state, by service and, for checks of a
// node, by node.
type checkHashes struct{ services, nodes map[string]uint64 }

// nodeHashes are hashes of the nodes, by name.
type nodeHashes map[string]uint64

// protocols are Connect's defaults.
type protocols struct {
	global string
	of     map[string]string
}

func (p *protocols) protocol(service string) string {
	if p == nil {
		return ""
	}
	if x, ok := p.of[service]; ok && x != "" {
		return x
	}
	return p.global
}

// stream sends a query whose answer is read as it comes.
func stream(c *api.Client, path string, q *api.QueryOptions, read func(io.Reader) error) (*api.QueryMeta, error) {
	var none any
	return c.Raw().Query(path, &none, client.Streamed(q, read))
}

func queryNames(c *api.Client, q *api.QueryOptions) (listing, *api.QueryMeta, error) {
	var list listing
	m, err := stream(c, "/v1/catalog/services", q, func(r io.Reader) (err error) {
		list, err = readListing(r)
		return err
	})
	return list, m, err
}

// queryService returns a query for the entries of one service.
func (s *Source) queryService(name string) func(*api.Client, *api.QueryOptions) ([]*entry, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) ([]*entry, *api.QueryMeta, error) {
		if name == "" || name == "." || name == ".." || len(name) > maxName {
			return nil, nil, errName
		}
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, nil, errUnprintable
		}
		q.Filter, q.Near = s.cfg.Filter, unusedNode
		var list []*entry
		m, err := c.Raw().Query("/v1/health/service/"+url.PathEscape(name), &list, client.Escaped(q))
		return list, m, cmp.Or(err, s.checkService(name, list))
	}
}

// checkService returns an error if an answer is about another service or datacenter: a
// proxy may have mixed up answers.
func (s *Source) checkService(name string, list []*entry) error {
	for _, e := range list {
		switch {
		case e == nil || e.Node == nil || e.Service == nil: // sortEntries reports it
		case !strings.EqualFold(e.Service.Service, name):
			return client.Unusable(fmt.Sprintf("the answer is about another service, %.100q", e.Service.Service))
		case s.cfg.Client.Datacenter != "" && e.Node.Datacenter != "" && !strings.EqualFold(e.Node.Datacenter, s.cfg.Client.Datacenter):
			return client.Unusable(fmt.Sprintf("the answer is about another datacenter, %.100q", e.Node.Datacenter))
		}
	}
	return nil
}

// queryIndex returns a query for the index of one service.
func queryIndex(name string) func(*api.Client, *api.QueryOptions) (struct{}, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (struct{}, *api.QueryMeta, error) {
		_, m, err := c.Health().Service(url.PathEscape(name), unusedTag, false, client.Escaped(q))
		return struct{}{}, m, err
	}
}

func queryChecks(state string) func(*api.Client, *api.QueryOptions) (checkHashes, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (checkHashes, *api.QueryMeta, error) {
		list := checkHashes{map[string]uint64{}, map[string]uint64{}}
		m, err := stream(c, "/v1/health/state/"+state, q, func(r io.Reader) error {
			return readList(r, func(x struct{ Node, CheckID, ServiceName string }) error {
				if x.ServiceName != "" {
					list.services[x.ServiceName] += sum(x.Node, x.CheckID)
				} else {
					list.nodes[x.Node] += sum(x.Node, x.CheckID)
				}
				return nil
			})
		})
		return list, m, err
	}
}

func queryNodes(c *api.Client, q *api.QueryOptions) (nodeHashes, *api.QueryMeta, error) {
	out := nodeHashes{}
	m, err := stream(c, "/v1/catalog/nodes", q, func(r io.Reader) error {
		return readList(r, func(n *entryNode) error {
			if n == nil {
				return nil
			}
			raw, err := encodeEntries([]*entry{{Node: n}})
			h := fnv.New64a()
			_, _ = h.Write(raw) // never fails
			out[n.Node] = h.Sum64()
			return err
		})
	})
	return out, m, err
}

func queryServiceDefaults(c *api.Client, q *api.QueryOptions) (map[string]string, *api.QueryMeta, error) {
	var list []struct{ Name, Protocol string }
	m, err := c.Raw().Query("/v1/config/"+api.ServiceDefaults, &list, q)
	out := map[string]string{}
	for _, x := range list {
		if x.Protocol != "" {
			out[x.Name] = x.Protocol
		}
	}
	return out, m, err
}

func queryProxyDefaults(c *api.Client, q *api.QueryOptions) (string, *api.QueryMeta, error) {
	var list []struct {
		Name   string
		Config map[string]any
	}
	m, err := c.Raw().Query("/v1/config/"+api.ProxyDefaults, &list, q)
	for _, x := range list {
		if protocol, ok := x.Config["protocol"].(string); ok && x.Name == api.ProxyConfigGlobal {
			return protocol, m, err
		}
	}
	return "", m, err
}

// reading is the answer of one query for a service, or its error.
type reading struct {
	name string
	err  error
	client.Meta
	// unchanged says that the index is the known one; then nothing else is set.
	unchanged bool

	entries  []*entry // in order
	raw      []byte
	protocol string
	mapped   mapping.Result
}

// newReading makes a reading of an answer.
func (s *Source) newReading(name string, list []*entry, m client.Meta) *reading {
	r := &reading{name: name, Meta: m, protocol: s.protocols.Load().protocol(name)}
	if r.entries, r.err = sortEntries(list); r.err == nil {
		r.raw, r.err = encodeEntries(r.entries)
	}
	if r.err == nil {
		s.mapEntries(r)
	}
	return r
}

// mapEntries maps the entries of a reading to objects of the mesh.
func (s *Source) mapEntries(r *reading) {
	in := &mapping.Input{
		Source: s.cfg.Name, Service: r.name, Namespace: s.cfg.Client.Namespace, Partition: s.cfg.Client.Partition,
		Datacenter: s.cfg.Client.Datacenter, Local: s.cfg.Local, Entries: toAPI(r.entries), Protocol: r.protocol,
	}
	if in.Datacenter == "" && len(r.entries) > 0 {
		in.Datacenter = r.entries[0].Node.Datacenter
	}
	r.mapped = s.cfg.Mapper.Map(in)
}

// readService reads a service once. With a known index it reads the index first, and
// the entries only if that is another one.
func (s *Source) readService(ctx context.Context, name string, known uint64) *reading {
	if known > 0 {
		_, m, err := client.Get(ctx, s.client, queryIndex(name)) //nolint:contextcheck // it is in the options
		if err != nil || m.Index == known {
			return &reading{name: name, err: err, Meta: m, unchanged: err == nil}
		}
	}
	list, m, err := client.Get(ctx, s.client, checked(s, s.queryService(name))) //nolint:contextcheck // it is in the options
	if err != nil {
		return &reading{name: name, err: err, Meta: m}
	}
	s.reads.Add(1)
	return s.newReading(name, list, m)
}
