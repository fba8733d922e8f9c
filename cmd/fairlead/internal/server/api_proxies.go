package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
)

// Proxies is every proxy that is connected or was lately, and who was refused.
type Proxies struct {
	Generation uint64    `json:"generation"`
	Proxies    []Proxy   `json:"proxies"`
	Refused    []Refused `json:"refused"`
	// Absent are the hosts on record that are not connected; Proxies has a row for each
	// workload of theirs. HostFaults are hosts that cannot be used as they are.
	Absent     []AbsentHost `json:"absent,omitempty"`
	HostFaults []HostFault  `json:"host_faults,omitempty"`
	// Conflicts are hosts that claimed lately what is another's.
	Conflicts []agents.Conflict `json:"conflicts,omitempty"`
	// Unserved are endpoints that clients call by mTLS, and that take none.
	Unserved []Unserved `json:"unserved,omitempty"`
	// Warnings are what views had to leave out, and at how many proxies.
	Warnings []Warning `json:"warnings,omitempty"`
	// Findings are faults of the mesh that make requests fail.
	Findings MeshFindings `json:"findings,omitzero"`
}

// HostFault is what is wrong with the record of a host, or with its key.
type HostFault struct {
	Name  string `json:"name"`
	Fault string `json:"fault"`
}

// Warning is something a person should know about an object.
type Warning struct {
	Origin  string `json:"origin"`
	Object  string `json:"object"`
	Message string `json:"message"`
	Proxies int    `json:"proxies"`
}

// Proxy is how one proxy stands.
type Proxy struct {
	Name string `json:"name"`
	Host string `json:"host"`
	// AddressProof says how the host has proven that the workload is its own:
	// annotation, token, source or unproven.
	AddressProof   string `json:"address_proof,omitempty"`
	ID             string `json:"id"`
	ServiceAccount string `json:"service_account"`
	Workload       string `json:"workload"`
	Connected      bool   `json:"connected"`
	// Since is when it connected, or when it left.
	Since        time.Time `json:"since"`
	EnvoyVersion string    `json:"envoy_version"`
	Envoy        string    `json:"envoy"` // absent, starting, live, rejecting
	// Credentials are those of its host that its Envoy has asked for, as its agent reports them: names, states
	// and ends.
	Credentials *bootstrap.Credentials `json:"credentials,omitempty"`
	// Health is that of its workload in the mesh, from whoever has the last word: its agent,
	// Consul. Withdrawn says that a person took it out of service.
	Health          string    `json:"health"`
	HealthReason    string    `json:"health_reason,omitempty"`
	Withdrawn       bool      `json:"withdrawn,omitempty"`
	Encryption      string    `json:"encryption"`
	CertificateEnds time.Time `json:"certificate_ends"`
	// Absent says that its host has not come back; AgentGone, that its host is connected, or
	// not on record, and its own agent left.
	Absent    bool `json:"absent,omitempty"`
	AgentGone bool `json:"agent_gone,omitempty"`
	Synced    bool `json:"synced"`
	// Behind is since when it is not synced.
	Behind  time.Time `json:"behind,omitzero"`
	Partial bool      `json:"partial"`
	Stale   string    `json:"stale,omitempty"`
	// VirtualHosts are the route tables whose virtual hosts travel by themselves.
	VirtualHosts []string `json:"virtual_hosts,omitempty"`
	// Fallbacks say what of the configuration the release of its Envoy lacks, and what it does
	// instead.
	Fallbacks []string `json:"fallbacks,omitempty"`
	// HashTables are those of consistentHash that its Envoy makes; nil if there are none.
	HashTables *HashTables `json:"hash_tables,omitempty"`
	Types      []Type      `json:"types"`
}

// Type is how a proxy stands with one type of resource.
type Type struct {
	Type      string      `json:"type"`
	Sent      uint64      `json:"sent"`
	Acked     uint64      `json:"acked"`
	Nacked    uint64      `json:"nacked,omitempty"`
	Resources int         `json:"resources"`
	Pending   bool        `json:"pending,omitempty"`
	LastError string      `json:"last_error,omitempty"`
	Rejected  []Rejection `json:"rejected,omitempty"`
	// RejectedMore is how many there are beside these.
	RejectedMore int `json:"rejected_more,omitempty"`
}

