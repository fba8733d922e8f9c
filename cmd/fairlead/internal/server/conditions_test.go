package server

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead/fairlead/pki/jwks"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/agents"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/files"
	"github.com/fairlead/fairlead/registry/gatewaynames"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// provocations make each kind of condition out of a mesh that is well.
func provocations(now time.Time) map[string][]func(*Proxies, *Sources) {
	proxy := func(change func(*Proxy)) func(*Proxies, *Sources) {
		return func(p *Proxies, _ *Sources) { change(&p.Proxies[0]) }
	}
	source := func(change func(*files.Status)) func(*Proxies, *Sources) {
		return func(_ *Proxies, s *Sources) { change(&s.Files[0]) }
	}
	catalog := func(change func(*consul.Status)) func(*Proxies, *Sources) {
		return func(_ *Proxies, s *Sources) { change(&s.Consul[0]) }
	}
	at := &mesh.Origin{Path: "a.yaml", Line: 2, Column: 1}
	return map[string][]func(*Proxies, *Sources){
		"not-ready": {func(_ *Proxies, s *Sources) { s.NotReady = []string{"source files has not delivered"} }},
		"slow-merge": {
			func(_ *Proxies, s *Sources) {
				s.Registry.SlowMerge = &registry.SlowMerge{Began: now.Add(-11 * time.Second), Inputs: []registry.MergeInput{{Source: "evil", Objects: 1}}}
			},
			func(_ *Proxies, s *Sources) { s.Registry.SlowMerge = &registry.SlowMerge{Took: 11 * time.Second} },
		},
		"clock": {func(_ *Proxies, s *Sources) { s.Clock = []string{"signing is on hold"} }},
		"source-unavailable": {
			source(func(st *files.Status) { st.State, st.Reason = lastgood.Unavailable, "permission denied" }),
			source(func(st *files.Status) { // which is said once
				st.State, st.Reason = lastgood.Partial, "a.yaml: permission denied"
				st.Faults = []manifest.Fault{{Origin: at, Severity: manifest.Error, Code: lastgood.CodeUnread, Message: "permission denied"}}
			}),
		},
		"source-stale": {func(_ *Proxies, s *Sources) { s.Old = []string{"source consul is stale"} }},
		"manifest-error": {
			source(func(st *files.Status) {
				st.Faults = []manifest.Fault{{Origin: at, Severity: manifest.Error, Code: manifest.CodeKind, Message: "broken"}}
			}),
			source(func(st *files.Status) {
				st.Faults = []manifest.Fault{{Origin: at, Severity: manifest.Warning, Code: kv.CodeNoKeys, Message: "no manifest"}}
			}),
		},
		"removal-held": {func(_ *Proxies, s *Sources) {
			s.Registry.Sources[0].HeldCount = 7
			s.Unsaved = []string{"source files is not saved (in use): removals are on hold"} // for that, and not for the disk
			s.Registry.Sources[0].Held = []registry.Held{{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "a"}, Since: now}}
		}},
		"issuer-keys": {
			func(_ *Proxies, s *Sources) {
				s.Keys.Sets = []jwks.Status{{URI: "https://a.example", State: jwks.StateNone, Err: "no such file"}}
			},
			func(_ *Proxies, s *Sources) { s.Keys.Over = 1 },
		},
		"network-gateway": {func(_ *Proxies, s *Sources) {
			s.Networks.WithoutGateway = []view.NetworkWithoutGateway{{Network: "east", Why: []string{"registryServiceName gw.mesh: there is no service"}}}
		}, func(_ *Proxies, s *Sources) {
			s.Networks.Names = []gatewaynames.Status{{Name: "gw.example", Err: "no such host", Since: now}}
		}, func(_ *Proxies, s *Sources) {
			s.Networks.Names = []gatewaynames.Status{
				{Name: "gw.example", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, Err: "no such host", Since: now.Add(-time.Minute)},
				{Name: "just-now.example", Addresses: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, Err: "no such host", Since: now.Add(-time.Second)},
			}
		}},
		"no-destination": {func(p *Proxies, _ *Sources) {
			p.Findings.List = []MeshFinding{{Reason: "no-destination", Object: "VirtualService shop/web", Origin: "a.yaml:2:1", Text: `sends requests to the host "x.mesh", which does not exist`, Since: now.Add(-time.Minute), Action: "correct it", Proxies: 2}}
		}, func(p *Proxies, _ *Sources) { p.Findings.More = map[string]int{"no-destination": 3} }},
		"no-endpoints": {func(p *Proxies, _ *Sources) {
			p.Findings.List = []MeshFinding{{Reason: "no-endpoints", Object: "VirtualService shop/web", Origin: "a.yaml:2:1", Text: `sends requests to the host "x.mesh", which has no endpoint`, Since: now.Add(-time.Minute), Action: "correct it", Proxies: 1}}
		}},
		"gateway-server": {func(p *Proxies, _ *Sources) {
			p.Findings.List = []MeshFinding{{Reason: "gateway-server", Object: "Gateway shop/edge", Origin: "a.yaml:2:1", Text: `the server "https" on port 443 is left out`, Since: now.Add(-time.Minute), Action: "correct it", Proxies: 1}}
		}},
		"delegate-limit": {func(p *Proxies, _ *Sources) {
			p.Findings.List = []MeshFinding{{Reason: "delegate-limit", Object: "VirtualService shop/web", Origin: "a.yaml:2:1", Text: "does not include VirtualService evil/part", Since: now.Add(-time.Minute), Action: "include less", Proxies: 1}}
		}},
		"consul-denied":     {catalog(func(st *consul.Status) { st.Denied = []string{`service:read on "a"`} }), catalog(func(st *consul.Status) { st.DeniedCount = 3 })},
		"consul-unreadable": {catalog(func(st *consul.Status) { st.Unreadable = []string{"web: not JSON"} })},
		"state-damaged": {
			source(func(st *files.Status) {
				st.Faults = []manifest.Fault{{Origin: at, Severity: manifest.Error, Code: lastgood.CodeState, Message: "last good versions are lost"}}
			}),
			catalog(func(st *consul.Status) { st.StateFault, st.State = "the stored catalog is damaged", consul.Starting }),
		},
		"host-grants": {func(_ *Proxies, s *Sources) {
			s.Registry.Grants = []mesh.OpenGrant{{Grant: mesh.Grant{Name: "orders.example", Namespace: "shop"}}, {Grant: mesh.Grant{Name: "*.web.example", Namespace: "shop", Gateways: true}}}
		}, func(p *Proxies, s *Sources) { s.Registry.GrantsFault = "damaged" }},
		"state-unsaved": {func(_ *Proxies, s *Sources) { s.Unsaved = []string{"source files is not saved: disk full"} }, catalog(func(st *consul.Status) { st.Unsaved = "disk full" })},
		"host-absent": {
			func(p *Proxies, _ *Sources) {
				p.Absent = []AbsentHost{{Name: "web", Never: true, Since: now.Add(-time.Hour), Workloads: []ServedWorkload{{Namespace: "shop", Name: "web", Address: "10.0.0.1"}}}}
				p.Proxies[0].Connected, p.Proxies[0].Absent = false, true
			},
			func(p *Proxies, _ *Sources) { p.Absent = []AbsentHost{{Name: "web", Since: now}} },
		},
		"host-fault": {func(p *Proxies, _ *Sources) { p.HostFaults = []HostFault{{"web", "two hold its key"}} }},
		"agent-gone": {proxy(func(x *Proxy) { x.Connected, x.AgentGone, x.Health = false, true, "unhealthy" })},
		"unhealthy":  {proxy(func(x *Proxy) { x.Health, x.HealthReason = "unhealthy", "http probe: 503" })},
		"host-problem": {proxy(func(x *Proxy) {
			x.Credentials = &bootstrap.Credentials{Problems: []string{"Envoy (process 7) does not answer: it is stopped"}}
		})},
		"rejected": {
			proxy(func(x *Proxy) {
				x.Synced, x.Types = false, []Type{{Type: "listener", Rejected: []Rejection{{Name: "15006", Reason: "no such filter"}}}}
			}),
			proxy(func(x *Proxy) { x.Synced, x.Types = false, []Type{{Type: "listener", RejectedMore: 1}} }),
		},
		"stale": {proxy(func(x *Proxy) { x.Synced, x.Stale = false, "its workload is no longer in the mesh" })},
		"not-synced": {
			proxy(func(x *Proxy) { x.Synced, x.Behind = false, now.Add(-patience) }),
			proxy(func(x *Proxy) {
				x.Synced, x.Behind, x.Types = false, now.Add(-patience), []Type{{Type: "listener", Pending: true}}
			}),
		},
		"no-inbound": {
			func(p *Proxies, _ *Sources) {
				p.Unserved = []Unserved{{Unserved: xds.Unserved{Key: mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: "shop", Name: "web"}, Address: "10.0.0.1", Port: 8080}}}
			},
			func(p *Proxies, _ *Sources) {
				p.Unserved = []Unserved{{Unserved: xds.Unserved{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "web"}, Proxy: "web.shop", Host: "web", Listens: true}}}
			},
		},
		"credential": {proxy(func(x *Proxy) {
			x.Credentials = &bootstrap.Credentials{Total: 2, NotReady: 1, List: []bootstrap.Credential{{Name: "shop", State: "missing", Reason: "no such folder"}, {Name: "www", State: "ready"}}}
		})},
		"claim-conflict": {func(p *Proxies, _ *Sources) {
			p.Conflicts = []agents.Conflict{{Host: "web", Namespace: "shop", Workload: "web", Reason: "it is of host db"}}
		}},
		"refused": {
			func(p *Proxies, _ *Sources) {
				p.Refused = []Refused{{Host: "web", What: "stream", Reason: "no workload fits", Last: now}}
			},
			func(p *Proxies, _ *Sources) {
				p.Refused = []Refused{{Peer: "10.0.0.9:4000", What: "certificate", Reason: "join token is unknown", Last: now}}
			},
		},
	}
}

