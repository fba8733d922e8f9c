package kv

import (
	"context"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// Store is the keys below a prefix, for who reads and writes them by hand.
type Store struct {
	reader
}

// Open makes a Store. It sends no query.
func Open(c client.Config, prefix string) (*Store, error) {
	prefix, err := cleanPrefix(prefix)
	if err != nil {
		return nil, err
	}
	cl, err := client.New(c)
	if err != nil {
		return nil, err
	}
	return &Store{reader{cl, prefix}}, nil
}

// Close gives up the connections.
func (s *Store) Close() { s.client.Close() }

// Prefix is what the keys begin with, without the slash.
func (s *Store) Prefix() string { return s.prefix }

// State is what was below the prefix at one time.
type State struct {
	// Values are the manifests, by the part of the key below the prefix.
	Values map[string]Value
	// Ignored is how many keys are no manifests.
	Ignored int
}

// Value is a value as it was read.
type Value struct {
	Content []byte
	// Index is that of its last change, CreateIndex that of its first one, Flags what other programs keep
	// there.
	Index, CreateIndex, Flags uint64
}

// Read reads everything below the prefix, once and whole.
func (s *Store) Read(ctx context.Context) (*State, error) {
	l, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	st := &State{Values: map[string]Value{}}
	for _, kv := range l.pairs {
		rel, below := strings.CutPrefix(kv.Key, s.prefix+"/")
		if !below || rel == "" || !isManifest(rel) {
			st.Ignored++
			continue
		}
		st.Values[rel] = valueOf(kv)
	}
	return st, nil
}

func valueOf(kv *api.KVPair) Value {
	return Value{Content: kv.Value, Index: kv.ModifyIndex, CreateIndex: kv.CreateIndex, Flags: kv.Flags}
}

// get reads one key; nil means that there is none.
func (s *Store) get(ctx context.Context, key string) (*api.KVPair, error) {
	kv, _, err := client.Get(ctx, s.client, func(c *api.Client, q *api.QueryOptions) (*api.KVPair, *api.QueryMeta, error) {
		q.RequireConsistent, q.AllowStale = true, false
		return c.KV().Get(key, q)
	})
	return kv, err
}
