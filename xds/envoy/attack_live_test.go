package envoy_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// TestAttackers has attackers before the policies of the example, and before some of the test's own,
// with each way of normalizing paths: they write a request that is refused so that it looks like one
// that is allowed. The applications tell what they have received. It is a breach if the
// policies refuse that, read by an oracle that has nothing of the product, and by an application
// that reads paths as Istio's page about the normalization says. What passes because a
// normalization does not cover it is a table in docs/authorization.md, which this test compares.
func TestAttackers(t *testing.T) {
	t.Parallel()
	envoytest.Binary(t) // a skip comes before the work
	sets := attackSets(t)
	table := &attackTable{versions: map[string]bool{}}
	t.Run("versions", func(t *testing.T) {
		for _, version := range envoytest.Versions() {
			t.Run(version, func(t *testing.T) {
				t.Parallel()
				lab := newAttackLab(t, version, sets)
				var g errgroup.Group
				g.SetLimit(4)
				for _, target := range lab.targets {
					g.Go(func() error {
						target.run(t, table, version)
						return nil
					})
				}
				_ = g.Wait()
				lab.envoy.NoRejections(t)
			})
		}
	})
	if !t.Failed() && len(table.versions) == len(envoytest.Versions()) { // not if -run has chosen some
		table.compare(t, filepath.Join(envoytest.ModuleRoot(t), "docs", "authorization.md"))
	}
}

// normalizations are those of MeshConfig.
func normalizations() []string {
	return []string{"NONE", "BASE", "MERGE_SLASHES", "DECODE_AND_MERGE_SLASHES", "DEFAULT"}
}

// everything tells whether all attacks are made with a normalization: the default one, and the one
// that does most. With others, there are those that are about paths, and only on one policy at a
// time.
func everything(normalization string) bool {
	return normalization == "BASE" || normalization == "DECODE_AND_MERGE_SLASHES"
}

// attackLab is an Envoy with a listener for each set of policies and normalization.
type attackLab struct {
	ca      *authority
	envoy   *envoytest.Envoy
	targets []*attackTarget

	mu    sync.Mutex // guards pairs
	pairs map[string]tls.Certificate
}

// attackTarget is a workload.
type attackTarget struct {
	lab           *attackLab
	set           *attackSet
	normalization string
	address       string
	app           *recordingApp
	token         string
	claims        map[string]any
}

const attackMesh = `
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: attacked, namespace: shop}
spec:
  ingress: [{port: {number: 8080, name: http, protocol: HTTP}, bind: ADDRESS, defaultEndpoint: "127.0.0.1:APP"}]
  egress: [{hosts: ["~/*"]}]
---
`

func newAttackLab(t *testing.T, version string, sets []*attackSet) *attackLab {
	t.Helper()
	lab := &attackLab{ca: newAuthority(t), pairs: map[string]tls.Certificate{}}
	token, claims := exampleToken(t)
	prefix := envoytest.Loopback(t, 216, 220)
	var whole map[string]any
	for _, set := range sets {
		for _, normalization := range normalizations() {
			if set.whole && !everything(normalization) {
				continue
			}
			n := len(lab.targets)
			target := &attackTarget{
				lab: lab, set: set, normalization: normalization, token: token, claims: claims,
				address: net.JoinHostPort(prefix+strconv.Itoa(n+1), attackPort), app: &recordingApp{},
			}
			lab.targets = append(lab.targets, target)
			port := accept(t, target.app.serve)
			m := strings.NewReplacer("ADDRESS", prefix+strconv.Itoa(n+1), "APP", strconv.Itoa(port)).Replace(attackMesh) + set.manifests
			who := proxyFile{Namespace: attackNamespace, ServiceAccount: "attacked", IP: prefix + strconv.Itoa(n+1), Interception: "NONE", Labels: set.labels}
			proxy := who.proxy()
			_, err := fmt.Sscanf(version, "%d.%d.%d", &proxy.EnvoyVersion.Major, &proxy.EnvoyVersion.Minor, &proxy.EnvoyVersion.Patch)
			fatalIf(t, err, "reading %q", version)
			boot := bootstrap(t, buildAll(view.Build(attackSnapshot(t, m, normalization), proxy)))
			// All workloads are in one Envoy: each has a cluster of its own.
			cluster := "inbound|" + attackPort + "||"
			if !bytes.Contains(boot, []byte(cluster)) {
				t.Fatalf("%s: no cluster %q", set.name, cluster)
			}
			boot = bytes.ReplaceAll(boot, []byte(strconv.Quote(cluster)), []byte(strconv.Quote(cluster+strconv.Itoa(n))))
			var node map[string]any
			fatalIf(t, json.Unmarshal(boot, &node), "reading own JSON")
			if whole == nil {
				withSecrets(t, node, lab.ca, who)
				whole = node
				continue
			}
			join(t, whole, node)
		}
	}
	withoutSDS(whole)
	whole["admin"] = json.RawMessage(envoytest.AdminJSON)
	boot, err := json.Marshal(whole)
	fatalIf(t, err, "marshaling bootstrap")
	lab.envoy = envoytest.Start(t, envoytest.Config{Bootstrap: boot, Version: version})
	for _, target := range lab.targets {
		envoytest.Eventually(t, envoytest.Patience, func() error {
			c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", target.address)
			if err != nil {
				return err
			}
			return c.Close()
		})
	}
	return lab
}

