package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// listing is all that is below a prefix, at one index of Consul.
type listing struct {
	pairs api.KVPairs
	index uint64
}

// errHidden says that there may be more than was listed.
var errHidden = errors.New("keys are left out of the answer, because the token may not read them")

// list asks for everything below a prefix. Without an index it asks for what is
// consistent: a leader that has just been elected answers other queries while it
// still reads its log, and so without the keys that were written last. With one,
// the answer is never of an earlier time than the one before.
func list(prefix string) func(*api.Client, *api.QueryOptions) (api.KVPairs, *api.QueryMeta, error) {
	return func(c *api.Client, q *api.QueryOptions) (api.KVPairs, *api.QueryMeta, error) {
		if q.WaitIndex == 0 {
			q.RequireConsistent, q.AllowStale = true, false
		}
		return c.KV().List(prefix+"/", q)
	}
}

// reader asks Consul about a prefix.
type reader struct {
	client *client.Client
	prefix string
}

// read lists everything below the prefix, once and whole.
func (r reader) read(ctx context.Context) (listing, error) {
	pairs, m, err := client.Get(ctx, r.client, list(r.prefix))
	if err != nil {
		return listing{}, fmt.Errorf("listing %q: %w", r.prefix+"/", err)
	}
	return r.check(ctx, pairs, m)
}

// check returns an error if an answer may be incomplete. A filtered answer says so, but
// only to clients with a token, and not if it is empty. What the token may read shows
// when a key is read by name: that is refused and not left out.
func (r reader) check(ctx context.Context, pairs api.KVPairs, m client.Meta) (listing, error) {
	l := listing{pairs: pairs, index: m.Index}
	switch {
	case m.Index == 0:
		return l, fmt.Errorf("listing %q: the answer has no index: is this Consul?", r.prefix+"/")
	case m.Filtered:
		err := r.probe(ctx)
		if _, denied := errors.AsType[*client.Denied](err); denied {
			return l, err
		}
		return l, fmt.Errorf("listing %q: %w; give it %s", r.prefix+"/", errHidden, r.rule("read"))
	case len(pairs) == 0 || m.Fresh:
		if err := r.probe(ctx); err != nil {
			return l, err
		}
	}
	return l, nil
}

// probe asks for a key of the prefix, which need not be there.
func (r reader) probe(ctx context.Context) error {
	_, _, err := client.Get(ctx, r.client, func(c *api.Client, q *api.QueryOptions) (*api.KVPair, *api.QueryMeta, error) {
		return c.KV().Get(r.prefix+"/", q)
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("reading %q: %w", r.prefix+"/", err)
	if _, denied := errors.AsType[*client.Denied](err); denied {
		return fmt.Errorf("%w; give it %s", err, r.rule("read"))
	}
	return err
}

// rule is what the token needs, in the words of Consul's policies.
func (r reader) rule(policy string) string { return Rule(r.prefix, policy) }

// Rule is what a token needs to read or write ("read", "write") below a prefix, in
// the words of Consul's policies.
func Rule(prefix, policy string) string {
	return fmt.Sprintf("key_prefix %q { policy = %q }", prefix+"/", policy)
}
