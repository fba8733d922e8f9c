package lastgood_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

func objectOf(kind, name, spec string) []byte {
	return []byte("apiVersion: networking.istio.io/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: evil}\nspec: " + spec + "\n")
}

func listOf(n int, format string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(format, i))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func textOf(faults []manifest.Fault) string {
	var s strings.Builder
	for _, f := range faults {
		s.WriteString(f.String() + "\n")
	}
	return s.String()
}

// TestWhatCostsAProxyIsLimited fills a bound source with objects that are small as text, and cost each proxy much: the
// largest are refused.
func TestWhatCostsAProxyIsLimited(t *testing.T) {
	t.Parallel()
	const to = "route: [{destination: {host: a.evil.test}}]"
	routes := func(n int, match string) string {
		return listOf(n, "{match: [{uri: {"+match+"}}], "+to+"}")
	}
	services := func(hosts, ports int) []byte { return entryOf("s", hosts, ports, 1) }
	wildcard := func(spec string) []byte { return objectOf("DestinationRule", "r", "{host: '*.s.evil.test', "+spec+"}") }
	for name, c := range map[string]struct {
		texts map[string][]byte
		want  string // what is refused
		says  string
	}{
		"clusters":             {texts: map[string][]byte{"s": services(101, 100)}, want: "s", says: "costs a proxy some 505000 kB (1010000 units), and may cost some 500000 kB (1000000 units)"},
		"clusters_within":      {texts: map[string][]byte{"s": services(99, 100)}},
		"subsets":              {texts: map[string][]byte{"s": services(10, 10), "r": wildcard("subsets: " + listOf(100, "{name: v%d}"))}, want: "r"},
		"within_a_label":       {texts: map[string][]byte{"s": services(10, 10), "r": objectOf("DestinationRule", "r", "{host: '*s.evil.test', subsets: "+listOf(100, "{name: v%d}")+"}")}, want: "r"},
		"subsets_within":       {texts: map[string][]byte{"s": services(10, 10), "r": wildcard("subsets: " + listOf(90, "{name: v%d}"))}},
		"tls":                  {texts: map[string][]byte{"s": services(31, 31), "r": wildcard("trafficPolicy: {tls: {mode: SIMPLE}}")}, want: "r"},
		"tls_within":           {texts: map[string][]byte{"s": services(30, 30), "r": wildcard("trafficPolicy: {tls: {mode: SIMPLE}}")}},
		"names":                {texts: map[string][]byte{"s": services(10, 10), "r": wildcard("trafficPolicy: {tls: {mode: ISTIO_MUTUAL, subjectAltNames: " + listOf(5000, "n%d") + "}}")}, want: "r"},
		"routes":               {texts: map[string][]byte{"s": services(20, 20), "v": objectOf("VirtualService", "v", "{hosts: ['*.s.evil.test'], http: "+routes(300, "prefix: /%d/")+"}")}, want: "v"},
		"routes_gateway":       {texts: map[string][]byte{"s": services(20, 20), "v": objectOf("VirtualService", "v", "{hosts: ['*.s.evil.test'], gateways: [edge/shared], http: "+routes(300, "prefix: /%d/")+"}")}},
		"routes_own_gateway":   {texts: map[string][]byte{"g": objectOf("Gateway", "g", "{selector: {app: a}, servers: "+listOf(500, "{hosts: ['*'], port: {name: p%[1]d, number: 1%[1]d, protocol: HTTP}}")+"}"), "v": objectOf("VirtualService", "v", "{hosts: ['*'], gateways: [g], http: "+routes(400, "prefix: /%d/")+"}")}, want: "v"},
		"routes_below_servers": {texts: map[string][]byte{"g": objectOf("Gateway", "g", "{selector: {app: a}, servers: "+listOf(500, "{hosts: ['evil/h%[1]d.evil.test'], port: {name: p%[1]d, number: 1%[1]d, protocol: HTTP}}")+"}"), "v": objectOf("VirtualService", "v", "{hosts: ['*.evil.test'], gateways: [evil/g], http: "+routes(400, "prefix: /%d/")+"}")}, want: "v"},
		"routes_at_one_server": {texts: map[string][]byte{"g": objectOf("Gateway", "g", "{selector: {app: a}, servers: "+listOf(500, "{hosts: ['h%[1]d.evil.test'], port: {name: p%[1]d, number: 1%[1]d, protocol: HTTP}}")+"}"), "v": objectOf("VirtualService", "v", "{hosts: [h7.evil.test], gateways: [g], http: "+routes(400, "prefix: /%d/")+"}")}},
		"subsets_short_name":   {texts: map[string][]byte{"s": objectOf("ServiceEntry", "s", "{hosts: [A.evil.svc.cluster.local], resolution: STATIC, ports: "+listOf(100, "{name: p%[1]d, number: 1%[1]d, protocol: HTTP}")+"}"), "r": objectOf("DestinationRule", "r", "{host: a, subsets: "+listOf(120, "{name: v%d}")+"}")}, want: "r"},
		"routes_within":        {texts: map[string][]byte{"s": services(20, 20), "v": objectOf("VirtualService", "v", "{hosts: ['*.s.evil.test'], http: "+routes(100, "prefix: /%d/")+"}")}},
		"expressions":          {texts: map[string][]byte{"v": objectOf("VirtualService", "v", "{hosts: [a.evil.test], http: "+routes(2000, "regex: '/%d.{300}'")+"}")}, want: "v"},
		"expressions_few":      {texts: map[string][]byte{"v": objectOf("VirtualService", "v", "{hosts: [a.evil.test], http: "+routes(2000, "regex: '/%d[a-z]+'")+"}")}},
		"headers":              {texts: map[string][]byte{"v": objectOf("VirtualService", "v", "{hosts: [a.evil.test], http: [{headers: {request: {remove: "+listOf(600, "x-%d")+"}}, match: "+listOf(1000, "{uri: {prefix: /%d/}}")+", "+to+"}]}")}, want: "v"},
		"delegates":            {texts: map[string][]byte{"v": objectOf("VirtualService", "v", "{hosts: [a.evil.test], http: "+listOf(400, "{match: [{uri: {prefix: /%d/}}], delegate: {name: d}}")+"}"), "d": objectOf("VirtualService", "d", "{http: "+routes(300, "prefix: /%d/")+"}")}, want: "v"},
		"delegates_within":     {texts: map[string][]byte{"v": objectOf("VirtualService", "v", "{hosts: [a.evil.test], http: "+listOf(30, "{match: [{uri: {prefix: /%d/}}], delegate: {name: d}}")+"}"), "d": objectOf("VirtualService", "d", "{http: "+routes(300, "prefix: /%d/")+"}")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, free := limited(lastgood.DefaultMaxExpansion), limited(0)
			for path, text := range c.texts {
				putText(set, path, text)
				putText(free, path, text)
			}
			said := textOf(set.Assemble().Faults)
			if refused := strings.Count(said, "["+string(lastgood.CodeExcess)+"]"); (c.want == "") != (refused == 0) || c.want != "" && (refused != 1 || !strings.Contains(said, c.want+":1:1: error")) || !strings.Contains(said, c.says) {
				t.Errorf("refused: %.500q, want %q", said, c.want)
			}
			if faults := free.Assemble().Faults; len(faults) > 0 {
				t.Errorf("a source that is not bound: %.500v", faults)
			}
		})
	}
}

