package intentions_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	networkrbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/rbac/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/hashicorp/consul/api"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/intentions"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// oracle is a real Consul with services in its own mesh. It decides as its Envoys would: by the
// RBAC filters that it sends them.
type oracle struct {
	*consultest.Agent
	t           *testing.T
	trustDomain string
	xds         discoveryv3.AggregatedDiscoveryServiceClient
}

// protocols are those of the services with Envoys.
func protocols() map[string]string {
	return map[string]string{"api": "http", "db": "http", "cache": "tcp"}
}

func newOracle(t *testing.T, options consultest.Options) *oracle {
	t.Helper()
	options.Connect = true
	o := &oracle{Agent: consultest.Start(t, options), t: t}
	c := o.Client()
	for name, protocol := range protocols() {
		o.set(&api.ServiceConfigEntry{Kind: api.ServiceDefaults, Name: name, Protocol: protocol})
		reg := &api.AgentServiceRegistration{Name: name, Port: 8080, Connect: &api.AgentServiceConnect{SidecarService: &api.AgentServiceRegistration{}}}
		if err := c.Agent().ServiceRegister(reg); err != nil {
			t.Fatal(err)
		}
	}
	envoytest.Eventually(t, envoytest.Patience, func() error {
		roots, _, err := c.Connect().CARoots(nil)
		if err != nil {
			return err
		}
		o.trustDomain = roots.TrustDomain
		return nil
	})
	conn, err := grpc.NewClient("passthrough:///"+o.XDS(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	o.xds = discoveryv3.NewAggregatedDiscoveryServiceClient(conn)
	return o
}

func (o *oracle) set(e api.ConfigEntry) {
	o.t.Helper()
	if _, _, err := o.Client().ConfigEntries().Set(e, nil); err != nil {
		o.t.Fatalf("%v: %+v", err, e)
	}
}

// filters are the RBAC filters for HTTP and for connections in the listener of a service.
func (o *oracle) filters(service string) (rules []*rbacv3.RBAC, err error) {
	ctx, cancel := context.WithTimeout(o.t.Context(), envoytest.Patience)
	defer cancel()
	if token := o.Cluster().Management; token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-consul-token", token)
	}
	stream, err := o.xds.DeltaAggregatedResources(ctx)
	if err != nil {
		return nil, err
	}
	meta, err := structpb.NewStruct(map[string]any{"namespace": "default"})
	if err != nil {
		return nil, err
	}
	err = stream.Send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: "type.googleapis.com/envoy.config.listener.v3.Listener",
		Node: &corev3.Node{Id: service + "-sidecar-proxy", Cluster: service, Metadata: meta, UserAgentName: "envoy", UserAgentVersionType: &corev3.Node_UserAgentBuildVersion{
			UserAgentBuildVersion: &corev3.BuildVersion{Version: &typev3.SemanticVersion{MajorNumber: 1, MinorNumber: 32}},
		}},
	})
	if err != nil {
		return nil, err
	}
	res, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	for _, r := range res.GetResources() {
		var l listenerv3.Listener
		if err := r.GetResource().UnmarshalTo(&l); err != nil {
			return nil, err
		}
		if !strings.HasPrefix(l.GetName(), "public_listener") {
			continue
		}
		for _, f := range l.GetFilterChains()[0].GetFilters() {
			var network networkrbacv3.RBAC
			var hcm hcmv3.HttpConnectionManager
			switch {
			case f.GetTypedConfig().MessageIs(&network):
				err = f.GetTypedConfig().UnmarshalTo(&network)
				rules = append(rules, network.GetRules())
			case f.GetTypedConfig().MessageIs(&hcm):
				err = f.GetTypedConfig().UnmarshalTo(&hcm)
				for _, h := range hcm.GetHttpFilters() {
					var http httprbacv3.RBAC
					if h.GetTypedConfig().MessageIs(&http) {
						err = h.GetTypedConfig().UnmarshalTo(&http)
						rules = append(rules, http.GetRules())
					}
				}
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if len(rules) != 1 {
		return nil, fmt.Errorf("%s has %d RBAC filters", service, len(rules))
	}
	for _, p := range rules[0].GetPolicies() {
		for _, x := range p.GetPermissions() {
			plainHeaders(x)
		}
	}
	return rules, nil
}

// plainHeaders writes inverted header matchers in a form that the judge knows: Envoy never matches
// a header that is not there, unless its presence is asked for
// (source/common/http/header_utility.cc).
func plainHeaders(p *rbacv3.Permission) {
	for _, x := range slices.Concat(p.GetAndRules().GetRules(), p.GetOrRules().GetRules()) {
		plainHeaders(x)
	}
	if p.GetNotRule() != nil {
		plainHeaders(p.GetNotRule())
	}
	h := p.GetHeader()
	if !h.GetInvertMatch() {
		return
	}
	is := proto.CloneOf(h)
	is.InvertMatch = false
	not := &rbacv3.Permission{Rule: &rbacv3.Permission_NotRule{NotRule: &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: is}}}}
	if h.GetPresentMatch() {
		p.Rule = not.Rule
		return
	}
	there := &rbacv3.Permission{Rule: &rbacv3.Permission_Header{Header: &routev3.HeaderMatcher{
		Name: h.GetName(), HeaderMatchSpecifier: &routev3.HeaderMatcher_PresentMatch{PresentMatch: true},
	}}}
	p.Rule = &rbacv3.Permission_AndRules{AndRules: &rbacv3.Permission_Set{Rules: []*rbacv3.Permission{there, not}}}
}

