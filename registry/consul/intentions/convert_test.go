package intentions_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul/intentions"
	"github.com/fairlead/fairlead/registry/consul/mapping"
)

const allow, deny = api.IntentionActionAllow, api.IntentionActionDeny

func entry(to string, sources ...*api.SourceIntention) *api.ServiceIntentionsConfigEntry {
	return &api.ServiceIntentionsConfigEntry{Kind: intentions.Kind, Name: to, Sources: sources}
}

func source(name string, a api.IntentionAction) *api.SourceIntention {
	return &api.SourceIntention{Name: name, Action: a, Type: api.IntentionSourceConsul}
}

func permission(a api.IntentionAction, h *api.IntentionHTTPPermission) *api.IntentionPermission {
	return &api.IntentionPermission{Action: a, HTTP: h}
}

func with(s *api.SourceIntention, change func(*api.SourceIntention)) *api.SourceIntention {
	change(s)
	return s
}

// permissions are those of web.
func permissions(list ...*api.IntentionPermission) *api.SourceIntention {
	return &api.SourceIntention{Name: "web", Type: api.IntentionSourceConsul, Permissions: list}
}

// TestWhatHasNoCounterpart: it is reported, and denies. Each case says who may connect to api from
// web and job, and send GET /a.
func TestWhatHasNoCounterpart(t *testing.T) {
	t.Parallel()
	any1 := source("*", allow)
	onA := &api.IntentionHTTPPermission{PathExact: "/a"}
	for name, c := range map[string]struct {
		state   intentions.State
		mapping mapping.Config
		note    string // "" for none
		allowed string // callers with GET /a
	}{
		"all_has_one":            {state: intentions.State{Entries: entries(entry("api", source("web", deny), any1))}, allowed: "job"},
		"peer_allowed":           {state: intentions.State{Entries: entries(entry("api", with(source("web", allow), func(s *api.SourceIntention) { s.Peer = "east" }), any1))}, note: `web → api: the peer "east"`, allowed: "web job"},
		"peer_denied":            {state: intentions.State{Entries: entries(entry("api", with(source("web", deny), func(s *api.SourceIntention) { s.Peer = "east" }), any1))}, note: `callers that only "*"`},
		"sameness_group":         {state: intentions.State{Entries: entries(entry("api", with(source("web", allow), func(s *api.SourceIntention) { s.SamenessGroup = "g" })))}, note: `the sameness group "g"`},
		"type":                   {state: intentions.State{Entries: entries(entry("api", with(source("web", allow), func(s *api.SourceIntention) { s.Type = "vm" })))}, note: `sources of type "vm"`},
		"namespace_of_source":    {state: intentions.State{Enterprise: true, Entries: entries(entry("api", with(source("web", allow), func(s *api.SourceIntention) { s.Namespace = "team" }), source("job", allow)))}, note: "web → api: namespaces and partitions", allowed: "job"},
		"partition_of_source":    {state: intentions.State{Enterprise: true, Entries: entries(entry("api", with(source("web", allow), func(s *api.SourceIntention) { s.Partition = "eu" })))}, note: "namespaces and partitions"},
		"enterprise_default":     {state: intentions.State{Enterprise: true, Default: allow}, note: "not read"},
		"namespace_of_entry":     {state: intentions.State{Entries: entries(&api.ServiceIntentionsConfigEntry{Name: "api", Namespace: "team", Sources: []*api.SourceIntention{any1}})}, note: "the entry is not used"},
		"jwt_of_entry":           {state: intentions.State{Entries: entries(&api.ServiceIntentionsConfigEntry{Name: "api", JWT: &api.IntentionJWTRequirement{}, Sources: []*api.SourceIntention{source("web", allow)}}), Default: allow}, note: "JWT has no counterpart here: callers without"},
		"jwt_of_permission":      {state: intentions.State{Entries: entries(entry("api", permissions(&api.IntentionPermission{Action: allow, HTTP: onA, JWT: &api.IntentionJWTRequirement{}})))}, note: "permission 0: JWT"},
		"regex_allows":           {state: intentions.State{Entries: entries(entry("api", permissions(permission(allow, &api.IntentionHTTPPermission{PathRegex: "/a"}))))}, note: "PathRegex has no counterpart: it allows nothing"},
		"regex_denies":           {state: intentions.State{Entries: entries(entry("api", permissions(permission(deny, &api.IntentionHTTPPermission{PathRegex: "/b"}), permission(allow, onA))))}, note: "denies more than"},
		"star_in_a_path":         {state: intentions.State{Entries: entries(entry("api", permissions(permission(allow, &api.IntentionHTTPPermission{PathExact: "/*"}))))}, note: "would be a pattern"},
		"braces_in_a_prefix":     {state: intentions.State{Entries: entries(entry("api", permissions(permission(allow, &api.IntentionHTTPPermission{PathPrefix: "/{*}"}))))}, note: "would be a pattern"},
		"no_conditions":          {state: intentions.State{Entries: entries(entry("api", permissions(permission(allow, nil))))}, note: "without conditions"},
		"two_paths":              {state: intentions.State{Entries: entries(entry("api", permissions(permission(allow, &api.IntentionHTTPPermission{PathExact: "/x", PathPrefix: "/"}))))}, note: "several paths"},
		"name_of_a_header":       {state: intentions.State{Entries: entries(entry("api", permissions(permission(allow, &api.IntentionHTTPPermission{Header: []api.IntentionHTTPHeaderPermission{{Name: ":path", Exact: "/a"}}}))))}, note: `the header ":path"`},
		"many_rules":             {state: intentions.State{Entries: entries(entry("api", permissions(many()...)))}, note: "more than 128 rules"},
		"capitals":               {state: intentions.State{Services: []string{"Web"}, Entries: entries(entry("api", source("web", allow), source("job", allow)))}, note: "differ in capital letters", allowed: "job"},
		"capitals_of_a_denial":   {state: intentions.State{Services: []string{"web"}, Entries: entries(entry("api", source("WEB", deny), any1))}, note: `callers that only "*"`},
		"capitals_of_the_entry":  {state: intentions.State{Entries: entries(entry("API", source("web", deny)), entry("*", any1))}, note: "differ in capital letters"},
		"shared_identity":        {mapping: mapping.Config{ServiceAccount: "all"}, state: intentions.State{Entries: entries(entry("api", source("web", allow)))}, note: "no identity of its own"},
		"identity_by_metadata":   {mapping: mapping.Config{Rules: []mapping.Rule{{Pattern: "web", TrustMetadata: true}}}, state: intentions.State{Entries: entries(entry("api", source("web", allow)))}, note: "registrations choose"},
		"identity_of_another":    {mapping: mapping.Config{Rules: []mapping.Rule{{Pattern: "web", ServiceAccount: "job"}}}, state: intentions.State{Entries: entries(entry("api", source("web", allow)))}, note: "one identity to several"},
		"skipped":                {mapping: mapping.Config{Rules: []mapping.Rule{{Pattern: "web", Skip: true}}}, state: intentions.State{Entries: entries(entry("api", source("web", allow)))}, note: "the source is not in the mesh"},
		"other_identity":         {mapping: mapping.Config{Rules: []mapping.Rule{{Pattern: "web", Namespace: "front", ServiceAccount: "portal"}}}, state: intentions.State{Entries: entries(entry("api", source("portal", allow)))}, allowed: ""},
		"through_a_gateway":      {state: intentions.State{Outside: []string{"api"}, Entries: entries(entry("api", any1))}, note: "terminating gateway", allowed: "web job"},
		"all_through_a_gateway":  {state: intentions.State{Outside: []string{"*"}, Entries: entries(entry("api", any1))}, note: "terminating gateway is for all", allowed: "web job"},
		"unknown_default":        {state: intentions.State{MayAllow: true}, note: "--default-policy"},
		"order_of_consuls_envoy": {state: intentions.State{Default: allow, Entries: entries(entry("api", any1), entry("*", source("web", deny)))}, note: "Envoys of a Consul that allows by default deny it", allowed: "job"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.mapping.Namespace == "" {
				c.mapping.Namespace = "shop"
			}
			c.state.Services = append(c.state.Services, "api", "web", "job")
			policies, notes := intentions.Convert(&c.state, intentions.Options{TrustDomain: "cluster.local", Mapper: mapper(t, c.mapping)})
			said := fmt.Sprint(notes)
			if !strings.Contains(said, c.note) || (c.note == "") != (len(notes) == 0) {
				t.Errorf("notes %s, want %q", said, c.note)
			}
			var allowed []string
			for _, from := range []string{"web", "job"} {
				if decide(t, policies, request{from: from, to: "api", method: "GET", path: "/a"}) {
					allowed = append(allowed, from)
				}
			}
			if got := strings.Join(allowed, " "); got != c.allowed {
				t.Errorf("allowed are %q, want %q: %v", got, c.allowed, policies)
			}
		})
	}
}

