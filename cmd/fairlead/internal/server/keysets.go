package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/pki/jwks"
	"github.com/fairlead/fairlead/registry/mesh"
)

// Keys says where the keys of issuers come from.
type Keys struct {
	// Dir has key sets as files; then nothing is fetched. Empty means that they are fetched.
	Dir string
	// CAFile has authorities of issuers' servers besides those of the system, in PEM; or empty.
	CAFile string
	// Proxy is the URL of a proxy through which they are fetched, which looks names up; or
	// empty.
	Proxy string
	// BoundPrivate lets objects of bound sources name issuers at private addresses.
	BoundPrivate bool
}

func (k *Keys) check() error {
	var errs []error
	if k.Dir != "" && (k.CAFile != "" || k.Proxy != "") {
		errs = append(errs, errors.New("--jwks-dir: keys are read from files, so that --jwks-ca-file and --jwks-proxy have no effect: leave them out"))
	}
	if k.Dir != "" && k.BoundPrivate {
		errs = append(errs, errors.New("--jwks-dir: keys are read from files, so that --jwks-bound-private has no effect: leave it out"))
	}
	if fi, err := os.Stat(k.Dir); k.Dir != "" && (err != nil || !fi.IsDir()) {
		errs = append(errs, fmt.Errorf("--jwks-dir %q is not a directory", k.Dir))
	}
	return errors.Join(errs...)
}

// keySets gives the registry the keys of issuers. Its methods are called by the registry alone.
type keySets struct {
	store  *jwks.Store
	wanted []mesh.KeyRequest
	made   *jwks.Keys // what current was made of
	// current is nil if there are no keys.
	current map[mesh.KeyLocation]string
	sets    *mesh.KeySets
}

// newKeys makes the store of keys.
func (s *Server) newKeys(context.Context) error {
	store, err := jwks.New(jwks.Config{
		Logger: s.cfg.Logger, CacheDir: filepath.Join(s.cfg.StateDir, "jwks"), Dir: s.cfg.Keys.Dir, CAFile: s.cfg.Keys.CAFile, Proxy: s.cfg.Keys.Proxy,
		OwnPorts: s.ownPorts(), Registerer: s.metrics,
	})
	if err != nil {
		return err
	}
	s.keys = store
	return nil
}

// ownPorts are the ports at which this process listens.
func (s *Server) ownPorts() []uint16 {
	addresses := []string{s.listener.Addr().String(), s.admin.Address()}
	if s.plaintext != nil {
		addresses = append(addresses, s.plaintext.listener.Addr().String())
	}
	var out []uint16
	for _, a := range addresses {
		_, port, err := net.SplitHostPort(a)
		if err != nil {
			continue // it is off
		}
		if n, err := strconv.ParseUint(port, 10, 16); err == nil {
			out = append(out, uint16(n))
		}
	}
	return out
}

// Want implements [registry.KeySets].
func (k *keySets) Want(list []mesh.KeyRequest) {
	k.wanted, k.made = list, nil
	sources := make([]jwks.Source, 0, len(list))
	for _, r := range list {
		sources = append(sources, sourceOfKeys(r))
	}
	k.store.Want(sources)
}

// sourceOfKeys is a request as the store takes it.
func sourceOfKeys(r mesh.KeyRequest) jwks.Source {
	src := jwks.Source{Issuer: r.Issuer, URI: r.Location.URI, Timeout: r.Timeout, Private: r.Location.Private, Owner: r.Owner}
	if r.Location.Discovery {
		src.Issuer, src.URI = r.Location.URI, ""
	}
	return src
}

// Current implements [registry.KeySets].
func (k *keySets) Current() (*mesh.KeySets, bool) {
	settled := k.store.Settled() // before the keys, which then are at least as new
	have := k.store.Keys()
	if have == k.made {
		return k.sets, settled
	}
	sets := map[mesh.KeyLocation]string{}
	for _, r := range k.wanted {
		if set := have.Set(sourceOfKeys(r)); set != nil {
			sets[r.Location] = set.JSON
		}
	}
	k.made = have
	if !maps.Equal(sets, k.current) {
		k.current, k.sets = sets, mesh.NewKeySets(sets)
	}
	return k.sets, settled
}

// Changed implements [registry.KeySets].
func (k *keySets) Changed() <-chan struct{} { return k.store.Changed() }

// keyStatus is how the wanted key sets stand.
func (s *Server) keyStatus() KeySets {
	list, over := s.keys.Status()
	return KeySets{list, over}
}

// KeySets are how the key sets of issuers stand.
type KeySets struct {
	Sets []jwks.Status `json:"sets,omitempty"`
	// Over is how many are not fetched because there are too many.
	Over int `json:"over,omitempty"`
}

const (
	// staleKeysFor is how long the keys of an issuer may not be confirmed until that is a
	// condition: an issuer may be away for a moment, and its last keys stay in force. A file is
	// not.
	staleKeysFor = time.Hour
	// pendingKeysFor is how long there may be no answer at all until that is a condition: after
	// the longest time for one, others were before it.
	pendingKeysFor = jwks.MaxTimeout
)

func issuerKeys(_ *Proxies, s *Sources, _ time.Time) (out []Condition) {
	const action = "make the key set readable from the server, which tries again by itself; docs/authorization.md says where keys are fetched from"
	for i := range s.Keys.Sets {
		k := &s.Keys.Sets[i]
		what := "the keys of " + k.URI
		if len(k.Issuers) > 0 && !slices.Equal(k.Issuers, []string{k.URI}) {
			what += " (tokens of " + names(k.Issuers, 3) + ")"
		}
		var text string
		switch {
		case k.State == jwks.StateNone:
			text = what + " are not known, so that tokens which need them are refused: " + k.Err
		case k.State == jwks.StatePending && k.Waiting >= pendingKeysFor:
			text = fmt.Sprintf("%s have been waited for %s, so that tokens which need them are refused", what, k.Waiting.Truncate(time.Second))
		case k.State == jwks.StateStale && (k.File || k.Age >= staleKeysFor):
			text = fmt.Sprintf("%s were not confirmed for %s; they stay in force for %s: %s", what, cmp.Or(k.Age.Truncate(time.Minute), k.Age), jwks.DefaultMaxAge, k.Err)
		default:
			continue
		}
		out = append(out, Condition{Subject: safetext.Sanitize(k.URI, 200), Text: text, Action: action})
	}
	if s.Keys.Over > 0 {
		out = append(out, Condition{
			Subject: "server", Text: amount(s.Keys.Over, "key set") + " beyond the limit are not fetched; tokens of their issuers are refused",
			Action: "name fewer issuers in RequestAuthentications",
		})
	}
	return out
}
