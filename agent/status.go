package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead/fairlead/agent/collectors"
	"github.com/fairlead/fairlead/agent/dns"
	"github.com/fairlead/fairlead/agent/logrotate"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/agent/relay"
	"github.com/fairlead/fairlead/agent/workload"
	"github.com/fairlead/fairlead/internal/envoymask"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

// Status is the state of an agent at one moment. It has no secrets.
type Status struct {
	// Host is the host's name; empty until it has joined.
	Host string `json:"host"`
	// Workload is NAMESPACE/SERVICE-ACCOUNT, and Node the node id.
	Workload string `json:"workload"`
	Node     string `json:"node"`
	// Identities are the host's and the workload's, as far as they exist.
	Identities []IdentityStatus `json:"identities"`
	// LastError is why an identity is missing or not renewed, or empty.
	LastError string `json:"last_error,omitempty"`
	// JoinToken is the state of the join token given last; nil if there is none.
	JoinToken *TokenStatus `json:"join_token,omitempty"`
	// ClockDoubt says why this host's clock and the control plane's cannot both be right;
	// empty if they may be.
	ClockDoubt string `json:"clock_doubt,omitempty"`
	// Unsaved are the files of the state directory that are older than the state in use; a
	// restart would use the older content.
	Unsaved []Unsaved `json:"unsaved,omitempty"`

	// MeshWorkload is who the control plane says that the workload is, for metrics; nil until it
	// has said so.
	MeshWorkload *bootstrap.Workload `json:"mesh_workload,omitempty"`

	// NextStart are the fields of the ProxyConfig that are in force with the next start of Envoy,
	// and not yet.
	NextStart []string `json:"next_start,omitempty"`

	EnvoyBinary  string        `json:"envoy_binary"`
	EnvoyVersion string        `json:"envoy_version"`
	Ports        Ports         `json:"ports"`
	Envoy        proxy.Status  `json:"envoy"`
	Relay        *relay.Status `json:"relay,omitempty"`
	// RefusedCalls counts calls at Envoy's sockets without the token: they do not come from
	// the bootstrap of this agent's Envoy.
	RefusedCalls uint64 `json:"refused_calls"`
	// ClosedConnections counts connections to these sockets that were closed because they did
	// not show the token.
	ClosedConnections uint64 `json:"closed_connections"`
	// SocketProblems say which sockets are missing and cannot be made again, and what this means.
	SocketProblems []string `json:"socket_problems,omitempty"`
	socketProblems []problem
	// Credentials are those of this host that Envoy has asked for, and certificates in files: names,
	// states and ends.
	Credentials []workload.Credential `json:"credentials,omitempty"`
	// AccessLogs are the logs that Envoy writes to files, and what the rotation of them did.
	AccessLogs logrotate.Status `json:"access_logs"`
	// Reports is what collectors of spans and logs did not take.
	Reports collectors.Status `json:"reports"`
	// DNS is what the agent's DNS does; nil if it is off.
	DNS *dns.Status `json:"dns,omitempty"`
	// RemadeSockets count, by name, how often a socket was made again because somebody had
	// removed it.
	RemadeSockets map[string]uint64 `json:"remade_sockets,omitempty"`
}

// IdentityStatus is one identity.
type IdentityStatus struct {
	ID        string    `json:"spiffe_id"`
	Serial    string    `json:"serial"`
	NotBefore time.Time `json:"not_before"`
	NotAfter  time.Time `json:"not_after"`
}

