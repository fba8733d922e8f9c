package view

import (
	"math"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// HashTableEntrySize is about how many bytes an entry of a table of consistentHash takes in an Envoy.
const HashTableEntrySize = 24

// maxRing is Envoy's limit for a ring, if the cluster has no other.
const maxRing = 8 << 20

// HashTables are the tables of consistentHash that an Envoy makes for a view.
type HashTables struct {
	// Clusters is how many clusters have tables, Entries what these have together.
	Clusters int
	Entries  uint64
	// Largest is the cluster that has the most, LargestEntries, and LargestOrigins what it was made from.
	Largest        ClusterRef
	LargestEntries uint64
	LargestOrigins []*mesh.Origin
}

// TableLayers are the layers that decide on the tables. Views share them.
type TableLayers struct{ Clusters, Endpoints *Layer }

// TableLayers are those of the stack.
func (s *Stack) TableLayers() (out TableLayers) {
	for _, l := range s.Layers {
		switch l.Name {
		case ClustersLayer:
			out.Clusters = l
		case EndpointsLayer:
			out.Endpoints = l
		}
	}
	return out
}

// HashTables counts the tables: one for each priority of each cluster with consistentHash. A ring grows beyond what
// its rule says if weights of endpoints differ, up to the cluster's limit.
func (t TableLayers) HashTables() (out HashTables) {
	if t.Clusters == nil {
		return out
	}
	var endpoints map[ClusterRef][]LocalityEndpoints
	for _, p := range t.Clusters.Parts {
		c, ok := p.(*Cluster)
		if !ok || c.Discovery == DiscoverOriginalDst || c.Discovery == DiscoverDynamic || mesh.HashTable(c.Policy.GetLoadBalancer()) == 0 {
			continue
		}
		localities := c.Localities
		if c.Discovery == DiscoverEDS {
			if endpoints == nil {
				endpoints = t.endpoints()
			}
			localities = endpoints[c.Ref]
		}
		n := c.tableEntries(localities)
		if n == 0 {
			continue
		}
		out.Clusters++
		out.Entries += n
		if n > out.LargestEntries {
			out.Largest, out.LargestEntries, out.LargestOrigins = c.Ref, n, c.Origins()
		}
	}
	return out
}

func (t TableLayers) endpoints() map[ClusterRef][]LocalityEndpoints {
	out := map[ClusterRef][]LocalityEndpoints{}
	if t.Endpoints != nil {
		for _, p := range t.Endpoints.Parts {
			if e, ok := p.(*Endpoints); ok {
				out[e.Ref] = e.Localities
			}
		}
	}
	return out
}

// tableEntries are those of the tables of all priorities.
func (c *Cluster) tableEntries(localities []LocalityEndpoints) uint64 {
	lb := c.Policy.GetLoadBalancer()
	size, most := mesh.HashTable(lb), c.TableLimit
	if most == 0 {
		most = maxRing
	}
	sum := uint64(0)
	for len(localities) > 0 { // sorted by priority, or not: each is taken once
		priority := localities[0].Priority
		var of []LocalityEndpoints
		localities = slices.DeleteFunc(slices.Clone(localities), func(l LocalityEndpoints) bool {
			if l.Priority == priority && len(l.Endpoints) > 0 {
				of = append(of, l)
			}
			return l.Priority == priority
		})
		switch {
		case len(of) == 0:
		case lb.GetConsistentHash().GetMaglev() != nil:
			sum += size
		default:
			sum += ringSize(smallestShare(of, c.LocalityWeighted), size, most)
		}
	}
	return sum
}

// ringSize is how Envoy sizes a ring: each endpoint has at least one entry, and as many for its share as the
// minimum gives to the one with the smallest.
func ringSize(share float64, least, most uint64) uint64 {
	if share <= 0 {
		return most
	}
	return uint64(math.Ceil(min(math.Ceil(share*float64(least))/share, float64(most))))
}

// smallestShare is the share of the endpoint that gets the fewest requests.
func smallestShare(list []LocalityEndpoints, byLocality bool) float64 {
	weight := func(n uint32) float64 { return float64(max(1, n)) }
	all, localities, smallest := 0.0, 0.0, math.Inf(1)
	for i := range list {
		localities += weight(list[i].Weight)
		for j := range list[i].Endpoints {
			all += weight(list[i].Endpoints[j].Weight)
		}
	}
	for i := range list {
		sum, least := 0.0, math.Inf(1)
		for j := range list[i].Endpoints {
			w := weight(list[i].Endpoints[j].Weight)
			sum, least = sum+w, min(least, w)
		}
		share := least / all
		if byLocality {
			share = least / sum * weight(list[i].Weight) / localities
		}
		smallest = min(smallest, share)
	}
	return smallest
}
