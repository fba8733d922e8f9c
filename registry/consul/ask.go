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
	// noTag is a tag that nothing has: a question with it tells an index and
	// nothing else, at a tenth of the price.
	noTag = "fairlead.io/none"
	// noNode is a node that is not there, to ask for what is near to it. Nothing is
	// sorted for that, but the agent passes the question on, and does not answer
	// from a view of its own (streaming), which after the loss of a leader lags
	// behind for seconds, and longer the longer that took.
	noNode = "fairlead.io-none"
)

const errName = client.Unusable("its name cannot be asked for")

// errUnseen is of names that Consul takes from who registers, and in no question.
const errUnseen = client.Unusable("its name has characters that cannot be seen: Consul answers no question for it (status 400); register it under another name")

// checks are hashes of those in one state, by service and, for those of a whole
// node, by node.
type checks struct{ services, nodes map[string]uint64 }

// hosts are the nodes by name, as a hash of what counts of them.
type hosts map[string]uint64

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

// query asks, and has the answer read as it comes.
func query(c *api.Client, path string, q *api.QueryOptions, read func(io.Reader) error) (*api.QueryMeta, error) {
	var none any
	return c.Raw().Query(path, &none, client.Streamed(q, read))
}

func askNames(c *api.Client, q *api.QueryOptions) (listing, *api.QueryMeta, error) {
	var list listing
	m, err := query(c, "/v1/catalog/services", q, func(r io.Reader) (err error) {
		list, err = readListing(r)
		return err
	})
	return list, m, err
}

// askService returns a question for the entries of one service.
func (s *Source) askService(name string) func(*api.Client, *api.QueryOptions) ([]*entry, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) ([]*entry, *api.QueryMeta, error) {
		if name == "" || name == "." || name == ".." || len(name) > maxName {
			return nil, nil, errName
		}
		if strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return nil, nil, errUnseen
		}
		q.Filter, q.Near = s.cfg.Filter, noNode
		var list []*entry
		m, err := c.Raw().Query("/v1/health/service/"+url.PathEscape(name), &list, client.Escaped(q))
		return list, m, cmp.Or(err, s.belong(name, list))
	}
}

// belong tells of an answer to another question: what is on the way to Consul may
// mistake one for the other.
func (s *Source) belong(name string, list []*entry) error {
	for _, e := range list {
		switch {
		case e == nil || e.Node == nil || e.Service == nil: // that is told by tidy
		case !strings.EqualFold(e.Service.Service, name):
			return client.Unusable(fmt.Sprintf("the answer is about another service, %.100q", e.Service.Service))
		case s.cfg.Client.Datacenter != "" && e.Node.Datacenter != "" && !strings.EqualFold(e.Node.Datacenter, s.cfg.Client.Datacenter):
			return client.Unusable(fmt.Sprintf("the answer is about another datacenter, %.100q", e.Node.Datacenter))
		}
	}
	return nil
}

// askIndex returns a question for the index of one service.
func askIndex(name string) func(*api.Client, *api.QueryOptions) (struct{}, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (struct{}, *api.QueryMeta, error) {
		_, m, err := c.Health().Service(url.PathEscape(name), noTag, false, client.Escaped(q))
		return struct{}{}, m, err
	}
}

func askState(state string) func(*api.Client, *api.QueryOptions) (checks, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (checks, *api.QueryMeta, error) {
		list := checks{map[string]uint64{}, map[string]uint64{}}
		m, err := query(c, "/v1/health/state/"+state, q, func(r io.Reader) error {
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

func askHosts(c *api.Client, q *api.QueryOptions) (hosts, *api.QueryMeta, error) {
	out := hosts{}
	m, err := query(c, "/v1/catalog/nodes", q, func(r io.Reader) error {
		return readList(r, func(n *entryNode) error {
			if n == nil {
				return nil
			}
			raw, err := pack([]*entry{{Node: n}})
			h := fnv.New64a()
			_, _ = h.Write(raw) // never fails
			out[n.Node] = h.Sum64()
			return err
		})
	})
	return out, m, err
}

func askServiceDefaults(c *api.Client, q *api.QueryOptions) (map[string]string, *api.QueryMeta, error) {
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

func askProxyDefaults(c *api.Client, q *api.QueryOptions) (string, *api.QueryMeta, error) {
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

// reading is what one question about a service gave: an answer, or why not.
type reading struct {
	name string
	err  error
	client.Meta
	// same says that the index is the one that was known; then nothing else is
	// set.
	same bool

	entries  []*entry // in order
	raw      []byte
	protocol string
	result   mapping.Result
}

// take makes a reading of an answer.
func (s *Source) take(name string, list []*entry, m client.Meta) *reading {
	r := &reading{name: name, Meta: m, protocol: s.protocols.Load().protocol(name)}
	if r.entries, r.err = tidy(list); r.err == nil {
		r.raw, r.err = pack(r.entries)
	}
	if r.err == nil {
		s.chart(r)
	}
	return r
}

// chart makes the mesh's objects of a reading.
func (s *Source) chart(r *reading) {
	in := &mapping.Input{
		Source: s.cfg.Name, Service: r.name, Namespace: s.cfg.Client.Namespace, Partition: s.cfg.Client.Partition,
		Datacenter: s.cfg.Client.Datacenter, Local: s.cfg.Local, Entries: unfold(r.entries), Protocol: r.protocol,
	}
	if in.Datacenter == "" && len(r.entries) > 0 {
		in.Datacenter = r.entries[0].Node.Datacenter
	}
	r.result = s.cfg.Mapper.Map(in)
}

// readService asks once. With an index that is known, it asks first whether that
// is still so.
func (s *Source) readService(ctx context.Context, name string, known uint64) *reading {
	if known > 0 {
		_, m, err := client.Get(ctx, s.client, askIndex(name)) //nolint:contextcheck // it is in the options
		if err != nil || m.Index == known {
			return &reading{name: name, err: err, Meta: m, same: err == nil}
		}
	}
	list, m, err := client.Get(ctx, s.client, whole(s, s.askService(name))) //nolint:contextcheck // it is in the options
	if err != nil {
		return &reading{name: name, err: err, Meta: m}
	}
	s.reads.Add(1)
	return s.take(name, list, m)
}