// Status is the current state of the agent.
func (a *Agent) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	if who, known := a.Workload(); known {
		s.MeshWorkload = &who
	}
	if a.started != nil {
		start := a.startNow()
		s.NextStart = start.differs(a.started)
	}
	s.ClockDoubt = a.clockMismatch(wallclock.Now())
	for _, id := range []*svid.Identity{a.host.Load(), a.workload.Load()} {
		if id == nil {
			continue
		}
		leaf := id.Leaf()
		s.Identities = append(s.Identities, IdentityStatus{
			ID: id.ID.String(), Serial: leaf.SerialNumber.Text(16), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		})
	}
	if a.relay != nil {
		r := a.relay.Status()
		s.Relay = &r
	}
	if a.proxy != nil {
		s.Envoy = a.proxy.Status()
	}
	if a.logs != nil {
		s.AccessLogs = a.logs.Status()
	}
	if a.reports != nil {
		s.Reports = a.reports.Status()
	}
	if a.dns != nil {
		answers := a.dns.Status()
		s.DNS = &answers
	}
	if a.secrets != nil {
		s.Credentials = a.secrets.Credentials()
	}
	s.Unsaved = a.saver.unsaved(time.Now())
	if s.Relay != nil && s.Relay.Unsaved != "" {
		s.Unsaved = append(s.Unsaved, Unsaved{
			File: acceptedFile, Path: a.inState(acceptedFile), Err: s.Relay.Unsaved, Since: s.Relay.UnsavedSince,
		})
	}
	for _, g := range a.guards {
		s.RefusedCalls += g.Refused()
		s.ClosedConnections += g.Closed()
		if name, n := g.Remade(); s.RemadeSockets == nil {
			s.RemadeSockets = map[string]uint64{name: n}
		} else {
			s.RemadeSockets[name] = n
		}
		if p := g.Problem(); p != "" {
			s.socketProblems = append(s.socketProblems, problemOf(socketProblem, p))
		}
	}
	if a.withoutAdminSocket(&s) {
		s.socketProblems = append(s.socketProblems, problemOf(adminSocketRemoved))
	}
	s.SocketProblems = asTexts(s.socketProblems)
	return s
}

// Remarks are problems that need action although Envoy serves.
func (a *Agent) Remarks() []string {
	s, now := a.Status(), time.Now()
	var out []string
	out = append(out, s.SocketProblems...)
	out = append(out, credentialRemarks(s.Credentials)...)
	out = append(out, s.AccessLogs.Problems...)
	out = append(out, s.Reports.Remarks()...)
	if s.DNS != nil {
		out = append(out, s.DNS.Remarks()...)
	}
	for _, u := range s.Unsaved {
		out = append(out, fmt.Sprintf("%s could not be saved for %s (in use; lost by a restart): %s",
			u.Path, now.Sub(u.Since).Truncate(time.Second), u.Err))
	}
	if s.ClockDoubt != "" {
		out = append(out, s.ClockDoubt)
	}
	if t := s.JoinToken; t != nil && t.State != TokenUnused && t.State != TokenRedeemed {
		out = append(out, fmt.Sprintf("the join token is %s: %s", t.State, t.Reason))
	}
	if s.LastError != "" {
		out = append(out, "renewing a certificate failed: "+s.LastError)
	}
	if s.Relay != nil {
		out = append(out, relayRemarks(s.Relay, now)...)
	}
	return out
}

// cutOffAfter is how long the control plane may be away, as in its restart, until that is said.
const cutOffAfter = 10 * time.Second

// relayRemarks say that there is no control plane, and what Envoy rejects.
func relayRemarks(r *relay.Status, now time.Time) (out []string) {
	if u := r.Upstream; u.Server == "" && u.LastError != "" && now.Sub(u.Since) > cutOffAfter {
		out = append(out, fmt.Sprintf("no control plane is connected since %s; this host serves its last configuration and gets no changes: %s",
			u.Since.UTC().Format(time.RFC3339), u.LastError))
	}
	if n := len(r.Fallbacks); n > 0 {
		f := r.Fallbacks[0]
		out = append(out, fmt.Sprintf("Envoy rejects stored listeners (%d) that Envoy %s accepted, and has those that its own release accepted last, which lack later changes; the first is %s, of %s: %s; connect the control plane, or run Envoy %s again",
			n, f.By, f.Name, f.AcceptedAt.UTC().Format(time.RFC3339), f.Reason, f.By))
	}
	if n := len(r.Rejected); n > 0 {
		x := r.Rejected[0]
		out = append(out, fmt.Sprintf("Envoy rejects resources (%d), the first is %s %s: %s; %s", n, x.Type.Short(), x.Name, x.Reason, cureOf(x.Reason)))
	}
	return out
}

