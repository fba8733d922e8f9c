package consul

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// deniedList is what the token needs to see the whole list of services.
const deniedList = `service_prefix "" { policy = "read" } and node_prefix "" { policy = "read" }: Consul leaves services out of its list`

// deniedTold is how many of the rules that the token lacks the log has.
const deniedTold = 5

// whole asks as ask does, and judges what came: whether it is Consul's, and
// whether it is all there is. Consul tells who comes without a token nothing of
// what it leaves out.
func whole[T any](s *Source, ask func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error)) func(*api.Client, *api.QueryOptions) (T, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (T, *api.QueryMeta, error) {
		v, m, err := ask(c, q)
		switch {
		case err != nil:
			return v, m, err
		case m.LastIndex == 0:
			return v, m, fmt.Errorf("%w: an answer has no index: is this Consul?", client.ErrUnavailable)
		case s.cfg.Client.TokenFile == "" && m.LastIndex != q.WaitIndex:
			sees, err := s.client.Sees(q.Context())
			if err != nil {
				return v, m, err
			}
			m.ResultsFilteredByACLs = m.ResultsFilteredByACLs || !sees
		}
		return v, m, nil
	}
}

// missed keeps the log from telling the same of a token twice.
type missed struct{ denied []string }

// tell logs which rules the token lacks, when they are others than before.
func (d *missed) tell(log *slog.Logger, denied map[string]bool) {
	now := slices.Sorted(maps.Keys(denied))
	if slices.Equal(now, d.denied) {
		return
	}
	d.denied = now
	if len(now) == 0 {
		log.Info("the token lacks nothing any more")
		return
	}
	log.Warn("the token lacks rules: what was seen before stands, and what it never saw is not in the mesh",
		"rules", len(now), "first", strings.Join(now[:min(len(now), deniedTold)], "; "))
}
