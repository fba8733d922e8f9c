package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/pki/svid"
)

const (
	// tokenPollInterval is how often a running agent looks for a new join token.
	tokenPollInterval = 2 * time.Second
	// tokenRetryInterval is when a rejected token is tried again: another server of the
	// control plane may accept it.
	tokenRetryInterval = 10 * time.Minute
	// rejectionInterval is the least time between two renewals that a rejected stream causes.
	rejectionInterval = time.Minute
	// tokenBurst is how many changes of the join token are handled at once, and
	// tokenRefillTime how often another one after that: each costs a renewal, or an error in
	// the log.
	tokenBurst      = 3
	tokenRefillTime = time.Minute
)

// TokenState is the state of the join token that the agent was given last.
type TokenState string

// The states of a join token of a host that has joined.
const (
	// TokenUnused: not needed, the host has joined with the same entitlement.
	TokenUnused TokenState = "unused"
	// TokenRedeemed: the host has joined with it.
	TokenRedeemed TokenState = "redeemed"
	// TokenRefused: the control plane rejected it.
	TokenRefused TokenState = "refused"
	// TokenUnfit: it was sent to no server, because it is not for this host.
	TokenUnfit TokenState = "unfit"
	// TokenWaits: no server could be asked yet.
	TokenWaits TokenState = "waiting"
)

// TokenStatus is the state of a join token, for people. It has no secret.
type TokenStatus struct {
	State TokenState `json:"state"`
	// Reason says why, and what to do.
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// errWorkloadChanged ends the components of an agent: the identity, type or servers of the
// host changed, and they are to be made again.
var errWorkloadChanged = errors.New("the host is entitled to something else now")

// errTokenRefused means that a token is not tried, because it was rejected before.
var errTokenRefused = errors.New("the join token was rejected before")

// tokenOnHand is the join token of a host that has joined. One goroutine owns it: that of the
// start, and then that of the identities.
type tokenOnHand struct {
	text  string          // as it was last read
	token *svid.JoinToken // or nil: there is none for this host
	// mustRedeem means that the token grants something else than the host has.
	mustRedeem bool
	refusedAt  time.Time // zero: it was not rejected
}

// takeToken reads a join token, and reports whether it is a new one for this host.
func (a *Agent) takeToken(ctx context.Context, e *enrolled, text string) bool {
	text = strings.TrimSpace(text)
	if text == e.joinToken.text {
		return false
	}
	e.joinToken = tokenOnHand{text: text}
	if text == "" {
		a.tokenStatus(nil)
		return false
	}
	token, err := svid.ParseJoinToken(text)
	if err == nil {
		err = a.whyUnusable(e, token)
	}
	if err != nil {
		a.log.ErrorContext(ctx, "join token not used; keeping the current identity", "host", e.Host, "err", err)
		a.tokenStatus(&TokenStatus{State: TokenUnfit, Reason: err.Error()})
		return false
	}
	e.joinToken.token = &token
	e.joinToken.mustRedeem = e.differs(token)
	a.tokenStatus(&TokenStatus{State: TokenUnused, Reason: "the host has joined with this entitlement; it is used if the control plane rejects the host"})
	return true
}

// whyUnusable is why a token is not for this host, or nil.
func (a *Agent) whyUnusable(e *enrolled, token svid.JoinToken) error {
	switch {
	case token.Direct:
		return errDirect
	case token.Host != e.Host:
		return fmt.Errorf("the state directory %q belongs to host %q and the token is for %q: give the other host its own --state-dir, or remove this one",
			a.c.StateDir, e.Host, token.Host)
	case !trusts(a.host.Load(), token.Pin):
		return fmt.Errorf("the token is of another authority than this host's identity: to leave the old mesh for the token's, stop the agent, "+
			"remove its state directory %q and start it again", a.c.StateDir)
	}
	_, err := choose(e.with(token), a.c.Workload)
	return err
}

// with is the enrollment of the host after it has redeemed the token.
func (e *enrolled) with(token svid.JoinToken) enrollment {
	m := e.enrollment
	m.Type, m.Pairs = token.Type, pairsOf(token)
	return m
}

// differs reports whether the token grants something else than the host has.
func (e *enrolled) differs(token svid.JoinToken) bool {
	have, gives := slices.Sorted(slices.Values(e.Pairs)), slices.Sorted(slices.Values(pairsOf(token)))
	return e.Type != token.Type || !slices.Equal(have, gives)
}

func pairsOf(token svid.JoinToken) []string {
	var list []string
	for _, p := range token.Pairs {
		list = append(list, p.String())
	}
	return list
}

// redeem joins again with the token and with the key that the host has, so that what is sealed
// with that key stays readable.
func (a *Agent) redeem(ctx context.Context, e *enrolled) error {
	o := &e.joinToken
	if !o.refusedAt.IsZero() && time.Since(o.refusedAt) < tokenRetryInterval {
		return errTokenRefused
	}
	token := *o.token
	id, err := e.client.Join(ctx, token, a.host.Load().PrivateKey)
	if errors.Is(err, svid.ErrRefused) {
		o.refusedAt, o.mustRedeem = time.Now(), false
		err = fmt.Errorf("the join token was rejected: it has expired, or was used before: make a new one with `fairlead token create --host %s --replace`: %w", e.Host, err)
		a.log.ErrorContext(ctx, "join token rejected; keeping the current identity", "host", e.Host, "err", err)
		a.tokenStatus(&TokenStatus{State: TokenRefused, Reason: err.Error()})
		return err
	}
	if err != nil {
		a.tokenStatus(&TokenStatus{State: TokenWaits, Reason: err.Error()})
		return err
	}
	known := e.enrollment
	e.enrollment = e.with(token)
	o.mustRedeem, o.refusedAt = false, time.Time{}
	a.previousHost = nil // not valid after a new join
	a.host.Store(id)
	a.clock.Joined()
	a.saver.save(a.clock.Path(), a.clock.Save)
	a.saveHost(e.hosts, id)
	a.saveEnrollment(&known, e.enrollment)
	a.log.InfoContext(ctx, "join token redeemed: the host has joined again", "spiffe_id", id.ID, "not_after", id.NotAfter(), "workloads", e.Pairs, "type", e.Type)
	a.tokenStatus(&TokenStatus{State: TokenRedeemed})
	return nil
}

// tokenStatus sets the state of the token; nil means that there is none.
func (a *Agent) tokenStatus(s *TokenStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s != nil {
		s.Since = time.Now()
		if was := a.status.JoinToken; was != nil && was.State == s.State && was.Reason == s.Reason {
			return
		}
	}
	a.status.JoinToken = s
}

// changeWorkload changes the host to the workload of its entitlement and flags. It returns
// errWorkloadChanged when it has the certificate, so that Envoy is left alone until then, and
// nil if nothing is to be done.
func (a *Agent) changeWorkload(ctx context.Context, e *enrolled) error {
	pair, err := choose(e.enrollment, a.c.Workload)
	if err != nil {
		return err
	}
	moved := !slices.Equal(e.servers, e.partsServers) && !a.connected()
	if pair == e.pair && e.Type == e.partsType && !moved {
		return nil
	}
	if pair != e.pair {
		id, err := e.client.Workload(ctx, a.host.Load(), pair)
		if err != nil {
			return fmt.Errorf("host %q is to be workload %s, and stays %s until it has its certificate: %w", e.Host, pair, e.pair, err)
		}
		e.prepared = id
		known := e.enrollment
		e.Workload = pair.String()
		a.saveEnrollment(&known, e.enrollment)
	}
	a.log.InfoContext(ctx, "changing the host's workload, type or servers", "workload", pair, "type", e.Type, "servers", e.servers)
	e.pair = pair
	return errWorkloadChanged
}

// connected reports whether the relay has a server.
func (a *Agent) connected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.relay != nil && a.relay.Status().Upstream.Server != ""
}

