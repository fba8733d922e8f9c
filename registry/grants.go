package registry

import (
	"log/slog"
	"slices"

	"github.com/fairlead/fairlead/registry/mesh"
)

// GrantStore keeps the names that namespaces of bound sources had before owners were decided by patterns
// alone. They are made once, from the record that earlier releases kept.
type GrantStore interface {
	// Load returns the grants, if they were made already.
	Load() (grants []mesh.Grant, made bool, err error)
	// Recorded is the record of an earlier release; nil if there is none.
	Recorded() ([]mesh.Recorded, error)
	Save([]mesh.Grant) error
}

// grantRecord is the grants in the loop.
type grantRecord struct {
	saver   *grantSaver // or nil
	current *mesh.Grants
	// open are those that nothing else gives, of judged.
	open   []mesh.OpenGrant
	judged *mesh.Grants
	// recorded is what grants are to be made of, as soon as all sources have been read; make says that.
	recorded []mesh.Recorded
	make     bool
	missing  []string // the sources that current was made without
	fault    string   // why the grants are not known; or empty
}

// grantMoment is the grants that are written. It is immutable.
type grantMoment struct{ list []mesh.Grant }

type grantSaver = saver[*grantMoment]

func newGrantSaver(store GrantStore, log *slog.Logger) *grantSaver {
	return newSaver(func(m *grantMoment) error { return store.Save(m.list) },
		func(err error) {
			log.Error("saving host-grants.json failed: after a restart hosts may be limited to their namespaces", "err", err)
		},
		func(m *grantMoment) { log.Info("saving host-grants.json works again", "hosts", len(m.list)) })
}

// load reads the grants, or the record that they are made of. If it cannot, no host is granted.
func (l *grantRecord) load(store GrantStore, bound bool) error {
	if store == nil || !bound {
		return nil
	}
	list, made, err := store.Load()
	if err != nil || made {
		l.current = mesh.NewGrants(list)
		return err
	}
	l.recorded, err = store.Recorded()
	l.make = err == nil && l.recorded != nil
	return err
}

// due reports whether grants are to be made from what all sources say. While one is missing they are made as well, and
// not kept. They are not made anew with each change: what is written while a source is missing would be granted, too.
func (l *grantRecord) due(missing []string) bool {
	return l.make && (l.current == nil || !slices.Equal(l.missing, missing))
}

// took takes the grants that were made.
func (l *grantRecord) took(made *mesh.Grants, missing []string) {
	l.missing, l.current = slices.Clone(missing), made
	if len(missing) > 0 {
		return
	}
	l.make, l.recorded = false, nil
	if l.saver != nil {
		l.saver.save(&grantMoment{made.All()})
	}
}