func entries(list ...*api.ServiceIntentionsConfigEntry) []*api.ServiceIntentionsConfigEntry {
	return list
}

// many are permissions that exclude one another in very many ways.
func many() (out []*api.IntentionPermission) {
	for i := range 8 {
		out = append(out, permission(deny, &api.IntentionHTTPPermission{PathExact: fmt.Sprintf("/%d", i), Methods: []string{"GET", "PUT"}}))
	}
	return append(out, permission(allow, &api.IntentionHTTPPermission{PathPrefix: "/"}))
}

// TestNamesOfPolicies: no service can have the name of the policy that denies.
func TestNamesOfPolicies(t *testing.T) {
	t.Parallel()
	policies, notes := intentions.Convert(&intentions.State{Services: []string{"default", "web"}}, intentions.Options{
		TrustDomain: "cluster.local", Mapper: mapper(t, mapping.Config{Rules: []mapping.Rule{{Pattern: "web", Namespace: "istio-system"}}}),
	})
	var names []string
	for _, p := range policies {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	// A policy without rules in the root namespace would deny the whole mesh.
	if want := []string{"default/intentions", "default/intentions-default", "istio-system/intentions-web"}; !slices.Equal(names, want) {
		t.Errorf("policies %v, want %v", names, want)
	}
	if said := fmt.Sprint(notes); !strings.Contains(said, "whole mesh") {
		t.Errorf("notes %s", said)
	}
}

// TestDecodeIsStrict: what is not known of an entry is an error, because it may deny.
func TestDecodeIsStrict(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"Kind":"service-intentions","Name":"api","Hash":1,"Sources":[{"Name":"web","Action":"allow"}]}`:                                                     "",
		`{"Kind":"service-intentions","Name":"api","Sources":[{"Name":"web","Action":"allow","OnlyOnMondays":true}]}`:                                         "OnlyOnMondays",
		`{"Kind":"service-intentions","Name":"api","Sources":[{"Name":"web","Permissions":[{"Action":"allow","HTTP":{"PathSuffix":"/a"}}]}]}`:                 "PathSuffix",
		`{"Kind":"service-intentions","Name":"api","Sources":[{"Name":"web","Action":"audit"}]}`:                                                              "neither allow nor deny",
		`{"Kind":"service-intentions","Name":"api","Sources":[{"Name":"web","Permissions":[{"Action":"audit","HTTP":{"PathExact":"/a"}}]}]}`:                  "neither allow nor deny",
		`{"Kind":"service-intentions","Name":"api","Sources":[{"Name":"web","Permissions":[null]}]}`:                                                          "neither allow nor deny",
		`{"Kind":"service-intentions","Name":"api","Sources":[{"Name":"web","Action":"allow","Permissions":[{"Action":"allow","HTTP":{"PathExact":"/a"}}]}]}`: "an action and permissions",
		`{"Kind":"service-intentions","Name":"api","Sources":[null]}`:                                                                                         "has no name",
		`{"Kind":"service-intentions","Sources":[]}`:                                                                                                          "has no name",
		`{"Kind":"service-defaults","Name":"api"}`:                                                                                                            "and not",
		`null`: "and not",
	} {
		_, err := intentions.Decode([]json.RawMessage{json.RawMessage(text)})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	one := json.RawMessage(`{"Kind":"service-intentions","Name":"api"}`)
	if _, err := intentions.Decode([]json.RawMessage{one, one}); err == nil || !strings.Contains(err.Error(), "two entries") {
		t.Errorf("two entries of one name: %v", err)
	}
}
