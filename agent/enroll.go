package agent

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/ownaddress"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/pki/svid"
)

// enrollment is what an agent knows without its token after a restart.
type enrollment struct {
	Host     string   `json:"host"`
	Type     string   `json:"type"`
	Pairs    []string `json:"workloads"`
	Workload string   `json:"workload"`
	Servers  []string `json:"servers"`
	Address  string   `json:"address"`
}

var errDirect = errors.New("the token is for a client without an agent: make one without --direct")

const (
	enrollmentFile = "agent.json"
	// acceptedFile is the relay's store.
	acceptedFile  = "accepted.xds"
	maxEnrollment = 1 << 20
)

// enrolled is a host that has joined. One goroutine owns it: that of the start, and then that
// of the identities.
type enrolled struct {
	enrollment
	pair    svid.Pair
	address netip.Addr
	client  *svid.Client
	hosts   *svid.HostStore
	// servers are the ones in use; Servers those of them that are saved.
	servers   []string
	joinToken tokenOnHand

	// prepared is the identity of pair if it is not on disk; or nil.
	prepared *svid.Identity
	// partsServers and partsType are the servers and the type that the components were made
	// with.
	partsServers []string
	partsType    string
}

// enroll makes this machine a host of the mesh, unless it is one.
func (a *Agent) enroll(ctx context.Context) (*enrolled, error) {
	e := &enrolled{}
	known, err := a.loadEnrollment()
	if err != nil {
		return nil, err
	}
	if e.hosts, err = svid.NewHostStore(a.c.StateDir, nil); err != nil {
		return nil, err
	}
	ids, err := e.hosts.Versions()
	if w := e.hosts.Warning(); w != "" {
		a.log.WarnContext(ctx, "host key is readable by a group", "reason", w)
	}
	switch {
	case err == nil:
		a.previousHost = ids.Old
		a.host.Store(ids.New)
		a.log.InfoContext(ctx, "using the stored host identity", "spiffe_id", ids.New.ID, "not_after", ids.New.NotAfter())
		err = a.resume(ctx, e, known)
	case errors.Is(err, svid.ErrNoIdentity):
		err = a.join(ctx, e, known, err)
	}
	if err != nil {
		return nil, err
	}
	e.Workload = e.pair.String()
	if e.address, err = a.address(ctx, e); err != nil {
		return nil, err
	}
	e.Address = e.address.String()
	a.saveEnrollment(known, e.enrollment)
	a.saver.flush(ctx)
	return e, nil
}

// loadEnrollment reads the saved enrollment; nil if there is none.
func (a *Agent) loadEnrollment() (*enrollment, error) { return readEnrollment(a.c.StateDir) }

// Known is what the state directory of an agent that has joined says of the host: the servers of the
// control plane, and its address in the mesh. Both are empty if there is nothing.
func Known(stateDir string) (servers []string, address string, err error) {
	m, err := readEnrollment(stateDir)
	if m == nil {
		return nil, "", err
	}
	return m.Servers, m.Address, nil
}

func readEnrollment(stateDir string) (*enrollment, error) {
	path := filepath.Join(stateDir, enrollmentFile)
	b, err := durable.ReadFile(path, maxEnrollment)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m enrollment
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return nil, fmt.Errorf("reading %q: %w: remove it and start once with --token", path, err)
	}
	return &m, nil
}

// saveEnrollment saves the enrollment, unless it is saved already.
func (a *Agent) saveEnrollment(known *enrollment, m enrollment) {
	if known != nil && reflect.DeepEqual(*known, m) {
		return
	}
	path := a.inState(enrollmentFile)
	a.saver.save(path, func() error {
		b, err := json.MarshalIndent(m, "", "  ")
		if err != nil {
			return fmt.Errorf("recording the enrollment: %w", err)
		}
		return durable.WriteFile(durable.OS{}, path, append(b, '\n'), 0o600)
	})
}

// mergeEnrollment is the enrollment by the saved one, the token and the flags.
func mergeEnrollment(known *enrollment, token *svid.JoinToken, c Config) (enrollment, error) {
	var m enrollment
	switch {
	case known == nil && token == nil:
		return m, errors.New("this host has not joined a mesh, and has no join token: make one on the control plane with `fairlead token create --out FILE`, copy the file, and start once with --token-file FILE; if that is set, the file is missing or empty")
	case known != nil && token != nil && known.Host != token.Host:
		return m, fmt.Errorf("the state directory %q belongs to host %q and the token is for %q: give the other host its own --state-dir, or remove this one",
			c.StateDir, known.Host, token.Host)
	case known != nil:
		m = *known
	}
	if token != nil {
		m.Host, m.Type, m.Servers, m.Pairs = token.Host, token.Type, token.Servers, nil
		for _, p := range token.Pairs {
			m.Pairs = append(m.Pairs, p.String())
		}
	}
	if len(c.Servers) > 0 {
		m.Servers = c.Servers
	}
	return m, nil
}

