package intentions_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul/intentions"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/authz"
	"github.com/fairlead/fairlead/xds/authz/judge"
)

// request is a request, or a connection of TCP.
type request struct {
	from, to, method, path string
	headers                map[string]string
	tcp                    bool
}

// judged is the request without the caller's identity.
func (r request) judged() judge.Request {
	if r.tcp {
		return judge.Request{Peer: &judge.Peer{}}
	}
	headers := map[string][]string{}
	for k, v := range r.headers {
		headers[k] = []string{v}
	}
	return judge.Request{Method: r.method, Path: r.path, Authority: "a", Headers: headers, Peer: &judge.Peer{}}
}

func randomRequest(d *rand.Rand) request {
	r := request{from: one(d, "web", "job", "other"), to: one(d, "api", "db", "cache"), method: one(d, "GET", "PUT", "POST"), path: one(d, "/", "/a", "/a/b", "/b", "/a?b"), headers: map[string]string{}}
	for _, name := range []string{"x", "y"} {
		if d.IntN(2) == 0 {
			r.headers[name] = one(d, "v", "w", "vw", "z", "V")
		}
	}
	r.tcp = d.IntN(8) == 0
	return r
}

// consul is what Consul's rules say: an exact destination counts before "*", then an exact source
// before "*"; the first intention for the caller decides, and of its permissions the first that
// matches; the default policy decides the rest.
func consul(entries []*api.ServiceIntentionsConfigEntry, byDefault bool, r request) bool {
	type found struct {
		precedence int
		source     *api.SourceIntention
	}
	var all []found
	for _, e := range entries {
		for _, s := range e.Sources {
			if (e.Name != "*" && e.Name != r.to) || (s.Name != "*" && s.Name != r.from) {
				continue
			}
			p := 0
			if e.Name == "*" {
				p += 2
			}
			if s.Name == "*" {
				p++
			}
			all = append(all, found{p, s})
		}
	}
	if len(all) == 0 {
		return byDefault
	}
	first := slices.MinFunc(all, func(a, b found) int { return cmp.Compare(a.precedence, b.precedence) }).source
	if len(first.Permissions) > 0 && r.tcp {
		return false
	}
	if len(first.Permissions) == 0 {
		return first.Action == api.IntentionActionAllow
	}
	for _, p := range first.Permissions {
		if matches(p.HTTP, r) {
			return p.Action == api.IntentionActionAllow
		}
	}
	return byDefault
}

func matches(h *api.IntentionHTTPPermission, r request) bool {
	if h == nil {
		return true
	}
	path, _, _ := strings.Cut(r.path, "?")
	if h.PathExact != "" && path != h.PathExact || !strings.HasPrefix(path, h.PathPrefix) || h.PathRegex != "" && !strings.Contains(path, "b") ||
		len(h.Methods) > 0 && !slices.Contains(h.Methods, r.method) {
		return false
	}
	for _, x := range h.Header {
		v, has := r.headers[strings.ToLower(x.Name)]
		var ok bool
		switch {
		case x.Present:
			if has == x.Invert {
				return false
			}
			continue
		case !has:
			return false
		case x.IgnoreCase:
			ok = strings.EqualFold(v, x.Exact)
		case x.Contains != "":
			ok = strings.Contains(v, x.Contains)
		case x.Regex != "":
			ok = v == "v" || v == "w"
		case x.Exact != "":
			ok = v == x.Exact
		case x.Prefix != "":
			ok = strings.HasPrefix(v, x.Prefix)
		default:
			ok = strings.HasSuffix(v, x.Suffix)
		}
		if ok == x.Invert {
			return false
		}
	}
	return true
}

func one(d *rand.Rand, list ...string) string { return list[d.IntN(len(list))] }

func action(d *rand.Rand) api.IntentionAction {
	return api.IntentionAction(one(d, "allow", "deny"))
}

// randomEntries are intentions. lossy adds what has no counterpart.
func randomEntries(d *rand.Rand, lossy bool) []*api.ServiceIntentionsConfigEntry {
	var out []*api.ServiceIntentionsConfigEntry
	for _, to := range []string{"*", "api", "db"} {
		if d.IntN(3) == 0 {
			continue
		}
		e := &api.ServiceIntentionsConfigEntry{Kind: intentions.Kind, Name: to}
		for _, from := range []string{"*", "web", "job"} {
			if d.IntN(3) == 0 {
				continue
			}
			s := &api.SourceIntention{Name: from, Type: api.IntentionSourceConsul}
			if d.IntN(2) == 0 {
				s.Action = action(d)
			} else {
				for range 1 + d.IntN(3) {
					s.Permissions = append(s.Permissions, randomPermission(d, lossy))
				}
			}
			e.Sources = append(e.Sources, s)
		}
		d.Shuffle(len(e.Sources), func(i, k int) { e.Sources[i], e.Sources[k] = e.Sources[k], e.Sources[i] })
		out = append(out, e)
	}
	return out
}

