package attest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead/fairlead/pki/attest/jointoken"
)

// Reasons why no token is revoked.
var (
	ErrNoToken        = errors.New("no such join token")
	ErrAmbiguousToken = errors.New("several join tokens have an id that begins so: give more of it")
)

// Tokens is every join token that is kept, by host; no secret is among it.
func (e *Entitlements) Tokens() []jointoken.Record { return e.tokens.List() }

// TokenAddresses are the addresses that a token proves to be its host's.
func (e *Entitlements) TokenAddresses(r jointoken.Record) ([]Address, error) {
	f, err := e.named.read(tokenFile(r.Hash))
	return f.list(), err
}

// RevokeToken deletes the join token that has the id, or the only one whose id begins so.
// Nobody can redeem it after that. A host that joined with it stays.
func (e *Entitlements) RevokeToken(id string) (jointoken.Record, error) {
	// Nobody makes or redeems a token meanwhile.
	e.change.Lock()
	defer e.change.Unlock()
	var found []jointoken.Record
	for _, r := range e.tokens.List() {
		if len(id) >= jointoken.MinID && strings.HasPrefix(r.Hash.String(), id) {
			found = append(found, r)
		}
	}
	switch {
	case len(found) == 0:
		return jointoken.Record{}, fmt.Errorf("%w: %q; `fairlead token list` shows the ids", ErrNoToken, id)
	case len(found) > 1:
		return jointoken.Record{}, fmt.Errorf("%w: %q", ErrAmbiguousToken, id)
	}
	r := found[0]
	if err := e.tokens.Withdraw(func(o jointoken.Record) bool { return o.Hash == r.Hash }); err != nil {
		return jointoken.Record{}, fmt.Errorf("revoking join token %s: %w", r.ID(), err)
	}
	if err := e.named.remove(tokenFile(r.Hash)); err != nil {
		e.logger.Warn("deleting the address record of a revoked join token failed (harmless)", "id", r.ID(), "err", err)
	}
	e.logger.Info("join token revoked", "id", r.ID(), "host", r.Grant.Host, "used", r.Use != nil)
	return r, nil
}
