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
	// tokenEvery is how often a running agent looks for a new join token.
	tokenEvery = 2 * time.Second
	// tokenAgain is when a token that was refused is tried again: another server of
	// the control plane may take it.
	tokenAgain = 10 * time.Minute
	// probeEvery is the least time between two renewals for the reason that a server
	// refuses the host's stream.
	probeEvery = time.Minute
	// tokensAtOnce is how many other join tokens are looked at as they come, and
	// tokensEvery how often after that: each costs a renewal, or an error in the log.
	tokensAtOnce = 3
	tokensEvery  = time.Minute
)

// TokenState is what became of the join token that the agent was given last.
type TokenState string

// The states of a join token of a host that has joined.
const (
	// TokenUnused: the control plane knows the host as the token would have it.
	TokenUnused TokenState = "unused"
	// TokenRedeemed: the host has joined with it.
	TokenRedeemed TokenState = "redeemed"
	// TokenRefused: the control plane did not accept it.
	TokenRefused TokenState = "refused"
	// TokenUnfit: it was not sent to anybody, because it is not for this host.
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

// errSwitch ends the parts of an agent: the host is something else now, and they
// are to be made again.
var errSwitch = errors.New("the host is entitled to something else now")

// errTokenRefused says that a token is not tried, because it was refused.
var errTokenRefused = errors.New("the join token was refused before")

// offer is the join token of a host that has joined. One goroutine owns it: that
// of the start, and then that of the identities.
type offer struct {
	text  string          // as it was read last
	token *svid.JoinToken // or nil: there is none that is fit for this host
	// urgent says that the host is not what the token says.
	urgent    bool
	refusedAt time.Time // zero: it was not refused
}

// take looks at a join token, and reports whether it is another one than before
// that is fit for the host.
func (a *Agent) take(ctx context.Context, e *enrolled, text string) bool {
	text = strings.TrimSpace(text)
	if text == e.offer.text {
		return false
	}
	e.offer = offer{text: text}
	if text == "" {
		a.tokenStatus(nil)
		return false
	}
	token, err := svid.ParseJoinToken(text)
	if err == nil {
		err = a.unfit(e, token)
	}
	if err != nil {
		a.log.ErrorContext(ctx, "join token not used; keeping the current identity", "host", e.Host, "err", err)
		a.tokenStatus(&TokenStatus{State: TokenUnfit, Reason: err.Error()})
		return false
	}
	e.offer.token = &token
	e.offer.urgent = e.differs(token)
	a.tokenStatus(&TokenStatus{State: TokenUnused, Reason: "the host has joined with this entitlement; it is used if the control plane refuses the host"})
	return true
}

// unfit says why a token is not one for this host.
func (a *Agent) unfit(e *enrolled, token svid.JoinToken) error {
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

// with is what the host will be once it has redeemed the token.
func (e *enrolled) with(token svid.JoinToken) memory {
	m := e.memory
	m.Type, m.Pairs = token.Type, pairsOf(token)
	return m
}

// differs reports whether the token entitles to something else than the host has.
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

// redeem joins again with the token, with the key that the host has, so that what
// is sealed with it can still be opened.
func (a *Agent) redeem(ctx context.Context, e *enrolled) error {
	o := &e.offer
	if !o.refusedAt.IsZero() && time.Since(o.refusedAt) < tokenAgain {
		return errTokenRefused
	}
	token := *o.token
	id, err := e.client.Join(ctx, token, a.host.Load().PrivateKey)
	if errors.Is(err, svid.ErrRefused) {
		o.refusedAt, o.urgent = time.Now(), false
		err = fmt.Errorf("the join token was rejected: it has expired, or was used before: make a new one with `fairlead token create --host %s --replace`: %w", e.Host, err)
		a.log.ErrorContext(ctx, "join token rejected; keeping the current identity", "host", e.Host, "err", err)
		a.tokenStatus(&TokenStatus{State: TokenRefused, Reason: err.Error()})
		return err
	}
	if err != nil {
		a.tokenStatus(&TokenStatus{State: TokenWaits, Reason: err.Error()})
		return err
	}
	known := e.memory
	e.memory = e.with(token)
	o.urgent, o.refusedAt = false, time.Time{}
	a.hostBefore = nil // it ended with this
	a.host.Store(id)
	a.clock.Joined()
	a.saver.save(a.clock.Path(), a.clock.Save)
	a.saveHost(e.hosts, id)
	a.keep(&known, e.memory)
	a.log.InfoContext(ctx, "join token redeemed: the host has joined again", "spiffe_id", id.ID, "not_after", id.NotAfter(), "workloads", e.Pairs, "type", e.Type)
	a.tokenStatus(&TokenStatus{State: TokenRedeemed})
	return nil
}

// tokenStatus shows what became of the token; nil means that there is none.
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

// become makes the host the workload that it shall be by its entitlement and the
// flags: it returns errSwitch when the certificate is there, so that Envoy is left
// alone until then. It returns nil if nothing is to be done.
func (a *Agent) become(ctx context.Context, e *enrolled) error {
	pair, err := choose(e.memory, a.c.Workload)
	if err != nil {
		return err
	}
	moved := !slices.Equal(e.servers, e.using) && !a.connected()
	if pair == e.pair && e.Type == e.running && !moved {
		return nil
	}
	if pair != e.pair {
		id, err := e.client.Workload(ctx, a.host.Load(), pair)
		if err != nil {
			return fmt.Errorf("host %q is to be workload %s, and stays %s until it has its certificate: %w", e.Host, pair, e.pair, err)
		}
		e.prepared = id
		known := e.memory
		e.Workload = pair.String()
		a.keep(&known, e.memory)
	}
	a.log.InfoContext(ctx, "changing the host's workload, type or servers", "workload", pair, "type", e.Type, "servers", e.servers)
	e.pair = pair
	return errSwitch
}

// connected reports whether the relay has a server.
func (a *Agent) connected() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.relay != nil && a.relay.Status().Upstream.Server != ""
}

// resume is the start of a host that has joined. It goes on as what it was where a
// token, a server or a flag does not let it become what it shall be.
func (a *Agent) resume(ctx context.Context, e *enrolled, noted *memory) error {
	text, err := a.tokenText()
	if err != nil {
		a.log.ErrorContext(ctx, "join token is unreadable; keeping the current identity", "err", err)
	}
	known, err := a.recall(noted, text)
	if err != nil {
		return err
	}
	e.memory = known
	e.servers = a.servers(e)
	if a.take(ctx, e, text) {
		e.servers = a.servers(e)
	}
	if e.client, err = svid.NewClient(svid.ClientConfig{Servers: e.servers, TTL: a.c.TTL}); err != nil {
		return err
	}
	if e.offer.urgent {
		if err := a.redeem(ctx, e); err != nil {
			a.log.WarnContext(ctx, "join token could not be used at startup", "err", err)
			a.fault(err)
		}
	}
	was, wasErr := svid.ParsePair(known.Workload)
	pair, err := choose(e.memory, a.c.Workload)
	switch {
	case wasErr != nil: // it never had one
		e.pair = pair
		return err
	case err != nil && e.offer.token != nil && e.offer.urgent:
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
	if err := a.become(ctx, e); err != nil && !errors.Is(err, errSwitch) {
		a.log.WarnContext(ctx, "keeping the previous workload", "err", err)
		a.fault(err)
	}
	return nil
}

// recall is what is noted of a host that has joined. Where the note is lost, it is
// what the token says.
func (a *Agent) recall(noted *memory, text string) (memory, error) {
	if noted != nil {
		return *noted, nil
	}
	token, err := svid.ParseJoinToken(strings.TrimSpace(text))
	if err != nil {
		return memory{}, fmt.Errorf("the file %q of this host's enrollment is missing: start once with the join token: %w", a.inState(memoryFile), err)
	}
	m, err := combine(nil, &token, Config{})
	m.Host = path.Base(a.host.Load().ID.Path())
	return m, err
}

// servers are the ones to use: those of the flags, or those that were reached before
// and those of the token.
func (a *Agent) servers(e *enrolled) []string {
	if len(a.c.Servers) > 0 {
		return a.c.Servers
	}
	list := slices.Clone(e.Servers)
	if e.offer.token != nil {
		for _, s := range e.offer.token.Servers {
			if !slices.Contains(list, s) {
				list = append(list, s)
			}
		}
	}
	return list
}

// reached notes that a server answered as the control plane: servers that never did
// are not kept.
func (a *Agent) reached(e *enrolled, server string) {
	if slices.Contains(e.Servers, server) && len(a.c.Servers) == 0 || slices.Equal(e.Servers, e.using) || !slices.Contains(e.using, server) {
		return
	}
	known := e.memory
	e.Servers = e.using
	a.keep(&known, e.memory)
}

// tokenText is the join token as it is now; empty is none.
func (a *Agent) tokenText() (string, error) {
	if a.c.ReadToken == nil {
		return a.c.Token, nil
	}
	return a.c.ReadToken()
}

// watch does what an event asks for, between renewals. It reports whether there
// is to be a renewal now.
func (i *identities) watch(ctx context.Context) bool {
	text, err := i.a.tokenText()
	if err != nil {
		return false // it was readable at the start, and may be replaced just now
	}
	if text = strings.TrimSpace(text); text == i.e.offer.text {
		return false
	}
	if text != "" && !i.tokens.ok(time.Now()) {
		i.tellOften(ctx)
		return false // the one that is there then is looked at later
	}
	if !i.a.take(ctx, i.e, text) {
		return false
	}
	i.log.InfoContext(ctx, "new join token found", "host", i.e.Host)
	i.e.servers = i.a.servers(i.e)
	if client, err := svid.NewClient(svid.ClientConfig{Servers: i.e.servers, TTL: i.a.c.TTL}); err == nil {
		i.e.client = client
	}
	// Whether the control plane knows the host as it is, a renewal says.
	i.dueNow()
	return true
}

// tellOften logs once that the join token changes too often.
func (i *identities) tellOften(ctx context.Context) {
	if !i.tokens.told {
		i.tokens.told = true
		i.log.WarnContext(ctx, "join token file changes too often; reading it at most once a minute. Find the process that rewrites it", "host", i.e.Host)
	}
}

// tokenPace bounds how often another join token is looked at.
type tokenPace struct {
	used float64 // of tokensAtOnce
	at   time.Time
	told bool
}

func (p *tokenPace) ok(now time.Time) bool {
	p.used = max(0, p.used-float64(now.Sub(p.at))/float64(tokensEvery))
	p.at = now
	if p.used == 0 {
		p.told = false
	}
	if p.used+1 > tokensAtOnce {
		return false
	}
	p.used++
	return true
}

// dueNow makes the host's renewal due, whenever the last one was.
func (i *identities) dueNow() { i.hostDue, i.notBefore = time.Time{}, time.Time{} }

// refused asks for the renewal that says whether the control plane still knows the
// host, once in a while.
func (i *identities) refused(now time.Time) {
	if now.Sub(i.probed) >= probeEvery {
		i.probed = now
		i.dueNow()
	}
}

// rejoin uses the token of a host that the control plane does not know any more,
// or that is to be something else.
func (i *identities) rejoin(ctx context.Context, refusal error) error {
	o := &i.e.offer
	if o.token == nil || refusal == nil && !o.urgent {
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
		return nil // the host is known as it is, and goes on
	default:
		return err
	}
}

// unfinished reports whether the host is not yet what it shall be.
func (i *identities) unfinished() bool {
	pair, err := choose(i.e.memory, i.a.c.Workload)
	return i.e.offer.urgent || err != nil || pair != i.e.pair
}