// join puts the static resources of one bootstrap into another one.
func join(t *testing.T, into, from map[string]any) {
	t.Helper()
	a, okA := into["staticResources"].(map[string]any)
	b, okB := from["staticResources"].(map[string]any)
	if !okA || !okB {
		t.Fatal("no static resources")
	}
	for _, kind := range []string{"clusters", "listeners"} {
		have, _ := a[kind].([]any)
		more, _ := b[kind].([]any)
		name := func(x any) any {
			o, _ := x.(map[string]any)
			return o["name"]
		}
		for _, x := range more {
			if !slices.ContainsFunc(have, func(y any) bool { return name(x) == name(y) }) {
				have = append(have, x)
			}
		}
		a[kind] = have
	}
}

// attackSnapshot is snapshotOf with the example's keys.
func attackSnapshot(t *testing.T, manifests, normalization string) *mesh.Snapshot {
	t.Helper()
	settings, faults := manifest.DecodeMeshConfig("meshconfig.yaml", []byte("pathNormalization: {normalization: "+normalization+"}\n"))
	refuse(t, faults)
	file, faults := manifest.Decode(manifest.Options{}, "mesh.yaml", []byte(manifests))
	refuse(t, faults)
	f := &mesh.Fragment{Source: "test"}
	for _, o := range file.Objects {
		if part := o.Fragment(); part != nil {
			f.Append(part)
		}
	}
	keys, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "examples", "authorization", "keys", "login.shop.example", "keys.json"))
	fatalIf(t, err, "reading keys")
	sets := map[mesh.KeyLocation]string{}
	for _, private := range []bool{false, true} {
		sets[mesh.KeyLocation{URI: "https://login.shop.example/keys", Private: private}] = string(keys)
	}
	return mesh.Merge(mesh.Input{Fallback: settings, Fragments: []*mesh.Fragment{f.Sorted()}, KeySets: mesh.NewKeySets(sets)})
}