// choose returns the workload of those that the host is entitled to.
func choose(m enrollment, want svid.Pair) (svid.Pair, error) {
	name := m.Workload
	if !slices.Contains(m.Pairs, name) {
		name = "" // it belongs to an earlier entitlement
	}
	if want != (svid.Pair{}) {
		name = want.String()
	}
	if name == "" && len(m.Pairs) == 1 {
		name = m.Pairs[0]
	}
	if name == "" {
		return svid.Pair{}, fmt.Errorf("host %q may be several workloads: choose one with --workload: %s", m.Host, strings.Join(m.Pairs, ", "))
	}
	if !slices.Contains(m.Pairs, name) {
		return svid.Pair{}, fmt.Errorf("host %q may not be workload %q, only %s: make a token that says so", m.Host, name, strings.Join(m.Pairs, ", "))
	}
	return svid.ParsePair(name)
}

// join joins with the token, and retries until a server answers.
func (a *Agent) join(ctx context.Context, e *enrolled, known *enrollment, lost error) error {
	text, err := a.tokenText()
	if err != nil {
		return err
	}
	var given *svid.JoinToken
	if text = strings.TrimSpace(text); text != "" {
		token, err := svid.ParseJoinToken(text)
		if err == nil && token.Direct {
			err = errDirect
		}
		if err != nil {
			return err
		}
		given = &token
	}
	if e.enrollment, err = mergeEnrollment(known, given, a.c); err != nil {
		return err
	}
	if given == nil {
		return fmt.Errorf("this host has lost its identity: start once with --token and a token made with --replace: %w", lost)
	}
	if e.pair, err = choose(e.enrollment, a.c.Workload); err != nil {
		return err
	}
	e.servers = e.Servers
	if e.client, err = svid.NewClient(svid.ClientConfig{Servers: e.servers, TTL: a.c.TTL}); err != nil {
		return err
	}
	e.joinToken.text, e.joinToken.token = text, given
	return a.identify(ctx, e)
}

// identify joins, and retries until a server answers.
func (a *Agent) identify(ctx context.Context, e *enrolled) error {
	key, err := e.hosts.Key()
	if err != nil {
		return err
	}
	b := newBackOff(200*time.Millisecond, 5*time.Second)
	for {
		began := time.Now()
		id, err := e.client.Join(ctx, *e.joinToken.token, key)
		if err == nil {
			a.host.Store(id)
			a.log.InfoContext(ctx, "joined the mesh", "spiffe_id", id.ID, "not_after", id.NotAfter())
			a.clock.Joined()
			a.saver.save(a.clock.Path(), a.clock.Save)
			a.saveHost(e.hosts, id)
			a.saver.flush(ctx)
			a.tokenStatus(&TokenStatus{State: TokenRedeemed})
			return nil
		}
		if errors.Is(err, svid.ErrRefused) {
			return fmt.Errorf("the join token was rejected: it has expired, or was used by another host: make a new one with `fairlead token create --host %s`: %w", e.Host, err)
		}
		if errors.Is(err, svid.ErrNotControlPlane) {
			return fmt.Errorf("the join token was not sent: none of its servers was reached: %w", err)
		}
		if b.tries == 0 {
			a.log.WarnContext(ctx, "control plane unreachable, retrying", "servers", e.Servers, "err", err)
		}
		a.setLastError(err)
		if !b.wait(ctx, time.Since(began)) {
			return ctx.Err()
		}
	}
}

// trusts reports whether the identity knows the authority with that key.
func trusts(id *svid.Identity, pin [sha256.Size]byte) bool {
	return slices.ContainsFunc(id.Bundle.X509Authorities(), func(root *x509.Certificate) bool {
		return sha256.Sum256(root.RawSubjectPublicKeyInfo) == pin
	})
}

// address is the address of this host for other hosts.
func (a *Agent) address(ctx context.Context, e *enrolled) (netip.Addr, error) {
	if a.c.Address.IsValid() {
		return a.c.Address.Unmap(), nil
	}
	known, knownErr := netip.ParseAddr(e.Address)
	at, err := ownaddress.Of(ctx, e.servers)
	switch {
	case err == nil && at.IsLoopback() && knownErr == nil && !known.IsLoopback():
		a.log.WarnContext(ctx, "the control plane is at a loopback address only: using the last known address", "address", known)
		return known, nil
	case err == nil && at.IsLoopback():
		a.log.WarnContext(ctx, "the control plane is at a loopback address only, and so is this host's address, which others cannot reach; set --address to change it", "address", at)
		return at, nil
	case err == nil:
		a.log.InfoContext(ctx, "using the source address of the route to the control plane; set --address to change it", "address", at)
		return at, nil
	case knownErr == nil:
		a.log.WarnContext(ctx, "no route to the control plane: using the last known address", "address", known, "err", err)
		return known, nil
	default:
		return netip.Addr{}, fmt.Errorf("finding this host's address failed: set --address: %w", err)
	}
}