// resume starts a host that has joined. It keeps the previous workload where a token, a server
// or a flag prevents the change.
func (a *Agent) resume(ctx context.Context, e *enrolled, noted *enrollment) error {
	text, err := a.tokenText()
	if err != nil {
		a.log.ErrorContext(ctx, "join token is unreadable; keeping the current identity", "err", err)
	}
	known, err := a.knownEnrollment(noted, text)
	if err != nil {
		return err
	}
	e.enrollment = known
	e.servers = a.servers(e)
	if a.takeToken(ctx, e, text) {
		e.servers = a.servers(e)
	}
	if a.names != nil {
		a.names.SetOthers(hostsOf(slices.Concat(e.servers, e.partsServers)))
	}
	if e.client, err = svid.NewClient(svid.ClientConfig{Servers: e.servers, TTL: a.c.TTL}); err != nil {
		return err
	}
	if e.joinToken.mustRedeem {
		if err := a.redeem(ctx, e); err != nil {
			a.log.WarnContext(ctx, "join token could not be used at startup", "err", err)
			a.setLastError(err)
		}
	}
	was, wasErr := svid.ParsePair(known.Workload)
	pair, err := choose(e.enrollment, a.c.Workload)
	switch {
	case wasErr != nil: // there was none
		e.pair = pair
		return err
	case err != nil && e.joinToken.token != nil && e.joinToken.mustRedeem:
		a.log.WarnContext(ctx, "keeping the previous workload until the join token is redeemed", "workload", was, "err", err)
		e.pair = was
		return nil
	case err != nil:
		return err
	}
	e.pair = was
	if pair == was {
		return nil
	}
	if err := a.changeWorkload(ctx, e); err != nil && !errors.Is(err, errWorkloadChanged) {
		a.log.WarnContext(ctx, "keeping the previous workload", "err", err)
		a.setLastError(err)
	}
	return nil
}

