package kv

import (
	"fmt"
	"slices"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
)

// noteSaved notes which texts a damaged state directory had.
func (p *keyCache) noteSaved() {
	p.saved = map[string]bool{}
	for _, t := range p.set.Texts() {
		p.saved[t.Path] = true
	}
}

// uncertain says why the keys are not delivered although all could be read: the saved versions are damaged,
// and a value with an error may have had objects that nobody knows. Empty means that they are.
func (p *keyCache) uncertain() string {
	if p.saved == nil {
		return ""
	}
	for _, t := range p.set.Texts() {
		if !p.saved[t.Path] && t.V.Uncertain() {
			return fmt.Sprintf("the saved versions are damaged, and %s has an error: what it had before is not known; correct it, or run `fairlead release %s`", t.Path, p.cfg.Name)
		}
	}
	return ""
}

// canRelease reports whether there is something that a person may confirm.
func (p *keyCache) canRelease() bool {
	return p.uncertain() != "" || slices.ContainsFunc(p.set.Texts(), func(t *lastgood.Text) bool { return t.V.Cut() })
}

// release takes what a person has confirmed.
func (p *keyCache) release(now time.Time) {
	if p.uncertain() != "" {
		p.saved, p.changed = nil, true
	}
	for _, t := range slices.Clone(p.set.Texts()) {
		if !t.V.Cut() {
			continue
		}
		next := *t
		next.V = t.V.Release(p.decode(t.Path, t.V.Blob(), t.CreateIndex), now)
		p.set.Put(&next)
		p.changed = true
	}
	p.set.Yield()
}
