package mesh

// noteKeys notes VirtualServices that were added or removed: those of other sources with
// the same key may be in force, or not, from now on.
func (w *restricter) noteKeys(deltas []Delta[*VirtualService]) {
	for _, d := range deltas {
		if d.Old == nil || d.New == nil {
			w.keys[newest(d).Key] = true
		}
	}
}

// overridden reports whether a VirtualService of a bound source is not in force, because an
// earlier source has one with its key.
func (w *restricter) overridden(source int, key Key) bool {
	for i := range w.owners.claims {
		if (i < source || w.owners.bindings[i] == nil) && len(w.owners.claims[i].written.get(key)) > 0 && i != source {
			return true
		}
	}
	return false
}

func keyOf(vs *VirtualService) []Key { return []Key{vs.Key} }
