package main

import (
	"context"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
)

// linear is a LinearCache for each type.
type linear struct {
	*cache.MuxCache

	byType map[string]*cache.LinearCache
}

func newLinear(resources map[string]map[string]types.Resource) *linear {
	l := &linear{byType: map[string]*cache.LinearCache{}}
	l.MuxCache = &cache.MuxCache{
		Classify:      func(r *cache.Request) string { return r.GetTypeUrl() },
		ClassifyDelta: func(r *cache.DeltaRequest) string { return r.GetTypeUrl() },
		Caches:        map[string]cache.Cache{},
	}
	for typeURL, all := range resources {
		c := cache.NewLinearCache(typeURL, cache.WithInitialResources(all))
		l.byType[typeURL], l.Caches[typeURL] = c, c
	}
	return l
}

func (l *linear) change(typeURL, name string, all map[string]types.Resource) error {
	return l.byType[typeURL].UpdateResource(name, all[name])
}

// snapshot is a SnapshotCache in which all nodes share one snapshot.
type snapshot struct {
	cache.SnapshotCache

	resources map[string][]types.Resource
	version   int
}

// everybody is one node: the cache is at its best where all are alike.
type everybody struct{}

func (everybody) ID(*corev3.Node) string { return "everybody" }

func newSnapshot(ctx context.Context, resources map[string]map[string]types.Resource) (*snapshot, error) {
	s := &snapshot{SnapshotCache: cache.NewSnapshotCache(true, everybody{}, nil), resources: map[string][]types.Resource{}}
	for typeURL, all := range resources {
		s.resources[typeURL] = list(all)
	}
	return s, s.set(ctx)
}

func list(all map[string]types.Resource) []types.Resource {
	out := make([]types.Resource, 0, len(all))
	for _, r := range all {
		out = append(out, r)
	}
	return out
}

func (s *snapshot) change(typeURL, _ string, all map[string]types.Resource) error {
	s.resources[typeURL] = list(all)
	return s.set(context.Background())
}

func (s *snapshot) set(ctx context.Context) error {
	s.version++
	snap, err := cache.NewSnapshot(strconv.Itoa(s.version), s.resources)
	if err != nil {
		return err
	}
	return s.SetSnapshot(ctx, "everybody", snap)
}