// run attacks a workload.
func (a *attackTarget) run(t *testing.T, table *attackTable, version string) {
	t.Helper()
	where := fmt.Sprintf("%s, %s, %s", version, a.normalization, a.set.name)
	done := map[string]bool{}
	sent := map[string]attack{}
	kept := &attackConn{}
	defer kept.close()
	send := func(conn *attackConn, p attackPair, x attack, id string) {
		status, err := a.send(t, conn, x, id, p.allowed)
		if err != nil {
			t.Errorf("%s: %q: %v", where, x.name, err)
			return
		}

		if x.shown != "" && !a.set.whole {
			passed := slices.ContainsFunc(a.app.list(), func(r receivedRequest) bool { return r.id == id })
			table.note(p, x, a.set.name, a.normalization, version, status, passed)
		}
	}
	// Envoy closes some connections one second late: those wait beside each other.
	var g errgroup.Group
	g.SetLimit(16)
	framed := false
	for _, p := range a.pairs() {
		// Requests are hidden in others where one client may send the one and not the other: once.
		frame := !framed && p.refused.peer == p.allowed.peer && p.refused.token == p.allowed.token
		framed = framed || frame
		for _, x := range a.attacks(p, frame) {
			key := fmt.Sprint(x.by, x.wire, x.fields, x.body)
			if done[key] {
				continue
			}
			done[key] = true
			id := fmt.Sprintf("a%07d", len(sent)/2)
			follows := x
			follows.by.peer, follows.by.token = x.by.peer, p.allowed.token
			sent[id], sent[follower+id[1:]] = x, follows
			if x.fields == nil && !x.alone {
				send(kept, p, x, id)
				continue
			}
			g.Go(func() error {
				conn := &attackConn{}
				defer conn.close()
				send(conn, p, x, id)
				return nil
			})
		}
	}
	_ = g.Wait()
	a.judge(t, where, sent)
}

// judge asks the oracle about each request that the application has received.
func (a *attackTarget) judge(t *testing.T, where string, sent map[string]attack) {
	t.Helper()
	for _, r := range a.app.list() {
		x, known := sent[r.id]
		switch {
		case r.fault != "":
			t.Errorf("%s: %q: the application received %s: %q", where, x.name, r.fault, r.head)
		case !known:
			t.Errorf("%s: the application received a request that nobody has sent: %q", where, r.head)
		default:
			for _, path := range readings(r.target, a.normalization) {
				s := attackSubject{method: r.method, path: path, host: r.host(), headers: r.headers, peer: x.by.peer}
				if x.by.token == a.token {
					s.claims = a.claims
				}
				if refuses(a.set.policies, s) {
					t.Errorf("%s: breach by %q: the application received %q, and may read %s %s for host %s", where, x.name, r.head, s.method, s.path, s.host)
					break
				}
			}
			if got, want := r.peer(), x.by.peer; got != want {
				t.Errorf("%s: %q: the application is told of the client %q, and it is %q: %q", where, x.name, got, want, r.head)
			}
		}
	}
}

// attackPair is a request that is refused, and one that is allowed and differs in one thing.
type attackPair struct {
	differ           string
	refused, allowed attackAsk
}

// asks are requests of all kinds that the policies of the set tell apart, and of some that they
// do not mention.
func (a *attackTarget) asks() []attackAsk {
	methods, paths, hosts, peers, headers, tokens := []string{"GET", "POST"}, []string{}, []string{"orders.shop.mesh"}, []string{""}, []string{""}, []string{""}
	add := func(list *[]string, v ...string) {
		for _, v := range v {
			if !slices.Contains(*list, v) {
				*list = append(*list, v)
			}
		}
	}
	example := func(p string) string {
		return strings.NewReplacer("{**}", "x/y", "{*}", "x", "*", "x").Replace(p)
	}
	if a.set.tokens {
		add(&tokens, a.token)
	}
	for _, p := range a.set.policies {
		for _, r := range p.Spec.Rules {
			for _, f := range r.From {
				for _, v := range slices.Concat(f.Source.Principals, f.Source.NotPrincipals) {
					add(&peers, example(v))
				}
				for _, v := range slices.Concat(f.Source.Namespaces, f.Source.NotNamespaces) {
					add(&peers, "cluster.local/ns/"+example(v)+"/sa/x")
				}
			}
			for _, o := range r.To {
				for _, v := range slices.Concat(o.Operation.Paths, o.Operation.NotPaths) {
					if v = example(v); strings.HasPrefix(v, "/") {
						add(&paths, v)
					}
				}
				for _, v := range slices.Concat(o.Operation.Hosts, o.Operation.NotHosts) {
					if !strings.Contains(v, ":") {
						add(&hosts, example(v))
					}
				}
				add(&methods, o.Operation.Methods...)
			}
			for _, c := range r.When {
				if name, ok := strings.CutPrefix(c.Key, "request.headers["); ok {
					for _, v := range c.Values {
						add(&headers, strings.TrimSuffix(name, "]")+": "+example(v))
					}
				}
			}
		}
	}
	add(&peers, "cluster.local/ns/shop/sa/stranger")
	add(&paths, "/other", "/")
	var out []attackAsk
	for _, m := range methods {
		for _, p := range paths {
			for _, h := range hosts {
				for _, peer := range peers {
					for _, line := range headers {
						for _, token := range tokens {
							out = append(out, attackAsk{method: m, path: p, host: h, peer: peer, header: line, token: token})
						}
					}
				}
			}
		}
	}
	return out
}