// allWell is a mesh in which nobody needs to do anything.
func allWell() (*Proxies, *Sources) {
	return &Proxies{Proxies: []Proxy{{Name: "web.shop", Host: "web", Connected: true, Synced: true, Health: "healthy", Workload: "shop/web"}}},
		&Sources{
			Ready: true, Files: []files.Status{{Source: "files", State: lastgood.OK}}, Consul: []consul.Status{{Source: "consul", State: consul.Live}},
			Registry: registry.Status{Sources: []registry.SourceStatus{{Name: "files"}}},
		}
}

// TestEveryReason: each kind of condition is found, alone, and text, metric and /readyz agree
// on it. A kind that is added to the table needs a provocation here.
func TestEveryReason(t *testing.T) {
	t.Parallel()
	now := time.Now()
	p, s := allWell()
	if got := Conditions(p, s, now); len(got) > 0 || sum(got) != "" {
		t.Fatalf("all is well, and there is %+v", got)
	}
	ways := provocations(now)
	if len(ways) != len(Reasons()) {
		t.Errorf("%d provocations for %d reasons", len(ways), len(Reasons()))
	}
	for _, reason := range Reasons() {
		if len(ways[reason]) == 0 {
			t.Errorf("nothing provokes %s", reason)
		}
		for i, provoke := range ways[reason] {
			p, s := allWell()
			provoke(p, s)
			got := Conditions(p, s, now)
			if len(got) != 1 || got[0].Reason != reason {
				t.Errorf("%s, %d: found %+v", reason, i, got)
				continue
			}
			c := got[0]
			if c.Subject == "" || len(c.Text) < 10 || len(c.Action) < 10 || strings.Contains(c.Text+c.Action, "\n") || strings.Contains(c.Text+c.Action, "%!") {
				t.Errorf("%s, %d: it does not say what and what to do in a line each: %+v", reason, i, c)
			}
			many := max(1, c.Others)
			if line := sum(got); !strings.HasPrefix(line, fmt.Sprintf("unwell: %s %d;", reason, many)) || strings.Contains(line, "web") {
				t.Errorf("%s, %d: /readyz says %q", reason, i, line)
			}
			if got := unwellMetric(t, got); fmt.Sprint(got) != fmt.Sprint(map[string]float64{reason: float64(many)}) {
				t.Errorf("%s, %d: the metric says %v", reason, i, got)
			}
		}
	}
}

