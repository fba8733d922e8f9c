package manifest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/manifest/schema"
	"github.com/fairlead/fairlead/registry/manifest/tree"
)

// withNulls are objects as templates with empty values print them, and as they are meant.
const withNulls = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [shop-gateway]
  exportTo:
  http:
  - match:
    timeout:
    route:
    - destination: {host: shop.shop.test, port: {number: 8000}, subset: }
      weight:
`

const withoutNulls = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [shop-gateway]
  http:
  - route:
    - destination: {host: shop.shop.test, port: {number: 8000}}
`

// TestEmptyValuesCountAsAbsent: an object with nulls is in force, and is the same object as one
// without them.
func TestEmptyValuesCountAsAbsent(t *testing.T) {
	t.Parallel()
	a, b := one(t, withNulls), one(t, withoutNulls)
	if !a.InForce() || len(a.Faults) > 0 || a.Meta.Hash != b.Meta.Hash {
		t.Errorf("with nulls: in force %v, the same %v, faults %v", a.InForce(), a.Meta.Hash == b.Meta.Hash, a.Faults)
	}
	policy := one(t, "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {name: default, namespace: shop}\nspec:\n  selector:\n  mtls:\n    mode: STRICT\n  portLevelMtls:\n")
	if spec, ok := policy.Spec.(*security.PeerAuthentication); !policy.InForce() || !ok || spec.GetMtls().GetMode() != security.PeerAuthentication_MutualTLS_STRICT || spec.GetSelector() != nil {
		t.Errorf("STRICT with an empty selector: in force %v, %v, faults %v", policy.InForce(), policy.Spec, policy.Faults)
	}
}

func one(t *testing.T, text string) *manifest.Object {
	t.Helper()
	file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(text))
	if len(file.Objects) != 1 {
		t.Fatalf("%d objects, %v", len(file.Objects), faults)
	}
	return file.Objects[0]
}

// TestNullsInEveryPlace puts a null into each place of many objects where a schema has a property or
// a map: the object stays the same, unless the property is nullable.
func TestNullsInEveryPlace(t *testing.T) {
	t.Parallel()
	set, err := schema.New()
	if err != nil {
		t.Fatal(err)
	}
	places := 0
	for _, name := range []string{"shop", "policy"} {
		content, err := os.ReadFile("testdata/good/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		for text := range strings.SplitSeq(string(content), "\n---\n") {
			if !strings.Contains(text, "\nkind: ") {
				continue
			}
			o := one(t, text)
			group, version, _ := strings.Cut(o.APIVersion, "/")
			doc := asJSON(t, text)
			addNulls(doc, set.Lookup(schema.GVK{Group: group, Version: version, Kind: string(o.Meta.Kind)}), "", func(path string) {
				places++
				raw, err := json.Marshal(doc)
				if err != nil {
					t.Fatal(err)
				}
				now := one(t, string(raw))
				if !now.Valid || now.Meta.Hash != o.Meta.Hash {
					t.Errorf("%s with a null at %s: valid %v, %v", o.Meta.Key, path, now.Valid, now.Faults)
				}
			})
		}
	}
	if places < 150 {
		t.Errorf("only %d places", places)
	}
}

// asJSON is a document of YAML, as encoding/json would have read it.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	docs := tree.Parse([]byte(text))
	if len(docs) != 1 || docs[0].Root == nil {
		t.Fatalf("%d documents", len(docs))
	}
	return docs[0].Root.JSON()
}

// addNulls puts a null into one place of a document after the other, calls f, and takes it out.
func addNulls(v any, s *schema.Schema, path string, f func(path string)) {
	switch v := v.(type) {
	case map[string]any:
		names := slices.Sorted(maps.Keys(s.Properties))
		if s.AdditionalProperties != nil && !s.AdditionalProperties.Nullable {
			names = append(names, "added")
		}
		for _, name := range names {
			if p := s.Properties[name]; p != nil && p.Nullable {
				continue
			}
			if _, there := v[name]; !there {
				v[name] = nil
				f(path + "." + name)
				delete(v, name)
			}
		}
		for name, x := range v {
			if p := s.Properties[name]; p != nil {
				addNulls(x, p, path+"."+name, f)
			} else if s.AdditionalProperties != nil {
				addNulls(x, s.AdditionalProperties, path+"."+name, f)
			}
		}
	case []any:
		if s.Items == nil {
			return
		}
		for i, x := range v {
			addNulls(x, s.Items, fmt.Sprintf("%s[%d]", path, i), f)
		}
	}
}