// maxPaths is how many paths that are refused a target is asked for. Those that policies name come
// first.
const maxPaths = 2

// pairs are the requests to attack with: for each thing in which two requests may differ, one that
// is refused beside one that is allowed; of paths, some that are refused. If nothing
// is allowed, any request that is refused stands for both.
func (a *attackTarget) pairs() []attackPair {
	refused := func(q attackAsk) bool {
		s := attackSubject{method: q.method, path: q.path, host: q.host, peer: q.peer, headers: map[string][]string{}}
		if name, value, ok := strings.Cut(q.header, ": "); ok {
			s.headers[name] = []string{value}
		}
		if q.token != "" {
			s.claims = a.claims
		}
		return refuses(a.set.policies, s)
	}
	asks := a.asks()
	var out []attackPair
	seen := map[string]bool{}
	anyAllowed, paths := false, 0
	for _, q := range asks {
		if !refused(q) {
			anyAllowed = true
			continue
		}
		for _, by := range asks {
			differ := q.differsBy(by)
			key := differ
			if differ == "path" {
				if key += q.path; paths == maxPaths && !seen[key] {
					continue
				}
			}
			if differ != "" && !seen[key] && !refused(by) {
				seen[key] = true
				if differ == "path" {
					paths++
				}
				out = append(out, attackPair{differ, q, by})
			}
		}
	}
	if !anyAllowed {
		q := attackAsk{method: "GET", path: "/admin", host: "orders.shop.mesh", peer: "cluster.local/ns/shop/sa/web"}
		out = append(out, attackPair{"nothing", q, q})
	}
	return out
}

// differsBy is the one thing in which two requests differ; empty if it is not one.
func (a attackAsk) differsBy(b attackAsk) string {
	differ := ""
	for name, same := range map[string]bool{
		"method": a.method == b.method, "path": a.path == b.path, "host": a.host == b.host,
		"header": a.header == b.header, "peer": a.peer == b.peer, "token": a.token == b.token,
	} {
		switch {
		case same:
		case differ != "":
			return ""
		default:
			differ = name
		}
	}
	return differ
}

// plainName is the name of the request that is allowed, as it is.
const plainName = "plain"

// attacks are those of a pair.
func (a *attackTarget) attacks(p attackPair, framing bool) []attack {
	var out []attack
	switch p.differ {
	case "path":
		out = pathAttacks(p.refused, p.allowed)
	case "method":
		out = methodAttacks(p.refused, p.allowed)
	case "peer":
		out = identityAttacks(p.refused, p.allowed)
	case "token":
		out = tokenAttacks(p.refused, p.allowed)
	case "host":
		out = hostAttacks(p.refused, p.allowed)
	case "header":
		out = headerAttacks(p.refused, p.allowed)
	default:
		out = slices.Concat(pathAttacks(p.refused, p.allowed), methodAttacks(p.refused, p.allowed), identityAttacks(p.refused, p.allowed),
			hostAttacks(p.refused, p.allowed), tunnelAttacks(p.refused))
	}
	if framing {
		out = append(out, framingAttacks(p.refused, p.allowed)...)
	}
	if !everything(a.normalization) {
		out = slices.DeleteFunc(out, func(x attack) bool { return !x.path })
	}
	return append([]attack{
		{name: "plain and refused", by: p.refused, wire: p.refused.wire(p.refused.path)},
		{name: plainName, by: p.allowed, wire: p.allowed.wire(p.allowed.path)},
	}, out...)
}