// Refused is a peer that was not let in, to a stream or to a certificate.
type Refused struct {
	Host   string    `json:"host"`
	Node   string    `json:"node,omitempty"`
	Peer   string    `json:"peer,omitempty"`
	What   string    `json:"what"` // stream or certificate
	Reason string    `json:"reason"`
	Last   time.Time `json:"last"`
	Count  int       `json:"count"`
}

func (s *Server) proxies(context.Context, *http.Request, struct{}) (Proxies, error) {
	return s.proxiesNow(time.Now()), nil
}

func (s *Server) proxiesNow(now time.Time) Proxies {
	out := Proxies{Generation: s.registry.Status().Generation, Proxies: []Proxy{}, Refused: []Refused{}}
	proofs := map[[3]string]string{}
	for _, c := range s.agents.Claims() {
		proofs[[3]string{c.Host, c.Network + " " + c.Address, c.Namespace + "/" + c.ServiceAccount}] = c.Proof
	}
	out.Conflicts = s.agents.Status().Conflicts
	snap := s.registry.Snapshot()
	rules := sync.OnceValue(s.destinationRules) // only if some proxy has tables
	for _, p := range s.xds.Proxies() {
		shown := proxyOf(p)
		shown.HashTables = hashTablesOf(&p.HashTables, rules)
		shown.AddressProof = proofs[[3]string{p.Host, p.Network + " " + p.Address, p.ServiceAccount.String()}]
		shown.inMesh(workloadOf(snap, p.Workload))
		out.Proxies = append(out.Proxies, shown)
	}
	s.addAbsent(&out, snap, now)
	out.Unserved = s.unservedNow(&out, now)
	for _, d := range s.xds.Diagnostics() {
		out.Warnings = append(out.Warnings, Warning{Origin: d.Origin, Object: d.Key.String(), Message: d.Message, Proxies: d.Proxies})
	}
	if !s.cfg.AcceptUnenforced {
		out.Warnings = append(out.Warnings, denying(snap)...)
	}
	out.Findings = s.meshFindings(snap, now)
	out.Refused = s.refused(now)
	return out
}

// denying are the security policies that are not in force, with the workloads that deny every
// request for it.
func denying(snap *mesh.Snapshot) (out []Warning) {
	if snap == nil {
		return nil
	}
	const most = 5
	for _, u := range snap.Unenforced {
		var names []string
		count := 0
		for _, w := range snap.Workloads {
			if !u.Selects(w.Namespace, w.Labels, snap.RootNamespace()) {
				continue
			}
			if count++; count <= most {
				names = append(names, w.Namespace+"/"+w.Name)
			}
		}
		if count > most {
			names = append(names, fmt.Sprintf("%d more", count-most))
		}
		if count > 0 {
			out = append(out, Warning{
				Origin: u.Origin.String(), Object: u.String(), Proxies: count,
				Message: "not in force, and so these deny every request: " + strings.Join(names, ", ") + "; remove the policy, or start the server with --accept-unenforced",
			})
		}
	}
	return out
}

