package envoy_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// What is in this file decides who may do what without anything of the product: it reads the
// YAML of policies, and evaluates them as Istio's reference says, for a request as an
// application has received it.

// attackPolicy is an AuthorizationPolicy.
type attackPolicy struct {
	Meta struct {
		Name, Namespace string
		Annotations     map[string]string
	}
	Spec struct {
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Action   string
		Provider struct{ Name string }
		Rules    []attackRule
	}
}

type attackRule struct {
	From []struct{ Source attackSource }
	To   []struct{ Operation attackOperation }
	When []attackCondition
}

type attackSource struct {
	Principals        []string
	NotPrincipals     []string `yaml:"notPrincipals"`
	Namespaces        []string
	NotNamespaces     []string `yaml:"notNamespaces"`
	RequestPrincipals []string `yaml:"requestPrincipals"`
}

type attackOperation struct {
	Hosts, Ports, Methods, Paths []string
	NotHosts                     []string `yaml:"notHosts"`
	NotPorts                     []string `yaml:"notPorts"`
	NotMethods                   []string `yaml:"notMethods"`
	NotPaths                     []string `yaml:"notPaths"`
}

type attackCondition struct {
	Key       string
	Values    []string
	NotValues []string `yaml:"notValues"`
}

// attackPort is where all workloads of these tests listen.
const attackPort = "8080"

// attackSubject is a request as the policies see it.
type attackSubject struct {
	method, path, host string
	headers            map[string][]string
	// peer is the identity of the client without its scheme, or empty.
	peer   string
	claims map[string]any
}

// refuses tells whether the policies that are in force refuse a request. There is no provider in
// these meshes, so that CUSTOM denies what it matches.
func refuses(policies []*attackPolicy, s attackSubject) bool {
	allows, allowed := false, false
	for _, p := range policies {
		if p.Meta.Annotations["istio.io/dry-run"] == "true" || p.Spec.Action == "AUDIT" {
			continue
		}
		matched := slices.ContainsFunc(p.Spec.Rules, func(r attackRule) bool { return r.matches(s) })
		switch p.Spec.Action {
		case "", "ALLOW":
			allows, allowed = true, allowed || matched
		default:
			if matched {
				return true
			}
		}
	}
	return allows && !allowed
}

func (r attackRule) matches(s attackSubject) bool {
	from, to := len(r.From) == 0, len(r.To) == 0
	for _, f := range r.From {
		from = from || f.Source.matches(s)
	}
	for _, t := range r.To {
		to = to || t.Operation.matches(s)
	}
	for _, c := range r.When {
		if !c.matches(s) {
			return false
		}
	}
	return from && to
}

// namespacesOf are the namespaces that an identity may be in. Istio looks for "/ns/NAMESPACE/"
// anywhere in it: an identity with two is in both. No authority of the mesh signs such.
func namespacesOf(peer string) []string {
	var out []string
	parts := strings.Split(peer, "/")
	for i, part := range parts {
		if part == "ns" && i > 0 && i+2 < len(parts) {
			out = append(out, parts[i+1])
		}
	}
	return out
}

func (a attackSource) matches(s attackSubject) bool {
	subject := ""
	if s.claims != nil {
		subject = fmt.Sprintf("%v/%v", s.claims["iss"], s.claims["sub"])
	}
	among := func(list []string) bool {
		return slices.ContainsFunc(namespacesOf(s.peer), func(n string) bool { return one(list, nil, n) })
	}
	return one(a.Principals, a.NotPrincipals, s.peer) && (len(a.Namespaces) == 0 || among(a.Namespaces)) &&
		(len(a.NotNamespaces) == 0 || !among(a.NotNamespaces)) && one(a.RequestPrincipals, nil, subject)
}

func (o attackOperation) matches(s attackSubject) bool {
	host := strings.ToLower(s.host)
	return one(o.Hosts, o.NotHosts, host) && one(o.Ports, o.NotPorts, attackPort) && one(o.Methods, o.NotMethods, s.method) && one(o.Paths, o.NotPaths, s.path)
}

