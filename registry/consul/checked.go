package consul

import (
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// deniedList is the ACL rule for the whole list of services.
const deniedList = `service_prefix "" { policy = "read" } and node_prefix "" { policy = "read" }: Consul leaves services out of its list`

// checked is a query whose answer is checked: it must have an index, as Consul's have,
// and without a token its filtered flag is set here. Consul sets it only for clients
// with a token.
func checked[T any](s *Source, ask func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (T, *api.QueryMeta, error) {
		v, m, err := ask(c, q)
		switch {
		case err != nil:
			return v, m, err
		case m.LastIndex == 0:
			return v, m, fmt.Errorf("%w: an answer has no index: is this Consul?", client.ErrUnavailable)
		case s.cfg.Client.TokenFile == "" && m.LastIndex != q.WaitIndex:
			sees, err := s.client.SeesAll(q.Context())
			if err != nil {
				return v, m, err
			}
			m.ResultsFilteredByACLs = m.ResultsFilteredByACLs || !sees
		}
		return v, m, nil
	}
}