func proxyOf(p xds.ProxyStatus) Proxy {
	out := Proxy{
		Name: p.Name, Host: p.Host, ID: p.ID, ServiceAccount: p.ServiceAccount.String(),
		Workload: p.Workload.Namespace + "/" + p.Workload.Name, Connected: p.Connected, Since: p.Since,
		EnvoyVersion: p.EnvoyVersion, Envoy: string(p.EnvoyState), Health: p.Health.String(), HealthReason: p.HealthReason,
		Encryption: string(p.Encryption), CertificateEnds: p.CertificateEnds, Synced: p.Synced, Behind: p.Behind, Partial: p.Partial, Stale: p.Stale,
		Credentials: p.Credentials, VirtualHosts: p.VirtualHosts, Fallbacks: p.Fallbacks, Types: []Type{},
	}
	if !p.Connected {
		out.Since = p.Left
	}
	for _, t := range p.Types {
		st := Type{
			Type: shortType(t.Type), Sent: t.SentGeneration, Acked: t.AckedGeneration, Nacked: t.NackedGeneration,
			Resources: t.Resources, Pending: t.Pending, LastError: t.LastError,
		}
		shown := t.Rejected[:min(len(t.Rejected), maxShown)]
		for _, r := range shown {
			st.Rejected = append(st.Rejected, rejection(Rejection{Type: st.Type, Name: r.Name, Reason: r.Reason, Origins: p.Origins[t.Type][r.Name]}))
		}
		st.RejectedMore = len(t.Rejected) - len(shown) + t.RejectedMore
		out.Types = append(out.Types, st)
	}
	return out
}

// workloadOf is the workload of a proxy in a snapshot, which may be nil; or nil.
func workloadOf(now *mesh.Snapshot, key mesh.Key) *mesh.Workload {
	if now == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(now.Workloads, key, func(w *mesh.Workload, k mesh.Key) int { return w.Compare(k) })
	if !found {
		return nil
	}
	return now.Workloads[i]
}

// TypeNames are the names of the types of resources.
func TypeNames() (names []string) {
	for _, t := range proxyconfig.Types() {
		if t.Resource() != "" && t.Server {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names
}

func shortType(t stream.TypeURL) string {
	for _, known := range proxyconfig.Types() {
		if known.Resource() == string(t) {
			return known.Name
		}
	}
	return string(t)
}

func (s *Server) proxyConfig(ctx context.Context, r *http.Request, _ struct{}) ([]proxyconfig.Entry, error) {
	want, err := proxyconfig.FindServed(cmp.Or(r.URL.Query().Get("type"), proxyconfig.All))
	if err != nil {
		return nil, err
	}
	sent, err := s.xds.Sent(ctx, r.PathValue("proxy"))
	if err != nil {
		return nil, err
	}
	out, rules := []proxyconfig.Entry{}, s.destinationRules()
	for _, x := range sent {
		e := proxyconfig.Entry{
			Type: shortType(x.Type), Name: safetext.Sanitize(x.Name, 4096), Version: x.Wanted, Accepted: x.Accepted, Rejected: x.Rejected, Origins: x.Origins,
		}
		if want.Name != proxyconfig.All && e.Type != want.Name {
			continue
		}
		if e.Version == "" {
			e.Version = x.Version
		}
		if e.Type == proxyconfig.Cluster {
			for _, origin := range x.Origins {
				if name, ok := rules[origin]; ok {
					e.DestinationRules = append(e.DestinationRules, name)
				}
			}
		}
		if len(x.Body) > 0 {
			m, err := decode(&x)
			if err != nil {
				return nil, err
			}
			if e.Resource, err = (protojson.MarshalOptions{UseProtoNames: true}).Marshal(m); err != nil {
				return nil, fmt.Errorf("encoding %q: %w", x.Name, err)
			}
		}
		out = append(out, e)
	}
	return out, nil
}

// decode decodes the message of a resource.
func decode(x *xds.ResourceStatus) (proto.Message, error) {
	if x.Type != bootstrap.ProxyConfigType {
		return envoy.Decode(envoy.Resource{TypeURL: string(x.Type), Name: x.Name, Body: x.Body})
	}
	m := &meshconfig.ProxyConfig{}
	if err := proto.Unmarshal(x.Body, m); err != nil {
		return nil, fmt.Errorf("decoding the ProxyConfig: %w", err)
	}
	return m, nil
}

// destinationRules are the names of the DestinationRules, by the place where they are written.
func (s *Server) destinationRules() map[string]string {
	names := map[string]string{}
	if now := s.registry.Snapshot(); now != nil {
		for _, r := range now.DestinationRules {
			names[r.Origin.String()] = r.Name + "." + r.Namespace
		}
	}
	return names
}