// follower begins the id of the plain request that follows an attack, in the place of the "a" of
// the attack's own.
const follower = "p"

// attackConn is a connection that is used by one client after the other.
type attackConn struct {
	conn net.Conn
	r    *bufio.Reader
	peer string
}

func (c *attackConn) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.conn = nil
}

// dial connects as a client. TLS of some whose identity is odd is refused: they have not come in,
// and there is no connection.
func (a *attackTarget) dial(t *testing.T, x attack) (net.Conn, error) {
	t.Helper()
	peer := x.by.peer
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", a.address)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(envoytest.Patience))
	if peer == "" {
		return c, nil
	}
	a.lab.mu.Lock()
	pair, ok := a.lab.pairs[peer]
	if !ok {
		pair = a.lab.ca.pair(t, "spiffe://"+peer)
		a.lab.pairs[peer] = pair
	}
	a.lab.mu.Unlock()
	tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"istio"}, Certificates: []tls.Certificate{pair}})
	if err := tc.HandshakeContext(t.Context()); err != nil {
		_ = c.Close()
		if x.untrusted {
			return nil, nil //nolint:nilnil // TLS may refuse it
		}
		return nil, err
	}
	return tc, nil
}

// send sends an attack, and waits until the proxy has nothing more to say about it. It returns the
// status of the first answer; 0 means that the connection was closed, or the stream reset,
// without one.
func (a *attackTarget) send(t *testing.T, kept *attackConn, x attack, id string, plain attackAsk) (int, error) {
	t.Helper()
	if x.fields != nil {
		return a.sendHTTP2(t, x, id)
	}
	if kept.conn == nil || kept.peer != x.by.peer || x.alone {
		kept.close()
		c, err := a.dial(t, x)
		if c == nil || err != nil {
			return 0, err
		}
		*kept = attackConn{c, bufio.NewReader(c), x.by.peer}
	}
	text := strings.ReplaceAll(x.wire, attackID, id)
	if x.alone {
		// What was hidden in the attack is read as a request by now. If something lacks an end, the
		// bytes behind it are what nobody takes, so that the proxy closes the connection.
		text += strings.ReplaceAll(plain.wire(plain.path, "connection: close"), attackID, follower+id[1:]) + strings.Repeat("\x00", 4096)
	}
	_, _ = io.WriteString(kept.conn, text)
	first := 0
	for {
		res, err := http.ReadResponse(kept.r, &http.Request{Method: x.by.method})
		if err != nil {
			kept.close()
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				return first, err
			}
			return first, nil
		}
		_, err = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if res.StatusCode < http.StatusOK && res.StatusCode != http.StatusSwitchingProtocols {
			continue
		}
		if first == 0 {
			first = res.StatusCode
		}
		if err != nil || res.Close {
			kept.close()
		}
		if err != nil || res.Close || !x.alone {
			return first, nil //nolint:nilerr // a proxy that closes the connection has answered
		}
	}
}

// sendHTTP2 sends an attack on a connection of its own.
func (a *attackTarget) sendHTTP2(t *testing.T, x attack, id string) (int, error) {
	t.Helper()
	c, err := a.dial(t, x)
	if c == nil || err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	out := bufio.NewWriter(c)
	_, _ = out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(out, c)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for _, f := range x.fields {
		_ = enc.WriteField(hpack.HeaderField{Name: f.Name, Value: strings.ReplaceAll(f.Value, attackID, id)})
	}
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: x.body == ""})
	if x.body != "" {
		_ = framer.WriteData(1, true, []byte(strings.ReplaceAll(x.body, attackID, id)))
	}
	_ = out.Flush()
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	status := 0
	for {
		f, err := framer.ReadFrame()
		if err != nil {
			if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
				return status, err
			}
			return status, nil
		}
		switch f := f.(type) {
		case *http2.MetaHeadersFrame:
			status, _ = strconv.Atoi(f.PseudoValue("status"))
			if f.StreamEnded() {
				return status, nil
			}
		case *http2.DataFrame:
			if f.StreamEnded() {
				return status, nil
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return status, nil
		}
	}
}