// TestSavedCopyHasTheLimitsOfTenants revives texts from the state directory of an earlier release, which had no limit
// for tables of consistentHash and for regular expressions: nothing of them is in force, and a last good version that is
// within the limit is.
func TestSavedCopyHasTheLimitsOfTenants(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for kind, spec := range map[mesh.Kind]string{
		mesh.KindDestinationRule: "{host: a.evil.test, trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: %s}}}}}",
		mesh.KindVirtualService:  "{hosts: [a.evil.test], http: [{match: [{uri: {regex: '.{%s}'}}], route: [{destination: {host: a.evil.test}}]}]}",
	} {
		key := mesh.Key{Kind: kind, Namespace: "evil", Name: "large"}
		text := func(size string) []byte { return objectOf(string(kind), "large", fmt.Sprintf(spec, size)) }
		large, larger, small := map[mesh.Kind]string{mesh.KindDestinationRule: "8388608", mesh.KindVirtualService: "1000"}[kind], map[mesh.Kind]string{mesh.KindDestinationRule: "65538", mesh.KindVirtualService: "900"}[kind], "64"
		for _, bound := range []bool{true, false} {
			var opts manifest.Options
			if bound {
				opts.Namespaces = []string{"evil"}
			}
			decode := func(b *lastgood.Blob) lastgood.Decoded { return lastgood.Manifests(opts, "a.yaml", b.Content) }
			entry := lastgood.Entry{Root: "/x", Rel: "a.yaml", Contents: [][]byte{text(large), text(larger)}, Kept: []lastgood.EntryKept{{Key: key, Content: 1}}}
			v := entry.Revive(decode, now)
			if (v.Fragment(key) == nil) != bound {
				t.Errorf("%s, bound %v: in force is %v", kind, bound, v.Fragment(key))
			}
			if !bound {
				continue
			}
			entry.Contents[1] = text(small)
			v = entry.Revive(decode, now)
			said := textOf(v.Faults())
			if v.Fragment(key) == nil || !strings.Contains(said, "refused: ") || !strings.Contains(said, "a.yaml:4:") {
				t.Errorf("%s: the last good version, which is small, is not in force, or why is not said: %q", kind, said)
			}
		}
	}
}