// NotReady says why the workload is unreachable; empty means that Envoy serves.
func (a *Agent) NotReady(ctx context.Context) []string { return asTexts(a.notReady(ctx)) }

func (a *Agent) notReady(ctx context.Context) []problem {
	why := a.starting(ctx)
	if len(why) == 0 {
		why = a.overloaded(ctx)
	}
	if r := a.Status().Relay; r != nil && r.Unserved != "" {
		why = append(why, problemOf(noInbound, r.Unserved, cureOf(r.Unserved)))
	}
	if w := a.workload.Load(); w != nil && wallclock.Now().After(w.NotAfter()) {
		a.mu.Lock()
		defer a.mu.Unlock()
		why = append(why, problemOf(certificateExpired, w.NotAfter().Format(time.RFC3339), a.status.LastError))
	}
	return why
}

// Starting says what the start waits for. It is for a supervisor of the process: a restart
// does not fix an expired certificate.
func (a *Agent) Starting(ctx context.Context) []string { return asTexts(a.starting(ctx)) }

func (a *Agent) starting(ctx context.Context) []problem {
	s := a.Status()
	var why []problem
	if len(s.Identities) < 2 {
		why = append(why, problemOf(noIdentity, s.LastError))
	}
	a.mu.Lock()
	admin := a.admin
	a.mu.Unlock()
	if admin == nil || s.Envoy.PID == 0 {
		return append(why, notRunning(&s))
	}
	answer, cancel := context.WithTimeout(ctx, askEnvoyFor)
	defer cancel()
	if err := (envoyReadiness{a}).Ready(answer); err != nil {
		known := &notReadyError{problem: problemOf(envoyUnknown, err.Error())}
		_ = errors.As(err, &known)
		why = append(why, known.problem)
	}
	if s.DNS != nil && s.DNS.Table == dns.StateNone {
		why = append(why, problemOf(noNames))
	}
	return why
}

// setLastError sets the last error of the status; nil clears it.
func (a *Agent) setLastError(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status.LastError = ""
	if err != nil {
		a.status.LastError = err.Error()
	}
}

// ConfigDump is Envoy's config_dump, with secrets masked, and with the token of the agent's
// sockets and the name of the admin socket masked.
func (a *Agent) ConfigDump(ctx context.Context) ([]byte, error) {
	b, err := a.askEnvoy(ctx, (*proxy.Admin).Get, "/config_dump?include_eds")
	if err != nil {
		return nil, err
	}
	return envoymask.JSON(b)
}

// EnvoyClusters is what Envoy says of the endpoints of its clusters, as JSON.
func (a *Agent) EnvoyClusters(ctx context.Context) ([]byte, error) {
	return a.askEnvoy(ctx, (*proxy.Admin).Get, "/clusters?format=json")
}

// EnvoyLogging is the list of Envoy's loggers with their levels.
func (a *Agent) EnvoyLogging(ctx context.Context) ([]byte, error) {
	return a.askEnvoy(ctx, (*proxy.Admin).Post, "/logging") // Envoy takes no GET, even where nothing changes
}

// askEnvoy asks Envoy's admin interface, and masks in the answer what only the agent and Envoy
// may know.
func (a *Agent) askEnvoy(ctx context.Context, ask func(*proxy.Admin, context.Context, string) ([]byte, error), path string) ([]byte, error) {
	a.mu.Lock()
	admin, known := a.admin, a.known
	a.mu.Unlock()
	if admin == nil {
		return nil, errors.New("asking Envoy: it is not running yet")
	}
	b, err := ask(admin, ctx, path)
	if err != nil {
		return nil, err
	}
	// Both consist of letters and digits, which JSON does not escape.
	for _, secret := range []string{known.Token, known.AdminSocket} {
		if secret != "" {
			b = bytes.ReplaceAll(b, []byte(secret), []byte(envoymask.Masked))
		}
	}
	return b, nil
}