func (c attackCondition) matches(s attackSubject) bool {
	var have []string
	name, inside, _ := strings.Cut(c.Key, "[")
	switch inside = strings.TrimSuffix(inside, "]"); name {
	case "request.headers":
		have = s.headers[strings.ToLower(inside)]
	case "request.auth.claims":
		switch v := s.claims[inside].(type) {
		case string:
			have = []string{v}
		case []any:
			for _, e := range v {
				have = append(have, fmt.Sprint(e))
			}
		}
	case "source.principal":
		have = []string{s.peer}
	case "source.namespace":
		have = namespacesOf(s.peer)
	default:
		// Nobody has taught it this key: whatever is done is a breach.
		return true
	}
	among := func(patterns []string) bool {
		return slices.ContainsFunc(have, func(v string) bool {
			return v != "" && slices.ContainsFunc(patterns, func(p string) bool { return fits(p, v) })
		})
	}
	return (len(c.Values) == 0 || among(c.Values)) && !among(c.NotValues)
}

// one tells whether a text is among patterns, where there are any, and not among others.
func one(patterns, not []string, v string) bool {
	among := func(list []string) bool {
		return v != "" && slices.ContainsFunc(list, func(p string) bool { return fits(p, v) })
	}
	return (len(patterns) == 0 || among(patterns)) && !among(not)
}

func fits(pattern, v string) bool {
	if strings.Contains(pattern, "{*}") || strings.Contains(pattern, "{**}") {
		expr := strings.NewReplacer(`\{\*\*\}`, `.*`, `\{\*\}`, `[^/]+`).Replace(regexp.QuoteMeta(pattern))
		return regexp.MustCompile("^" + expr + "$").MatchString(v)
	}
	switch {
	case pattern == "*":
		return true
	case strings.HasSuffix(pattern, "*"):
		return strings.HasPrefix(v, strings.TrimSuffix(pattern, "*"))
	case strings.HasPrefix(pattern, "*"):
		return strings.HasSuffix(v, strings.TrimPrefix(pattern, "*"))
	default:
		return pattern == v
	}
}

