package manifest

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestEveryOpeningIsDecided goes through the schemas: a property that has the name of one whose absence opens
// something does so too, or is here. All in the table are properties.
func TestEveryOpeningIsDecided(t *testing.T) {
	t.Parallel()
	opensNothing := map[mesh.Kind][]string{
		"DestinationRule": {
			"spec.subsets.trafficPolicy.portLevelSettings.port",
			"spec.trafficPolicy.portLevelSettings.port",
		},
		"Gateway": {
			"spec.servers.port",
		},
		"ProxyConfig": {
			"spec.selector",
		},
		"RequestAuthentication": {
			"spec.selector",
			"spec.targetRef",
			"spec.targetRefs",
		},
		"ServiceEntry": {
			"spec.endpoints.labels",
		},
		"Sidecar": {
			"spec.egress.port",
			"spec.ingress.port",
			"spec.ingress.tls.httpsRedirect",
			"spec.ingress.tls.mode",
			"spec.outboundTrafficPolicy.egressProxy.port",
			"spec.outboundTrafficPolicy.mode",
		},
		"Telemetry": {
			"spec.accessLogging.match.mode",
			"spec.metrics.overrides.match.mode",
			"spec.selector",
			"spec.targetRef",
			"spec.targetRefs",
			"spec.tracing.match.mode",
		},
		"VirtualService": {
			"spec.gateways",
			"spec.http.headers",
			"spec.http.mirror.port",
			"spec.http.mirrors.destination.port",
			"spec.http.redirect.authority",
			"spec.http.redirect.port",
			"spec.http.redirect.scheme",
			"spec.http.redirect.uri",
			"spec.http.rewrite.authority",
			"spec.http.rewrite.uri",
			"spec.http.route.destination.port",
			"spec.http.route.headers",
			"spec.tcp.route.destination.port",
			"spec.tls",
			"spec.tls.route.destination.port",
		},
		"WorkloadEntry": {
			"spec.labels",
		},
		"WorkloadGroup": {
			"spec.metadata.labels",
			"spec.probe.grpc.port",
			"spec.probe.httpGet.port",
			"spec.probe.httpGet.scheme",
			"spec.probe.tcpSocket.port",
			"spec.template.labels",
		},
	}
	names, unused := map[string]bool{}, map[string]bool{}
	for kind := range inForce {
		for _, o := range openings(kind) {
			names[o.path[strings.LastIndexByte(o.path, '.')+1:]] = true
			unused[string(kind)+" "+o.path] = true
		}
	}
	set := schemas()
	seen := map[string]bool{}
	for _, gvk := range set.Kinds() {
		kind := mesh.Kind(gvk.Kind)
		if _, built := inForce[kind]; !built {
			continue
		}
		walkProperties(set.Lookup(gvk).Properties["spec"], "spec", func(path string) {
			at := gvk.Kind + " " + path
			name := path[strings.LastIndexByte(path, '.')+1:]
			if seen[at] || !names[name] {
				return
			}
			seen[at] = true
			open := openingAt(kind, path)
			if open != nil {
				delete(unused, gvk.Kind+" "+open.path)
			}
			if without := slices.Contains(opensNothing[kind], path); (open != nil) == without {
				t.Errorf("%s: in the table %v, among those that open nothing %v", at, open != nil, without)
			}
		})
	}
	for at := range unused {
		t.Errorf("%s is no property", at)
	}
	for kind, paths := range opensNothing {
		for _, path := range paths {
			if at := string(kind) + " " + path; !seen[at] {
				t.Errorf("%s is no property of such a name", at)
			}
		}
	}
}

// walkProperties calls f for each property, at any depth.
func walkProperties(s *schema.Schema, path string, f func(path string)) {
	switch {
	case s == nil:
		return
	case s.Items != nil:
		walkProperties(s.Items, path, f)
		return
	}
	for name, p := range s.Properties {
		f(path + "." + name)
		walkProperties(p, path+"."+name, f)
	}
}