// decide is what Consul's filters say.
func (o *oracle) decide(rules []*rbacv3.RBAC, r request) bool {
	o.t.Helper()
	q := r.judged()
	q.Peer.URIs = []string{"spiffe://" + o.trustDomain + "/ns/default/dc/dc1/svc/" + r.from}
	v, err := judge.Decide(rules, q)
	if err != nil {
		o.t.Fatal(err)
	}
	return v.Allowed
}

var marker = regexp.MustCompile(`/svc/(round-[a-z0-9-]+)`)

// write makes entries all that there are, each with a source that tells the rounds apart, and
// returns Consul's filters by service when they are made of these entries.
func (o *oracle) write(round int, byDefault bool, entries []*api.ServiceIntentionsConfigEntry) map[string][]*rbacv3.RBAC {
	o.t.Helper()
	c := o.Client()
	old, _, err := c.ConfigEntries().List(api.ServiceIntentions, nil)
	if err != nil {
		o.t.Fatal(err)
	}
	kept := map[string]bool{}
	for _, e := range entries {
		name := strings.ReplaceAll(e.Name, "*", "all")
		action := api.IntentionActionAllow // what the default is not: that is left out
		if byDefault {
			action = api.IntentionActionDeny
		}
		e.Sources = append(e.Sources, &api.SourceIntention{Name: fmt.Sprintf("round-%d-%s", round, name), Type: api.IntentionSourceConsul, Action: action})
		o.set(e)
		kept[e.Name] = true
	}
	for _, e := range old {
		if !kept[e.GetName()] {
			if _, err := c.ConfigEntries().Delete(api.ServiceIntentions, e.GetName(), nil); err != nil {
				o.t.Fatal(err)
			}
		}
	}
	out := map[string][]*rbacv3.RBAC{}
	for service := range protocols() {
		want := map[string]bool{}
		for _, e := range entries {
			if e.Name == service || e.Name == "*" {
				want[fmt.Sprintf("round-%d-%s", round, strings.ReplaceAll(e.Name, "*", "all"))] = true
			}
		}
		envoytest.Eventually(o.t, envoytest.Patience, func() error {
			rules, err := o.filters(service)
			if err != nil {
				return err
			}
			got := map[string]bool{}
			for _, m := range marker.FindAllStringSubmatch(rules[0].String(), -1) {
				got[m[1]] = true
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("%s has the entries %v, want %v", service, got, want)
			}
			out[service] = rules
			return nil
		})
	}
	return out
}

// scenario is a default of Consul's.
type scenario struct {
	consultest.Options
	// allow is what Consul does, Default what the conversion is told.
	allow   bool
	Default api.IntentionAction
	// override says that Consul's servers do not know the default that its Envoys have.
	override bool
}