// TestRejectedSaysWhatToDo: the action is about what keeps Envoy from the listener.
func TestRejectedSaysWhatToDo(t *testing.T) {
	t.Parallel()
	const bind = "cannot bind '10.0.0.1:80': "
	for reason, want := range map[string]string{
		bind + "Address already in use":                        "`ss -ltnp`",
		bind + "Cannot assign requested address":               "give host web the address",
		bind + "Permission denied":                             "a port of 1024 or above, or have the agent of host web and its Envoy run with CAP_NET_BIND_SERVICE",
		bind + "Invalid argument":                              "repair what keeps Envoy from the address and port",
		"unable to open file '/gone/a.log': Permission denied": "make the directory of that file",
		"no such filter":                                       "correct the object that it was made from",
	} {
		p, s := allWell()
		p.Proxies[0].Synced, p.Proxies[0].Types = false, []Type{{Type: "listener", Rejected: []Rejection{{Name: "in", Reason: reason}}}}
		if got := Conditions(p, s, time.Now()); len(got) != 1 || !strings.Contains(got[0].Action, want) {
			t.Errorf("%s: %+v, want the action %q", reason, got, want)
		}
	}
}

// unwellMetric is fairlead_mesh_unwell as it is collected, without the zeros; each reason has a
// value.
func unwellMetric(t *testing.T, list []Condition) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(unwellCollector(list))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out, n := map[string]float64{}, 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n++
			if v := m.GetGauge().GetValue(); v != 0 {
				out[m.GetLabel()[0].GetValue()] = v
			}
		}
	}
	if n != len(Reasons()) {
		t.Errorf("%d values for %d reasons", n, len(Reasons()))
	}
	return out
}