// TestNullsThatStay: unknown fields and items of lists are errors, nullable fields have their value,
// and what is required must be there.
func TestNullsThatStay(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"VirtualService: {hosts: [a, null], http: [{route: [{destination: {host: a}}]}]}":                    "FL0111 spec.hosts[1]",
		"VirtualService: {hosts: [a], http: [{route: [{destination: {host: a}}], tiemout: null}]}":           "FL0110 spec.http[0].tiemout",
		"VirtualService: {hosts: [a], http: [null]}":                                                         "FL0111 spec.http[0]",
		"VirtualService: {hosts: [a], http: [{route: [{destination: null}]}]}":                               "FL0112 spec.http[0].route[0].destination",
		"DestinationRule: {host: null}":                                                                      "FL0112 spec.host",
		"DestinationRule: {host: a, trafficPolicy: {outlierDetection: {consecutive5xxErrors: null}}}":        "",
		"DestinationRule: {host: a, trafficPolicy: {loadBalancer: {simple: null, consistentHash: null}}}":    "",
		"DestinationRule: {host: a, trafficPolicy: {loadBalancer: {simple: RANDOM, consistentHash: null}}}":  "",
		"DestinationRule: {host: a, trafficPolicy: {loadBalancer: {simple: RANDOM, consistentHash: {}}}}":    "FL0116 spec.trafficPolicy.loadBalancer",
		"DestinationRule: {host: a, trafficPolicy: {tunnel: {targetHost: null, targetPort: 1}}}":             "FL0112 spec.trafficPolicy.tunnel.targetHost",
		"DestinationRule: {host: a, subsets: [{name: v1, labels: null, trafficPolicy: null}]}":               "",
		"ServiceEntry: {hosts: [a.test], ports: [{number: 80, name: a, targetPort: null}], resolution: DNS}": "",
	} {
		kind, spec, _ := strings.Cut(text, ": ")
		o := one(t, "apiVersion: networking.istio.io/v1\nkind: "+kind+"\nmetadata: {name: a}\nspec: "+spec+"\n")
		var errs []string
		for _, f := range o.Faults {
			if f.Severity == manifest.Error {
				errs = append(errs, string(f.Code)+" "+f.Field)
			}
		}
		if got := strings.Join(errs, ", "); !strings.HasPrefix(got, want) || (got == "") != (want == "") {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestNullsThatOpenAreNamed: a selector that lost a label, and a rule that allows more.
func TestNullsThatOpenAreNamed(t *testing.T) {
	t.Parallel()
	const empty = "and nothing else is selected by, so this selects everything; write a value, or remove the line"
	const fewer = "so this selects without looking at it; write a value, or remove the line"
	const allowed = "so the rule allows requests without this condition; write the condition, or remove the line"
	for text, want := range map[string]string{
		"security PeerAuthentication {selector: {matchLabels: {app: }}, mtls: {mode: STRICT}}":                                                   `FL0190 spec.selector.matchLabels.app: "app" has no value and counts as absent, as in Kubernetes, ` + empty,
		"security PeerAuthentication {selector: {matchLabels: {app: , v: '1'}}, mtls: {mode: STRICT}}":                                           `FL0190 spec.selector.matchLabels.app: "app" has no value and counts as absent, as in Kubernetes, ` + fewer,
		"security PeerAuthentication {selector: {matchLabels: {app.k8s/x: , v: '1'}}}":                                                           `FL0190 spec.selector.matchLabels["app.k8s/x"]: "app.k8s/x" has no value and counts as absent, as in Kubernetes, ` + fewer,
		"security PeerAuthentication {selector: , mtls: {mode: STRICT}}":                                                                         "",
		"security AuthorizationPolicy {rules: [{from: , to: [{operation: {paths: [/a]}}]}]}":                                                     `FL0191 spec.rules[0].from: "from" has no value and counts as absent, as in Kubernetes, ` + allowed,
		"security AuthorizationPolicy {action: ALLOW, rules: [{to: , from: [{source: {namespaces: [a]}}]}]}":                                     `FL0191 spec.rules[0].to: "to" has no value and counts as absent, as in Kubernetes, ` + allowed,
		"security AuthorizationPolicy {rules: [{when: , from: [{source: {namespaces: [a]}}]}]}":                                                  `FL0191 spec.rules[0].when: "when" has no value and counts as absent, as in Kubernetes, ` + allowed,
		"security AuthorizationPolicy {rules: [{from: [{source: {namespaces: [a], principals: }}]}]}":                                            `FL0191 spec.rules[0].from[0].source.principals: "principals" has no value and counts as absent, as in Kubernetes, ` + allowed,
		"security AuthorizationPolicy {rules: [{to: [{operation: {paths: [/a], notMethods: }}]}]}":                                               `FL0191 spec.rules[0].to[0].operation.notMethods: "notMethods" has no value and counts as absent, as in Kubernetes, ` + allowed,
		"security AuthorizationPolicy {rules: [{when: [{key: source.ip, values: [10.0.0.1], notValues: }]}]}":                                    `FL0191 spec.rules[0].when[0].notValues: "notValues" has no value and counts as absent, as in Kubernetes, ` + allowed,
		"security AuthorizationPolicy {action: DENY, rules: [{from: , to: [{operation: {paths: [/a]}}]}]}":                                       "",
		"security AuthorizationPolicy {action: , rules: [{}]}":                                                                                   `FL0191 spec.action: "action" has no value and counts as absent, as in Kubernetes, so the action is ALLOW; write the action, or remove the line`,
		"security PeerAuthentication {mtls: {mode: }}":                                                                                           `FL0191 spec.mtls.mode: "mode" has no value and counts as absent, as in Kubernetes, so the mode is that of the namespace or of the mesh; write the mode, or remove the line`,
		"security PeerAuthentication {selector: {matchLabels: {a: b}}, portLevelMtls: {8080: {mode: }}}":                                         `FL0191 spec.portLevelMtls.8080.mode: "mode" has no value and counts as absent, as in Kubernetes, so the mode is that of the namespace or of the mesh; write the mode, or remove the line`,
		"security AuthorizationPolicy {rules: }":                                                                                                 "",
		"security RequestAuthentication {selector: {matchLabels: {app: }}}":                                                                      `FL0190 spec.selector.matchLabels.app: "app" has no value and counts as absent, as in Kubernetes, ` + empty,
		"networking Sidecar {workloadSelector: {labels: {app: }}, egress: [{hosts: ['./*']}]}":                                                   `FL0190 spec.workloadSelector.labels.app: "app" has no value and counts as absent, as in Kubernetes, ` + empty,
		"networking Gateway {selector: {app: }, servers: [{port: {number: 80, name: a, protocol: HTTP}, hosts: ['*']}]}":                         `FL0190 spec.selector.app: "app" has no value and counts as absent, as in Kubernetes, ` + empty,
		"networking DestinationRule {host: a, subsets: [{name: v, labels: {version: }}]}":                                                        `FL0190 spec.subsets[0].labels.version: "version" has no value and counts as absent, as in Kubernetes, ` + empty,
		"networking VirtualService {hosts: [a], http: [{match: [{headers: {x: }, uri: {prefix: /}}], route: [{destination: {host: a}}]}]}":       `FL0190 spec.http[0].match[0].headers.x: "x" has no value and counts as absent, as in Kubernetes, ` + empty,
		"security AuthorizationPolicy {selector: , rules: [{from: [{source: {namespaces: [a]}}]}]}":                                              `FL0190 spec.selector: "selector" has no value and counts as absent, as in Kubernetes, so the policy allows requests to every workload of the namespace; write the selector, or remove the line`,
		"security AuthorizationPolicy {selector: {matchLabels: }, rules: [{from: [{source: {namespaces: [a]}}]}]}":                               `FL0190 spec.selector.matchLabels: "matchLabels" has no value and counts as absent, as in Kubernetes, so this selects everything; write the labels, or remove the line`,
		"security AuthorizationPolicy {targetRefs: , rules: [{from: [{source: {namespaces: [a]}}]}]}":                                            `FL0190 spec.targetRefs: "targetRefs" has no value and counts as absent, as in Kubernetes, so the policy allows requests to every workload of the namespace; write the references, or remove the line`,
		"security AuthorizationPolicy {action: DENY, selector: , rules: [{from: [{source: {namespaces: [a]}}]}]}":                                "",
		"security PeerAuthentication {mtls: }":                                                                                                   `FL0191 spec.mtls: "mtls" has no value and counts as absent, as in Kubernetes, so the mode is that of the namespace or of the mesh; write the mode, or remove the line`,
		"security PeerAuthentication {selector: , mtls: {mode: DISABLE}}":                                                                        `FL0190 spec.selector: "selector" has no value and counts as absent, as in Kubernetes, so the mode is that of every workload of the namespace; write the selector, or remove the line`,
		"security RequestAuthentication {jwtRules: [{issuer: a, presence: }]}":                                                                   `FL0191 spec.jwtRules[0].presence: "presence" has no value and counts as absent, as in Kubernetes, so requests without a token pass; write REQUIRED or OPTIONAL, or remove the line`,
		"security RequestAuthentication {jwtRules: [{issuer: a, audiences: }]}":                                                                  `FL0191 spec.jwtRules[0].audiences: "audiences" has no value and counts as absent, as in Kubernetes, so tokens for any audience are accepted; write the audiences, or remove the line`,
		"networking VirtualService {hosts: [a], http: [{match: [{uri: , method: {exact: GET}}], route: [{destination: {host: a}}]}]}":            `FL0190 spec.http[0].match[0].uri: "uri" has no value and counts as absent, as in Kubernetes, so the route takes requests without looking at it; write the condition, or remove the line`,
		"networking DestinationRule {host: a, trafficPolicy: {tls: {mode: }}}":                                                                   `FL0191 spec.trafficPolicy.tls.mode: "mode" has no value and counts as absent, as in Kubernetes, so the mode is DISABLE and requests are sent in plaintext; write the mode, or remove the line`,
		"networking DestinationRule {host: a, trafficPolicy: {portLevelSettings: [{port: {number: 1}, loadBalancer: {simple: RANDOM}, tls: }]}}": `FL0191 spec.trafficPolicy.portLevelSettings[0].tls: "tls" has no value and counts as absent, as in Kubernetes, so requests are sent in plaintext, unless the mesh uses mTLS by itself; write the TLS settings, or remove the line`,
		"networking Gateway {selector: {a: b}, servers: [{port: {number: 443, name: a, protocol: TLS}, hosts: ['*'], tls: {mode: }}]}":           `FL0191 spec.servers[0].tls.mode: "mode" has no value and counts as absent, as in Kubernetes, so the mode is PASSTHROUGH; write the mode, or remove the line`,
		"networking Gateway {selector: , servers: [{port: {number: 80, name: a, protocol: HTTP}, hosts: ['*']}]}":                                `FL0190 spec.selector: "selector" has no value and counts as absent, as in Kubernetes, so this selects everything; write the labels, or remove the line`,
		"networking WorkloadEntry {address: 10.0.0.1, labels: {app: }}":                                                                          "",
	} {
		group, rest, _ := strings.Cut(text, " ")
		kind, spec, _ := strings.Cut(rest, " ")
		o := one(t, "apiVersion: "+group+".istio.io/v1\nkind: "+kind+"\nmetadata: {name: a}\nspec: "+spec+"\n")
		var got []string
		for _, f := range o.Faults {
			if f.Code == "FL0190" || f.Code == "FL0191" {
				got = append(got, string(f.Code)+" "+f.Field+": "+f.Message)
				if f.Severity != manifest.Warning || f.Origin.Line != 4 || f.Origin.Column == 0 {
					t.Errorf("%s: %s", text, f)
				}
			}
		}
		if !o.Valid || strings.Join(got, "\n") != want {
			t.Errorf("%s: valid %v, %s\nwant %s\nall %v", text, o.Valid, strings.Join(got, "\n"), want, o.Faults)
		}
	}
}

// TestEmptyValuesOfSettings: MeshConfig and MeshNetworks have no schema. As for Istio's JSON reader,
// a null of a field counts as absent, and one in a map or list is an empty text or message.
func TestEmptyValuesOfSettings(t *testing.T) {
	t.Parallel()
	for with, without := range map[string]string{
		"connectTimeout:\nenableAutoMtls:\nlocalityLbSetting:\n":       "{}",
		"defaultConfig: {proxyMetadata: {A: , B: b}, concurrency: }\n": "defaultConfig: {proxyMetadata: {A: '', B: b}}\n",
		"defaultProviders: {accessLogging: , tracing: []}\n":           "{}",
		"extensionProviders:\n":                                        "{}",
	} {
		a, faults := manifest.DecodeMeshConfig("mesh.yaml", []byte(with))
		b, _ := manifest.DecodeMeshConfig("mesh.yaml", []byte(without))
		if a == nil || b == nil || manifest.HasErrors(faults) || a.Hash != b.Hash {
			t.Errorf("%s: %v, %v", with, a, faults)
		}
	}
	_, one := manifest.DecodeMeshConfig("mesh.yaml", []byte("trustDomainAliases: [~, old]\n"))
	_, two := manifest.DecodeMeshConfig("mesh.yaml", []byte("trustDomainAliases: ['', old]\n"))
	if len(one) != 1 || len(two) != 1 || one[0].String() != two[0].String() {
		t.Errorf("a null in a list: %v; an empty text there: %v", one, two)
	}
	a, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte("networks: {a: , b: {endpoints: , gateways: [{address: 10.0.0.1, port: 15443}]}}\n"))
	b, _ := manifest.DecodeMeshNetworks("networks.yaml", []byte("networks: {a: {}, b: {gateways: [{address: 10.0.0.1, port: 15443}]}}\n"))
	if a == nil || b == nil || len(faults) > 0 || a.Hash != b.Hash {
		t.Errorf("networks: %v, %v", a, faults)
	}
}
