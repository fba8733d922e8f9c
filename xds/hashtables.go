package xds

import (
	"sync"

	"github.com/fairlead/fairlead/xds/view"
)

// tableSums are the tables of consistentHash of connected proxies, counted once for all that share their clusters
// and endpoints.
type tableSums struct {
	mu    sync.Mutex // guards known
	known map[view.TableLayers]view.HashTables
}

func (t *tableSums) of(v *view.View) view.HashTables {
	key := v.TableLayers()
	t.mu.Lock()
	defer t.mu.Unlock()
	sum, known := t.known[key]
	if !known {
		sum = key.HashTables()
		if t.known == nil {
			t.known = map[view.TableLayers]view.HashTables{}
		}
		t.known[key] = sum
	}
	return sum
}

// LargestHashTables are those of the connected proxy that has the most entries in all its tables of consistentHash.
func (s *Server) LargestHashTables() (largest view.HashTables) {
	inUse := map[view.TableLayers]bool{}
	for _, c := range s.connections() {
		o := c.current.Load()
		if o == nil || o.View == nil {
			continue
		}
		inUse[o.View.TableLayers()] = true
		if sum := s.tables.of(o.View); sum.Entries > largest.Entries {
			largest = sum
		}
	}
	s.tables.forget(inUse)
	return largest
}

// forget leaves only those in use: others would keep old layers alive.
func (t *tableSums) forget(inUse map[view.TableLayers]bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key := range t.known {
		if !inUse[key] {
			delete(t.known, key)
		}
	}
}
