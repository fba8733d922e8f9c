package server

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/internal/wallclock"
	"github.com/fairlead/fairlead/pki/attest/jointoken"
	"github.com/fairlead/fairlead/pki/issue/serials"
	"github.com/fairlead/fairlead/pki/profile"
	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
)

// TokenRequest asks for a join token.
type TokenRequest struct {
	Host      string        `json:"host"`
	Workloads []string      `json:"workloads"` // NAMESPACE/SERVICEACCOUNT
	TTL       time.Duration `json:"ttl"`
	Direct    bool          `json:"direct"`
	Replace   bool          `json:"replace"`
	Type      string        `json:"type"`
	// Addresses are those of the host's workloads, which the token proves to be its:
	// ADDRESS, or NETWORK/ADDRESS.
	Addresses []string `json:"addresses,omitempty"`
}

// Token is a join token, to be shown once.
type Token struct {
	Token   string    `json:"token,omitempty"`
	Host    string    `json:"host"`
	Expires time.Time `json:"expires"`
	// ID is the one that the list of tokens shows.
	ID string `json:"id,omitempty"`
}

// Host is a host that may have identities.
type Host struct {
	Name      string    `json:"name"`
	Direct    bool      `json:"direct,omitempty"`
	Workloads []string  `json:"workloads"`
	Type      string    `json:"type"`
	Joined    time.Time `json:"joined,omitzero"`
	Seen      time.Time `json:"seen,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	Fault     string    `json:"fault,omitempty"`
	// Returns is how often it came with a certificate that it had left for a newer
	// one, Returned when it did so last, Fork says that two hold its key.
	Returns  int       `json:"returns,omitempty"`
	Returned time.Time `json:"returned,omitzero"`
	// Readopted is when it was admitted by its certificates, for its record was lost.
	Readopted time.Time     `json:"readopted,omitzero"`
	Fork      *serials.Fork `json:"fork,omitempty"`
	// Waiting says that there is a token for it that nobody has redeemed yet, and that can be.
	Waiting bool `json:"waiting,omitempty"`
	// Addresses are those that its token names, Claims the workloads that it holds.
	Addresses []string             `json:"addresses,omitempty"`
	Claims    []agents.ClaimStatus `json:"claims,omitempty"`

	onRecord bool // else there is a token only
}

// Sources is how the sources of the mesh stand.
type Sources struct {
	Ready    bool            `json:"ready"`
	NotReady []string        `json:"not_ready,omitempty"`
	Registry registry.Status `json:"registry"`
	// Files are the directories, the mesh configuration, and manifests in Consul's
	// key-value store.
	Files []files.Status `json:"files"`
	// Consul are the datacenters of which the catalog is read.
	Consul []consul.Status `json:"consul,omitempty"`
	// Keys are those of issuers of RequestAuthentications.
	Keys KeySets `json:"keys"`
	// Networks are how the gateways of MeshNetworks stand.
	Networks Networks `json:"networks,omitzero"`
	// Old are sources that serve an old state, Unsaved those whose state is not on disk.
	Old     []string `json:"old,omitempty"`
	Unsaved []string `json:"unsaved,omitempty"`
	// Clock is a problem of the server's clock.
	Clock []string `json:"clock,omitempty"`
}

// Released says that held removals were let go.
type Released struct {
	Source string `json:"source"`
}

// sdRoute is where Prometheus asks for its targets.
const sdRoute = "GET /sd/prometheus"

// publicRoutes are served to everybody who can connect to the port for metrics.
func (s *Server) publicRoutes() map[string]http.Handler {
	if !s.cfg.PrometheusSD {
		return nil
	}
	return map[string]http.Handler{sdRoute: http.HandlerFunc(s.serveSD)}
}

func (s *Server) routes() map[string]http.Handler {
	return map[string]http.Handler{
		sdRoute:                     http.HandlerFunc(s.serveSD),
		"POST /v1/tokens":           admin.JSON(s.createToken),
		"GET /v1/tokens":            admin.JSON(s.listTokens),
		"DELETE /v1/tokens/{id}":    admin.JSON(s.revokeToken),
		"GET /v1/addresses":         admin.JSON(s.listAddresses),
		"GET /v1/hosts":             admin.JSON(s.listHosts),
		"GET /v1/hosts/export":      admin.JSON(s.exportHosts),
		"POST /v1/hosts/import":     admin.LargeJSON(maxImport, s.importHosts),
		"DELETE /v1/hosts/{name}":   admin.JSON(s.removeHost),
		"DELETE /v1/refusals":       admin.JSON(s.forgetRefusals),
		"GET /v1/proxies":           admin.JSON(s.proxies),
		"GET /v1/conditions":        admin.JSON(s.conditions),
		"GET /v1/config/{proxy}":    admin.JSON(s.proxyConfig),
		"GET /v1/sources":           admin.JSON(s.sources),
		"POST /v1/release/{source}": admin.JSON(s.release),
		"GET /v1/clock":             admin.JSON(s.clockStatus),
		"POST /v1/clock/accept":     admin.JSON(s.acceptClock),
		"GET /v1/rollout/{path...}": admin.JSON(s.rolloutOf),
		"GET /debug/pushes":         admin.JSON(s.pushes),
		"GET /debug/objects":        admin.JSON(s.objects),
	}
}

func (s *Server) createToken(ctx context.Context, _ *http.Request, in TokenRequest) (Token, error) {
	grant := jointoken.Grant{Host: in.Host, Type: in.Type, Direct: in.Direct, Replace: in.Replace}
	if grant.Type == "" {
		grant.Type = "sidecar"
	}
	for _, w := range in.Workloads {
		pair, err := profile.ParsePair(w)
		if err != nil {
			return Token{}, fmt.Errorf("--workload %q: %w", w, err)
		}
		grant.Pairs = append(grant.Pairs, pair)
	}
	if in.TTL == 0 {
		in.TTL = jointoken.DefaultTTL
	}
	addresses, err := parseAddresses(in.Addresses)
	if err != nil {
		return Token{}, err
	}
	pin, err := s.authority.Pin()
	if err != nil {
		return Token{}, err
	}
	secret, record, err := s.entitled.CreateToken(grant, in.TTL, wallclock.Now(), addresses...)
	if err != nil {
		return Token{}, err
	}
	text, err := svid.JoinToken{
		Secret: secret, Host: record.Grant.Host, Pairs: record.Grant.Pairs, Direct: record.Grant.Direct, Type: record.Grant.Type,
		TrustDomain: s.authority.TrustDomain(), Servers: s.advertise, Pin: pin,
	}.Encode()
	if err != nil {
		return Token{}, err
	}
	s.cfg.Logger.InfoContext(ctx, "join token made", "id", record.ID(), "host", record.Grant.Host, "workloads", in.Workloads, "not_after", record.Expires)
	return Token{Token: text, Host: record.Grant.Host, Expires: record.Expires, ID: record.ID()}, nil
}

func (s *Server) listHosts(context.Context, *http.Request, struct{}) ([]Host, error) {
	return s.hostList(), nil
}

// hostList lists the hosts on record, and those that have only a token so far.
func (s *Server) hostList() []Host {
	out, at := []Host{}, map[string]int{}
	held := map[string][]agents.ClaimStatus{}
	for _, c := range s.agents.Claims() {
		held[c.Host] = append(held[c.Host], c)
	}
	for _, h := range s.entitled.List() {
		host := Host{
			Name: h.Name, Direct: h.Direct, Workloads: pairNames(h.Pairs), Type: h.Type,
			Joined: h.Joined, Readopted: h.Readopted, Seen: h.Seen, NotAfter: h.NotAfter, Fault: h.Fault,
			Addresses: addressNames(h.Addresses), Claims: held[h.Name], onRecord: true,
		}
		s.inUse(&host, h.Binding)
		at[h.Name] = len(out)
		out = append(out, host)
	}
	for _, r := range s.entitled.Tokens() {
		if r.State(wallclock.Now()) != jointoken.Unused {
			continue
		}
		i, known := at[r.Grant.Host]
		if !known {
			i = len(out)
			at[r.Grant.Host] = i
			out = append(out, Host{Name: r.Grant.Host, Direct: r.Grant.Direct, Workloads: pairNames(r.Grant.Pairs), Type: r.Grant.Type})
		}
		out[i].Waiting = true
	}
	slices.SortStableFunc(out, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func pairNames(pairs []profile.Pair) []string {
	names := make([]string, 0, len(pairs))
	for _, p := range pairs {
		names = append(names, p.String())
	}
	return names
}

func (s *Server) removeHost(ctx context.Context, r *http.Request, _ struct{}) (Host, error) {
	name := r.PathValue("name")
	if err := s.entitled.Remove(name); err != nil {
		return Host{}, err
	}
	s.cfg.Logger.InfoContext(ctx, "host removed", "host", name)
	s.agents.HostsChanged()
	if err := s.serials.Forget(name); err != nil {
		s.cfg.Logger.WarnContext(ctx, "deleting the certificate record of a removed host failed; retrying at the next start", "host", name, "err", err)
	}
	return Host{Name: name}, nil
}

func (s *Server) sources(context.Context, *http.Request, struct{}) (Sources, error) {
	out := s.sourcesNow()
	for i := range out.Files {
		shortenFaults(&out.Files[i])
	}
	return out, nil
}

// maxFaults and maxFault bound what one source adds to an answer; `fairlead validate` has all.
const (
	maxFaults = 500
	maxFault  = 1024
)

// shortenFaults leaves out what is more, warnings before errors.
func shortenFaults(st *files.Status) {
	if len(st.Faults) > maxFaults {
		slices.SortStableFunc(st.Faults, func(a, b manifest.Fault) int { return cmp.Compare(warns(a), warns(b)) })
		for _, f := range st.Faults[maxFaults:] {
			st.MoreErrors += 1 - warns(f)
		}
		st.Faults = slices.Clip(st.Faults[:maxFaults])
		slices.SortStableFunc(st.Faults, lastgood.CompareFaults)
	}
	for i := range st.Faults {
		if f := &st.Faults[i]; len(f.Message) > maxFault {
			f.Message = safetext.Sanitize(f.Message, maxFault)
		}
		if f := &st.Faults[i]; len(f.Field) > maxFault {
			f.Field = safetext.Sanitize(f.Field, maxFault)
		}
	}
}

// warns is 1 for a warning, and 0 for an error.
func warns(f manifest.Fault) int {
	if f.Severity == manifest.Error {
		return 0
	}
	return 1
}

func (s *Server) sourcesNow() Sources {
	why := s.NotReady()
	return Sources{
		Networks: s.networkStatus(),
		Ready:    len(why) == 0, NotReady: why, Registry: s.registry.Status(), Files: s.fileStatus(),
		Consul: s.catalogs.status(), Old: s.catalogs.old(time.Now()), Unsaved: s.unsaved(), Clock: s.clockRemarks(), Keys: s.keyStatus(),
	}
}

func (s *Server) release(ctx context.Context, r *http.Request, _ struct{}) (Released, error) {
	name := r.PathValue("source")
	if err := s.registry.Release(name); err != nil {
		var names []string
		for _, src := range s.registry.Status().Sources {
			names = append(names, src.Name)
		}
		return Released{}, fmt.Errorf("%w: the sources are %s", err, strings.Join(names, ", "))
	}
	s.cfg.Logger.InfoContext(ctx, "held removals released by operator", "source", name)
	return Released{name}, nil
}

// Rollout is what became of the newest change of a file.
type Rollout struct {
	Generation uint64  `json:"generation"`
	Touched    int     `json:"touched"`
	Accepted   int     `json:"accepted"`
	Waiting    int     `json:"waiting"`
	Done       bool    `json:"done"`
	Seconds    float64 `json:"seconds"`
	// Age is how many seconds ago it was published.
	Age      float64     `json:"age"`
	Rejected []Rejection `json:"rejected,omitempty"`
	// RejectedMore is how many rejections there are beside these.
	RejectedMore int `json:"rejected_more,omitempty"`
	// Unanswered are the first proxies that have not answered. Done does not wait for silent ones.
	Unanswered []Unanswered `json:"unanswered,omitempty"`
}

// Unanswered is a proxy that has not answered a change.
type Unanswered struct {
	Proxy string `json:"proxy"`
	Host  string `json:"host"`
	// Seconds is for how long it owes an answer, to this change or an earlier one.
	Seconds float64 `json:"seconds"`
	// Silent means that the result does not wait for it: it owed an answer before the change, or has
	// never answered all of its configuration.
	Silent bool `json:"silent,omitempty"`
}

// maxUnanswered limits the proxies that are listed of those that have not answered a change.
const maxUnanswered = 20

// rolloutOf finds the newest generation that a file, or a key of Consul, changed.
func (s *Server) rolloutOf(_ context.Context, r *http.Request, _ struct{}) (Rollout, error) {
	named := strings.TrimPrefix(r.PathValue("path"), "/")
	path := "/" + named
	for _, ro := range slices.Backward(s.xds.Rollouts()) {
		if slices.ContainsFunc(ro.Changes, func(c mesh.Change) bool {
			return c.Origin != nil && (c.Origin.Path == path || c.Origin.Path == named)
		}) {
			return s.rolloutNow(&ro, time.Now()), nil
		}
	}
	return Rollout{}, fmt.Errorf("no recent change came from %q: %w", path, fs.ErrNotExist)
}

func (s *Server) rolloutNow(ro *xds.Rollout, now time.Time) Rollout {
	out := Rollout{
		Generation: ro.Generation, Touched: ro.Affected, Accepted: ro.Accepted, Waiting: ro.Waiting, Done: !ro.Done.IsZero(),
		Seconds: ro.Took(now).Seconds(), Age: now.Sub(ro.Started).Seconds(),
		RejectedMore: ro.RejectedMore,
	}
	for _, x := range ro.Rejected {
		out.Rejected = append(out.Rejected, rejection(Rejection{Proxy: x.Proxy, Name: x.Name, Reason: x.Reason}))
	}
	if out.Done || !ro.Complete {
		return out
	}
	silent := 0
	for _, u := range s.xds.Unanswered(ro) {
		if u.Silent {
			silent++
		}
		if len(out.Unanswered) < maxUnanswered {
			out.Unanswered = append(out.Unanswered, Unanswered{Proxy: u.Proxy, Host: u.Host, Seconds: now.Sub(u.Since).Seconds(), Silent: u.Silent})
		}
	}
	out.Done = ro.Waiting <= silent // all others have answered
	return out
}

// Rejection is a resource that a proxy refused.
type Rejection struct {
	Proxy  string `json:"proxy,omitempty"`
	Type   string `json:"type,omitempty"`
	Name   string `json:"name"`
	Reason string `json:"reason"`
	// Origins are the objects that it was made from, as path:line:column: the first
	// few, where they are known.
	Origins []string `json:"origins,omitempty"`
}

// maxShown limits the rejections of one type that are listed for a proxy.
const maxShown = 100

// rejection makes one fit to be shown. A proxy may ask for, and so refuse,
// whatever it calls by a name.
func rejection(r Rejection) Rejection {
	r.Name, r.Reason = safetext.Sanitize(r.Name, 1024), safetext.Sanitize(r.Reason, 1024)
	return r
}