// knownEnrollment is the stored enrollment of a host that has joined. If that is lost, it
// comes from the token.
func (a *Agent) knownEnrollment(noted *enrollment, text string) (enrollment, error) {
	if noted != nil {
		return *noted, nil
	}
	token, err := svid.ParseJoinToken(strings.TrimSpace(text))
	if err != nil {
		return enrollment{}, fmt.Errorf("the file %q of this host's enrollment is missing: start once with the join token: %w", a.inState(enrollmentFile), err)
	}
	m, err := mergeEnrollment(nil, &token, Config{})
	m.Host = path.Base(a.host.Load().ID.Path())
	return m, err
}

// servers are those of the flags, or those that answered before and those of the token.
func (a *Agent) servers(e *enrolled) []string {
	if len(a.c.Servers) > 0 {
		return a.c.Servers
	}
	list := slices.Clone(e.Servers)
	if e.joinToken.token != nil {
		for _, s := range e.joinToken.token.Servers {
			if !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	return list
}

// saveServers saves the servers once one of them has answered as the control plane.
func (a *Agent) saveServers(e *enrolled, server string) {
	if slices.Contains(e.Servers, server) && len(a.c.Servers) == 0 || slices.Equal(e.Servers, e.partsServers) || !slices.Contains(e.partsServers, server) {
		return
	}
	known := e.enrollment
	e.Servers = e.partsServers
	a.saveEnrollment(&known, e.enrollment)
}

// tokenText is the current join token; empty if there is none.
func (a *Agent) tokenText() (string, error) {
	if a.c.ReadToken == nil {
		return a.c.Token, nil
	}
	return a.c.ReadToken()
}

// checkToken looks for a new join token, and reports whether a renewal is due because of it.
func (i *identities) checkToken(ctx context.Context) bool {
	text, err := i.a.tokenText()
	if err != nil {
		return false // it was readable at the start, and may be in the middle of a replacement
	}
	if text = strings.TrimSpace(text); text == i.e.joinToken.text {
		return false
	}
	if text != "" && !i.tokens.allow(time.Now()) {
		i.logFrequentChanges(ctx)
		return false // read it later
	}
	if !i.a.takeToken(ctx, i.e, text) {
		return false
	}
	i.log.InfoContext(ctx, "new join token found", "host", i.e.Host)
	i.e.servers = i.a.servers(i.e)
	if client, err := svid.NewClient(svid.ClientConfig{Servers: i.e.servers, TTL: i.a.c.TTL}); err == nil {
		i.e.client = client
	}
	// A renewal shows whether the control plane still knows the host.
	i.dueNow()
	return true
}

// logFrequentChanges logs once that the join token changes too often.
func (i *identities) logFrequentChanges(ctx context.Context) {
	if !i.tokens.logged {
		i.tokens.logged = true
		i.log.WarnContext(ctx, "join token file changes too often; reading it at most once a minute. Find the process that rewrites it", "host", i.e.Host)
	}
}

// tokenLimiter limits how often a changed join token is read.
type tokenLimiter struct {
	used   float64 // of tokenBurst
	at     time.Time
	logged bool
}

func (p *tokenLimiter) allow(now time.Time) bool {
	p.used = max(0, p.used-float64(now.Sub(p.at))/float64(tokenRefillTime))
	p.at = now
	if p.used == 0 {
		p.logged = false
	}
	if p.used+1 > tokenBurst {
		return false
	}
	p.used++
	return true
}

// dueNow makes the host's renewal due now.
func (i *identities) dueNow() { i.hostDue, i.notBefore = time.Time{}, time.Time{} }

// renewAfterRejection makes a renewal due, at a limited rate: it shows whether the control
// plane still knows the host.
func (i *identities) renewAfterRejection(now time.Time) {
	if now.Sub(i.rejectedAt) >= rejectionInterval {
		i.rejectedAt = now
		i.dueNow()
	}
}

// rejoin redeems the token of a host that the control plane no longer knows, or that is to
// change.
func (i *identities) rejoin(ctx context.Context, refusal error) error {
	o := &i.e.joinToken
	if o.token == nil || refusal == nil && !o.mustRedeem {
		return refusal
	}
	err := i.a.redeem(ctx, i.e)
	switch {
	case err == nil:
		i.hostIDs = svid.Versions{New: i.a.host.Load()}
		i.hostDue = i.hostIDs.New.RenewAt(rand.Float64()) //nolint:gosec // spreads load
		return nil
	case errors.Is(err, errTokenRefused) && refusal != nil, errors.Is(err, svid.ErrRefused) && refusal != nil:
		return refusal
	case refusal == nil && (errors.Is(err, errTokenRefused) || errors.Is(err, svid.ErrRefused)):
		return nil // the control plane knows the host; it stays as it is
	default:
		return err
	}
}

// mustChange reports whether the host is not yet what its token and flags say.
func (i *identities) mustChange() bool {
	pair, err := choose(i.e.enrollment, i.a.c.Workload)
	return i.e.joinToken.mustRedeem || err != nil || pair != i.e.pair
}
