package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/cmd/fairlead/internal/server"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestConsulStatus: what a person is told of catalogs, and whether it is bad.
func TestConsulStatus(t *testing.T) {
	t.Parallel()
	conflict := mesh.Conflict{
		Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "default", Name: "consul/web"}, Host: "web.service.consul",
		Kept: &mesh.Origin{Source: "files", Path: "web.yaml", Line: 1, Column: 1}, Dropped: &mesh.Origin{Source: "consul", Path: "consul://dc1/service/web"},
		Reason: "it is written down",
	}
	many := &consul.Status{Source: "consul", State: consul.Live}
	for i := range 12 {
		many.Denied = append(many.Denied, fmt.Sprintf("service:read on \"s%02d\"", i))
	}
	for name, c := range map[string]struct {
		s    server.Sources
		bad  bool
		want string
	}{
		"all_is_well": {s: server.Sources{Consul: []consul.Status{{Source: "consul", State: consul.Live, Notes: []mapping.Note{{Severity: mapping.Info}}}}}},
		"old":         {s: server.Sources{Old: []string{"source consul is stale: serving the last known catalog, 3m0s old: away\x1b[2J"}}, bad: true},
		"starting":    {s: server.Sources{Consul: []consul.Status{{Source: "consul", State: consul.Starting, Since: time.Now(), Reason: "away"}}}, want: "\nsource consul is starting for less than 1s: away\n"},
		"unsaved":     {s: server.Sources{Consul: []consul.Status{{Source: "consul", State: consul.Live, Unsaved: "disk full"}}}, bad: true},
		"left_out": {
			s:    server.Sources{Consul: []consul.Status{{Source: "consul", State: consul.Live, Notes: []mapping.Note{{Code: mapping.CodePort, Severity: mapping.Warning, Service: "web", Instance: "n/web-1", Message: "no port"}}}}},
			want: "\nconsul: left out of the mesh:\n  [FL0606] web n/web-1: no port\n",
		},
		"conflict": {
			s:    server.Sources{Registry: registry.Status{Conflicts: []mesh.Conflict{conflict, {Key: conflict.Key}}}},
			want: "\nlimited to some namespaces:\n  ServiceEntry default/consul/web: it is written down (web.yaml:1:1, consul://dc1/service/web)\n",
		},
	} {
		var out strings.Builder
		bad := len(server.Conditions(&server.Proxies{}, &c.s, time.Now())) > 0
		writeConsul(&out, &c.s)
		got := out.String()
		if bad != c.bad {
			t.Errorf("%s: bad is %v", name, bad)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	var out strings.Builder
	writeConsul(&out, &server.Sources{Consul: []consul.Status{*many}})
	if strings.Count(out.String(), "service:read") != maxShown || !strings.Contains(out.String(), "and 2 more") {
		t.Errorf("many rules:\n%s", out.String())
	}
}