// unwellCollector collects the metric of conditions alone.
type unwellCollector []Condition

func (c unwellCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- newStatusCollector(&Server{}).unwell
}

func (c unwellCollector) Collect(ch chan<- prometheus.Metric) {
	collectUnwell(newStatusCollector(&Server{}).unwell, c, func(m prometheus.Metric) { ch <- m })
}

// TestReasonsAreDocumented: each reason has a row in the reference, and no row is of none.
func TestReasonsAreDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "reference-operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Reasons of proxy-status\n")
	section, _, _ = strings.Cut(section, "\n#")
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(section, -1) {
		rows = append(rows, m[1])
	}
	if fmt.Sprint(rows) != fmt.Sprint(Reasons()) {
		t.Errorf("the page has  %v\nthe table has %v", rows, Reasons())
	}
}

// TestNobodyIsNeeded: what is planned, on its way, or over needs nobody.
func TestNobodyIsNeeded(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, change := range map[string]func(*Proxy){
		"maintenance":  func(x *Proxy) { x.Health, x.HealthReason, x.Withdrawn = "unhealthy", "in maintenance mode", true },
		"on_its_way":   func(x *Proxy) { x.Synced, x.Behind = false, now.Add(-time.Second) },
		"left":         func(x *Proxy) { x.Connected, x.Synced, x.Behind = false, false, now.Add(-time.Hour) },
		"left_refused": func(x *Proxy) { x.Connected, x.Types = false, []Type{{RejectedMore: 1}} },
	} {
		p, s := allWell()
		s.Consul[0].Delivered, s.Consul[0].StateFault = true, "the stored catalog was damaged, and was read again"
		change(&p.Proxies[0])
		if got := Conditions(p, s, now); len(got) > 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