func randomPermission(d *rand.Rand, lossy bool) *api.IntentionPermission {
	p := &api.IntentionPermission{Action: action(d), HTTP: &api.IntentionHTTPPermission{}}
	switch d.IntN(4) {
	case 0:
		p.HTTP.PathExact = one(d, "/a", "/a/b", "/b")
	case 1:
		p.HTTP.PathPrefix = one(d, "/", "/a", "/a/")
	case 2:
		if lossy {
			p.HTTP.PathRegex = ".*b.*"
		}
	}
	p.HTTP.Methods = [][]string{nil, {"GET"}, {"PUT", "GET"}}[d.IntN(3)]
	for range d.IntN(3) {
		h := api.IntentionHTTPHeaderPermission{Name: one(d, "x", "Y"), Invert: d.IntN(2) == 0}
		kind := d.IntN(4)
		if lossy {
			kind = d.IntN(8)
		}
		switch kind {
		case 0:
			h.Present = true
		case 1:
			h.Exact = one(d, "v", "vw")
		case 2:
			h.Prefix = "v"
		case 3:
			h.Suffix = "w"
		case 4:
			h.Contains = "v"
		case 5:
			h.Regex = "v|w"
		default:
			h.Exact, h.IgnoreCase = "v", true
		}
		p.HTTP.Header = append(p.HTTP.Header, h)
	}
	if h := p.HTTP; h.PathExact+h.PathPrefix+h.PathRegex == "" && len(h.Methods)+len(h.Header) == 0 { // Consul takes none without conditions
		h.PathPrefix = "/"
	}
	return p
}

// TestPoliciesDecideAsConsul: where all has a counterpart the decisions are the same; elsewhere
// nothing is allowed that Consul denies.
func TestPoliciesDecideAsConsul(t *testing.T) {
	t.Parallel()
	race.SkipSequential(t)
	d := rand.New(rand.NewPCG(13, 11))
	allowed, denied, lost, tries := 0, 0, 0, 1500
	if testing.Short() {
		tries = 400
	}
	for try := range tries {
		lossy, byDefault := try%2 == 0, try%3 == 0
		entries := randomEntries(d, lossy)
		policies, notes := intentions.Convert(&intentions.State{Entries: entries, Services: []string{"api", "db", "cache", "other"}, Default: map[bool]api.IntentionAction{false: "deny", true: "allow"}[byDefault]},
			intentions.Options{TrustDomain: "cluster.local", Mapper: mapper(t, mapping.Config{Namespace: "shop"})})
		exact := !slices.ContainsFunc(notes, func(n intentions.Note) bool { return n.Source != "" })
		if !exact {
			lost++
		}
		for range 40 {
			r := randomRequest(d)
			got, want := decide(t, policies, r), consul(entries, byDefault, r)
			if got && !want || exact && got != want {
				t.Fatalf("try %d, default allow %v, %+v: allowed %v, in Consul %v; notes %v", try, byDefault, r, got, want, notes)
			}
			if got {
				allowed++
			} else {
				denied++
			}
		}
	}
	if allowed < 3*tries || denied < 3*tries || lost < tries/10 {
		t.Errorf("%d allowed, %d denied, %d with losses: this shows little", allowed, denied, lost)
	}
}

func mapper(t *testing.T, c mapping.Config) *mapping.Mapper {
	t.Helper()
	m, err := mapping.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// decide asks the policies that select the destination.
func decide(t *testing.T, policies []intentions.Policy, r request) bool {
	t.Helper()
	var selected []authz.Policy
	for _, p := range policies {
		if mesh.Selects(p.Spec.GetSelector().GetMatchLabels(), map[string]string{mesh.LabelConsulService: r.to}) {
			selected = append(selected, authz.Policy{Namespace: p.Namespace, Name: p.Name, Spec: p.Spec})
		}
	}
	translate := authz.HTTP
	if r.tcp {
		translate = authz.TCP
	}
	rules := translate(selected, authz.Options{TrustDomains: []string{"cluster.local"}})
	if len(rules.Faults) > 0 {
		t.Fatal(rules.Faults)
	}
	q := r.judged()
	q.Peer.URIs = []string{"spiffe://cluster.local/ns/shop/sa/" + r.from}
	v, err := judge.Decide([]*rbacv3.RBAC{rules.Deny.Enforced, rules.Allow.Enforced}, q)
	if err != nil {
		t.Fatal(err)
	}
	return v.Allowed
}