// readings are the paths that an application may understand by a path that it has received, if it
// reads paths as Istio's page about a normalization says that a proxy with it does:
// https://istio.io/latest/docs/reference/config/security/normalization
func readings(received, normalization string) []string {
	path, _, _ := strings.Cut(received, "?")
	path, _, _ = strings.Cut(path, "#")
	out := []string{path}
	if normalization == "NONE" {
		return out
	}
	if normalization == "DECODE_AND_MERGE_SLASHES" {
		path = decodeOnly(path, func(b byte) bool { return b == '/' || b == '\\' })
	}
	path = decodeOnly(path, func(b byte) bool {
		return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("-._~", b) >= 0
	})
	path = strings.ReplaceAll(path, `\`, "/")
	out = append(out, withoutDots(path))
	if normalization == "BASE" || normalization == "DEFAULT" {
		return out
	}
	// Applications differ in what they do first.
	return append(out, oneSlash(withoutDots(path)), withoutDots(oneSlash(path)))
}

func decodeOnly(path string, wanted func(byte) bool) string {
	return regexp.MustCompile(`%[0-9A-Fa-f]{2}`).ReplaceAllStringFunc(path, func(code string) string {
		var b byte
		_, _ = fmt.Sscanf(code, "%%%02x", &b)
		if wanted(b) {
			return string([]byte{b})
		}
		return code
	})
}

func oneSlash(path string) string { return regexp.MustCompile(`/+`).ReplaceAllString(path, "/") }

// withoutDots resolves the segments "." and ".." of RFC 3986, section 5.2.4.
func withoutDots(path string) string {
	var out []string
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".", "..":
			if s == ".." && len(out) > 0 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, s)
		}
	}
	return "/" + strings.Join(out, "/")
}

// attackSet is policies that a workload has together.
type attackSet struct {
	name   string
	labels map[string]string
	// manifests has the files, and policies what is in them for this workload.
	manifests string
	policies  []*attackPolicy
	// whole says that it has all policies of the example.
	whole bool
	// tokens says that a RequestAuthentication is there.
	tokens bool
}

const attackNamespace = "shop"

// attackSets reads each file with a policy: those of the example, however many there are, and those
// of the test's own. A set has one file; and one set for each app has all of the example's.
func attackSets(t *testing.T) []*attackSet {
	t.Helper()
	root := envoytest.ModuleRoot(t)
	examples := attackFiles(t, filepath.Join(root, "examples", "authorization"))
	if len(examples) < 7 {
		t.Fatalf("the example has %d files with policies", len(examples))
	}
	var sets []*attackSet
	var whole strings.Builder
	apps := map[string]bool{}
	for _, f := range slices.Concat(examples, attackFiles(t, filepath.Join("testdata", "attack"))) {
		sets = append(sets, newAttackSet(t, strings.TrimSuffix(filepath.Base(f.path), ".yaml"), f.text, nil))
	}
	for i, f := range examples {
		whole.WriteString(f.text + "\n---\n")
		if app := sets[i].labels["app"]; app != "" {
			apps[app] = true
		}
	}
	for app := range apps {
		s := newAttackSet(t, "all-of-"+app, whole.String(), map[string]string{"app": app})
		s.whole = true
		sets = append(sets, s)
	}
	slices.SortFunc(sets, func(a, b *attackSet) int { return strings.Compare(a.name, b.name) })
	return sets
}

type attackFile struct{ path, text string }

func attackFiles(t *testing.T, dir string) []attackFile {
	t.Helper()
	var out []attackFile
	fatalIf(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "kind: AuthorizationPolicy") {
			out = append(out, attackFile{path, string(text)})
		}
		return err
	}), "reading %q", dir)
	return out
}

// newAttackSet reads manifests for the workload with labels; nil means that of the first selector.
func newAttackSet(t *testing.T, name, manifests string, labels map[string]string) *attackSet {
	t.Helper()
	s := &attackSet{name: name, labels: labels, manifests: manifests}
	var all []*attackPolicy
	dec := yaml.NewDecoder(strings.NewReader(manifests))
	for {
		var doc struct {
			APIVersion     string `yaml:"apiVersion"`
			Kind           string
			Metadata, Spec yaml.Node
		}
		if err := dec.Decode(&doc); err != nil {
			break
		}
		if doc.Kind == "RequestAuthentication" {
			s.tokens = true
		}
		if doc.Kind != "AuthorizationPolicy" {
			continue
		}
		p := &attackPolicy{}
		fatalIf(t, doc.Metadata.Decode(&p.Meta), "reading %s", name)
		strictly(t, name, &doc.Spec, &p.Spec)
		if p.Meta.Namespace != attackNamespace {
			t.Fatalf("%s: a policy of the namespace %q: teach this test", name, p.Meta.Namespace)
		}
		if s.labels == nil {
			s.labels = p.Spec.Selector.MatchLabels
		}
		all = append(all, p)
	}
	for _, p := range all {
		selected := true
		for k, v := range p.Spec.Selector.MatchLabels {
			selected = selected && s.labels[k] == v
		}
		if selected {
			s.policies = append(s.policies, p)
		}
	}
	return s
}

// strictly decodes a node; a field that this test does not know fails it.
func strictly(t *testing.T, name string, n *yaml.Node, into any) {
	t.Helper()
	body, err := yaml.Marshal(n)
	fatalIf(t, err, "writing %s", name)
	dec := yaml.NewDecoder(strings.NewReader(string(body)))
	dec.KnownFields(true)
	if err := dec.Decode(into); err != nil {
		t.Fatalf("%s has what the oracle of this test does not know, teach it: %v", name, err)
	}
}

// exampleToken is the example's token, with its claims.
func exampleToken(t *testing.T) (token string, claims map[string]any) {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "examples", "authorization", "keys", "alice.jwt"))
	fatalIf(t, err, "reading a token")
	token = strings.TrimSpace(string(body))
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	fatalIf(t, err, "decoding a token")
	fatalIf(t, json.Unmarshal(payload, &claims), "reading claims")
	return token, claims
}