// TestPoliciesDecideAsConsulsEnvoys compares with what a real Consul sends its own Envoys, and with
// its answers about connections. What has no counterpart is denied at most.
func TestPoliciesDecideAsConsulsEnvoys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]scenario{
		"acl_deny":         {Options: consultest.Options{ACL: true}, Default: "deny"},
		"allow":            {allow: true, Default: "allow"},
		"intentions_deny":  {Options: consultest.Options{Config: map[string]any{"default_intention_policy": "deny"}}, Default: "deny", override: true},
		"intentions_allow": {Options: consultest.Options{ACL: true, Config: map[string]any{"default_intention_policy": "allow"}}, allow: true, Default: "allow", override: true},
		"allow_unknown":    {allow: true},
		"deny_unknown":     {Options: consultest.Options{ACL: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOracle(t, c.Options)
			d := rand.New(rand.NewPCG(13, 9))
			counts := map[string]int{}
			for round := range 25 {
				compareRound(t, o, d, round, c, counts)
			}
			t.Logf("%v", counts)
			for _, what := range []string{"allowed", "denied", "lossy", "narrower"} {
				if counts[what] < 5 {
					t.Errorf("%s: %d: this shows little", what, counts[what])
				}
			}
		})
	}
}

func compareRound(t *testing.T, o *oracle, d *rand.Rand, round int, c scenario, counts map[string]int) {
	t.Helper()
	lossy := round%3 == 0
	entries := randomEntries(d, lossy)
	for _, e := range entries {
		if e.Name == "*" { // Consul takes no permissions there
			for _, s := range e.Sources {
				if s.Permissions != nil {
					s.Permissions, s.Action = nil, action(d)
				}
			}
		}
	}
	filters := o.write(round, c.allow, entries)
	cfg := client.Config{Address: o.Address(), Logger: slog.New(slog.DiscardHandler)}
	if o.Cluster().Management != "" {
		cfg.TokenFile = filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(cfg.TokenFile, []byte(o.Cluster().Management), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	state, err := intentions.Read(t.Context(), cfg, intentions.ReadOptions{Default: c.Default})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(state.Services, []string{"api", "cache", "db"}) { // without proxies, and Consul itself
		t.Fatalf("services %v", state.Services)
	}
	// Callers that nobody has registered are services of Consul, too.
	state.Services = append(state.Services, "other")
	policies, notes := intentions.Convert(state, intentions.Options{TrustDomain: "cluster.local", Mapper: mapper(t, mapping.Config{Namespace: "shop"})})
	exact := len(notes) == 0
	if !exact {
		counts["lossy"]++
	}
	for range 150 {
		r := randomRequest(d)
		r.tcp = protocols()[r.to] == "tcp"
		got, want := decide(t, policies, r), o.decide(filters[r.to], r)
		if got && !want || exact && got != want {
			t.Fatalf("round %d, %+v: allowed %v, by Consul's filters %v\n%v\nnotes %v", round, r, got, want, filters[r.to], notes)
		}
		counts[map[bool]string{true: "allowed", false: "denied"}[got]]++
		if got != want {
			counts["narrower"]++
		}
	}
	if !c.override {
		compareConnections(t, o, policies, entries, exact)
	}
}

// compareConnections compares with /v1/connect/intentions/check.
func compareConnections(t *testing.T, o *oracle, policies []intentions.Policy, entries []*api.ServiceIntentionsConfigEntry, exact bool) {
	t.Helper()
	for _, from := range []string{"web", "job", "other"} {
		for to := range protocols() {
			want, _, err := o.Client().Connect().IntentionCheck(&api.IntentionCheck{Source: from, Destination: to, SourceType: api.IntentionSourceConsul}, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := decide(t, policies, request{from: from, to: to, tcp: true})
			if got && !want || exact && got != want {
				t.Fatalf("a connection from %s to %s: allowed %v, Consul's answer is %v: %v", from, to, got, want, entries)
			}
		}
	}
}
