package main

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/race"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/kv"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/sourcetest"
)

// TestPushRemovesAPolicy: a policy that a push takes away is out of force within 12 s, as one that is taken out of a
// file by any of the ways in which people edit files. A value that lost its end takes nothing away.
func TestPushRemovesAPolicy(t *testing.T) {
	t.Parallel()
	race.SkipLongWait(t)
	a := consultest.Start(t, consultest.Options{})
	p := newPlace(t, a, "fairlead/loss")
	denies := func(name string) string {
		return "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: " + name + ", namespace: shop}\n" +
			"spec: {action: DENY, rules: [{to: [{operation: {paths: [\"/" + name + "\"], ports: [\"80\"]}}]}]}\n---\n"
	}
	both := denies("one") + denies("two")
	p.file("a.yaml", both)
	p.run(0, []string{"push"}, "pushed 1 key")
	source, err := kv.New(kv.Config{Client: client.Config{Address: a.Address()}, Prefix: p.prefix, StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := sourcetest.Record(t, sourcetest.Recording{Source: source, Log: &sourcetest.Log{}, Patience: envoytest.Patience, Objects: func(f *mesh.Fragment) []string {
		var names []string
		for _, o := range f.AuthorizationPolicies {
			names = append(names, o.Name)
		}
		return names
	}})
	r.Await("one", "two")
	pair, _, err := a.Client().KV().Get(p.prefix+"/a.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.put("a.yaml", strings.TrimSuffix(string(pair.Value), denies("two")+manifest.EndMark+"\n"))
	sourcetest.AwaitStatus(r, source.Status, "cut off", func(s *lastgood.Status) bool { return len(s.Faults) > 0 })
	r.Always("one", "two")
	p.run(0, []string{"push"}, "pushed 1 key")
	sourcetest.AwaitStatus(r, source.Status, "whole", func(s *lastgood.Status) bool { return len(s.Faults) == 0 })

	p.file("a.yaml", denies("one"))
	p.run(0, []string{"push"}, "pushed 1 key")
	began := time.Now()
	r.Await("one")
	took := time.Since(began)
	t.Logf("in force after %s", took.Round(10*time.Millisecond))
	if took > 12*time.Second {
		t.Errorf("in force after %s, want at most 12s", took)
	}
}
