package cache

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/fairlead/fairlead/internal/meshgen"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/ecds"
	"github.com/fairlead/fairlead/xds/envoy"
	"github.com/fairlead/fairlead/xds/stream"
	"github.com/fairlead/fairlead/xds/view"
)

// These property tests check that what is reused between snapshots, and shared between
// proxies, never changes a result. They know no kind of object and no field by name
// (internal/meshgen), so they need no edit when one is added.
//
// FAIRLEAD_NETS_SEEDS=N runs N seeds, and FAIRLEAD_NETS_SEED=N runs seed N only. A failure
// prints its seed.

// netProxy is a proxy, and its last configuration.
type netProxy struct {
	view.Proxy
	routes Routes
	had    Configuration
}

func proxyValues() meshgen.Values {
	return meshgen.Values{
		reflect.TypeFor[view.ProxyType]():    {view.Sidecar, view.Sidecar, view.Sidecar, view.Sidecar, view.Sidecar, view.Router},
		reflect.TypeFor[view.Interception](): {view.InterceptRedirect, view.InterceptRedirect, view.InterceptTPROXY, view.InterceptNone, view.InterceptNone},
	}
}

// newNetProxy is a proxy with a random value in each field. Most run beside a workload of
// the mesh.
func newNetProxy(w *meshgen.Generator) *netProxy {
	p, rng := &netProxy{}, w.Rand()
	proxyValues().Fill(rng, &p.Proxy)
	if all := w.Workloads(); len(all) > 0 && rng.IntN(4) > 0 {
		x := all[rng.IntN(len(all))]
		p.ServiceAccount = mesh.ServiceAccount{Namespace: x.Namespace, Name: x.ServiceAccount}
		p.Addresses, p.Labels, p.Locality, p.Network = []string{x.Address}, x.Labels, x.Locality, x.Network
	}
	p.routes.Delivery = []Delivery{Inline, VHDS}[rng.IntN(2)]
	if rng.IntN(5) == 0 {
		p.routes = p.routes.WithInline(view.RoutesLayer + "80")
	}
	return p
}

// sibling is a proxy that differs from another one in one field, or is another workload.
func (p *netProxy) sibling(w *meshgen.Generator) *netProxy {
	next := &netProxy{Proxy: p.Proxy, routes: p.routes}
	if w.Rand().IntN(2) == 0 {
		proxyValues().Mutate(w.Rand(), &next.Proxy)
		return next
	}
	var addresses []string
	for _, x := range w.Workloads() {
		if x.Namespace == p.ServiceAccount.Namespace {
			addresses = append(addresses, x.Address)
		}
	}
	if len(addresses) > 0 {
		next.Addresses = []string{addresses[w.Rand().IntN(len(addresses))]}
	}
	return next
}

// given is everything that a proxy is given, by type and name.
func given(s Configuration) map[string]string {
	out := map[string]string{}
	for i, l := range s.Resources.Generation.Layers {
		for url, set := range l.Types {
			for r := range set.All() {
				name := url.Short() + " " + r.Name
				if _, twice := out[name]; !twice { // the first layer counts
					out[name] = r.Version + " " + fmt.Sprint(r.Refs, r.Hosts) + "\n" + string(r.Body)
				}
			}
		}
		out["layer "+strconv.Itoa(i)] = l.Name
	}
	for i, w := range s.View.OwnWarnings() {
		out["warning "+strconv.Itoa(i)] = w.Key.String() + " " + w.Message + " " + w.Origin.String()
	}
	for i, f := range s.View.Findings.All() {
		out["finding "+strconv.Itoa(i)] = fmt.Sprintf("%+v", f)
	}
	out["encryption"] = string(s.Resources.Encryption)
	out["hold"] = strconv.FormatBool(s.Resources.Generation.HoldRemovals)
	return out
}

// differenceOfGiven describes the differences, or returns nothing.
func differenceOfGiven(want, got map[string]string) string {
	if maps.Equal(want, got) {
		return ""
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			fmt.Fprintf(&b, "%s (-want +got):\n%s", name, cmp.Diff(readable(name, want[name]), readable(name, got[name])))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			fmt.Fprintf(&b, "%s: should not be\n", name)
		}
	}
	return b.String()
}

func readable(name, text string) string {
	_, body, _ := strings.Cut(text, "\n")
	for _, url := range []string{envoy.ClusterType, envoy.EndpointType, envoy.ExtensionType, envoy.ListenerType, envoy.RouteType, envoy.VirtualHostType} {
		if short := stream.TypeURL(url).Short() + " "; !strings.HasPrefix(name, short) {
			continue
		}
		if m, err := envoy.Decode(envoy.Resource{TypeURL: url, Name: name, Body: []byte(body)}); err == nil {
			return prototext.Format(m)
		}
	}
	return text
}

// mustGet returns a proxy's configuration in a snapshot.
func mustGet(t *testing.T, c *Cache, e *Indexed, p *netProxy, had Configuration) Configuration {
	t.Helper()
	now, err := c.Get(e, p.Proxy, p.routes, had)
	if err != nil {
		t.Fatal(err)
	}
	if now.Resources != had.Resources {
		checkExtensions(t, now)
	}
	return now
}

// checkExtensions checks that a proxy is given every extension that its listeners name: Envoy
// would not serve a listener without.
func checkExtensions(t *testing.T, now Configuration) {
	t.Helper()
	g := now.Resources.Generation
	for l := range g.All(stream.ListenerType) {
		for _, name := range ecds.Names(l.Body) {
			if g.Get(stream.ExtensionType, name) == nil {
				t.Errorf("listener %s names extension %s, which does not exist", l.Name, name)
			}
		}
	}
}

// TestRebuildsEqualBuilds changes meshes at random. It compares what each proxy is given,
// snapshot after snapshot, with what a server that has just started would give it.
func TestRebuildsEqualBuilds(t *testing.T) {
	t.Parallel()
	coverage := meshgen.NewCoverage()
	seeds := meshgen.Seeds(t, 10, 60)
	resorts := 0
	for _, seed := range seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) { resorts += rebuildsEqualBuilds(t, seed, coverage) })
	}
	if len(seeds) > 1 {
		enough(t, coverage, len(seeds))
		t.Logf("%d times a proxy was given endpoints of last resort", resorts)
		if resorts == 0 && !testing.Short() { // few seeds may have none
			t.Error("no mesh had silent workloads beside others")
		}
	}
}

// enough fails if the generator left out too many fields, or made too many changes that no
// proxy noticed.
func enough(t *testing.T, c *meshgen.Coverage, seeds int) {
	t.Helper()
	var missing []string
	for _, f := range c.Missing() {
		if name, _, _ := strings.Cut(f, " "); unreachable()[name] == "" && ungenerated()[name] == "" {
			missing = append(missing, f)
		}
	}
	if all := len(meshgen.Fields()); seeds < 30 && len(missing) > all/5 || seeds >= 30 && len(missing) > all/100 {
		t.Errorf("of %d fields the changes left out %d:\n%s", all, len(missing), strings.Join(missing, "\n"))
	}
	steps, effects := 0, 0
	for _, kind := range slices.Sorted(maps.Keys(c.Steps)) {
		t.Logf("%s: %d changes, %d seen by a proxy", kind, c.Steps[kind], c.Effects[kind])
		steps, effects = steps+c.Steps[kind], effects+c.Effects[kind]
		if c.Steps[kind] >= 10 && c.Effects[kind] < c.Steps[kind]/8 && !slices.Contains(unseen(), kind) {
			t.Errorf("%s was changed %d times, and proxies saw %d of them", kind, c.Steps[kind], c.Effects[kind])
		}
	}
	if effects < steps*2/5 {
		t.Errorf("of %d changes proxies saw %d", steps, effects)
	}
	seen := 0
	for _, f := range meshgen.Fields() {
		if c.FieldEffects[f] > 0 {
			seen++
		}
	}
	t.Logf("%d of %d fields were in a change that was made alone and seen", seen, len(meshgen.Fields()))
}

// unseen are the kinds that make no difference to proxies: templates of workloads.
func unseen() []string { return []string{string(mesh.KindWorkloadGroup)} }

// unreachable are the fields that no valid manifest can set to two values, and why. The
// list of fields in force has them anyway.
func unreachable() map[string]string {
	const probe, tags = "a probe by gRPC is refused", "entries of a map count as a change of the map"
	return map[string]string{
		"ReadinessProbe.grpc": probe, "GrpcHealthCheckConfig.port": probe, "GrpcHealthCheckConfig.service": probe,
		"InboundTrafficPolicy.mode":       "the only value in force is the zero one",
		"MeshConfig.inboundTrafficPolicy": "its only field has one value",
		"SidecarPort.targetPort":          "it is refused: it has no effect on a Sidecar",
		"TagOverride.operation":           tags, "TagOverride.value": tags,
		"CustomTag.environment": tags, "CustomTag.formatter": tags, "CustomTag.header": tags, "CustomTag.literal": tags,
		"Environment.defaultValue": tags, "Environment.name": tags, "Formatter.value": tags, "Literal.value": tags,
		"RequestHeader.defaultValue": tags, "RequestHeader.name": tags,
	}
}

// ungenerated are the fields of which random documents have no valid value, and why. Each has a
// scenario instead, if it makes a difference at all.
func ungenerated() map[string]string {
	const (
		condition  = "few words are keys of conditions; a proxy gets conditions as they are, in one piece"
		keys       = "few texts are key sets, and few words are URIs of the web"
		hash       = "few words are hashes of certificates"
		source     = "no document has it: it comes of the source"
		unenforced = "what random policies say can be enforced"
		target     = "few words are kinds and groups that a policy can be attached to"
	)
	return map[string]string{
		"AuthorizationPolicy.DryRun": "it is an annotation",
		"Port.targetPort":            "no valid Gateway has it",
		"Fragment.ProxyConfigs":      "only agents are told of them",
		"VirtualService.Refused":     "no document has it: it comes of where the VirtualService is included",
		"Gateway.Tenant":             source, "Gateway.CreateIndex": source, "DestinationRule.LimitTables": source,
		"ServerTLSSettings.ecdhCurves": "few words are curves",
		"Rule.when":                    condition, "Condition.key": condition, "Condition.values": condition, "Condition.notValues": condition,
		"AuthorizationPolicy.targetRef": target, "AuthorizationPolicy.targetRefs": target,
		"PolicyTargetReference.group": target, "PolicyTargetReference.kind": target,
		"Fragment.Unenforced": unenforced, "Unenforced.Selector": unenforced, "Unenforced.Field": unenforced,
		"ServerTLSSettings.verifyCertificateHash": hash, "ServerTLSSettings.verifyCertificateSpki": hash,
		"JWTRule.jwks": keys, "JWTRule.jwksUri": keys,
		"RequestAuthentication.targetRef": target, "RequestAuthentication.targetRefs": target,
		"Telemetry.targetRef": target, "Telemetry.targetRefs": target,
		"Filter.expression":          "few words are expressions that Envoys know",
		"TLSConfig.cipherSuites":     "few MeshConfigs have it",
		"TunnelSettings.protocol":    "few rules have a tunnel",
		"IstioIngressListener.tls":   "few ports of Sidecars end TLS themselves",
		"TLSConfig.ecdhCurves":       "few MeshConfigs have it",
		"PolicyTargetReference.name": target, "PolicyTargetReference.namespace": target,
	}
}

// hasLastResort reports whether a view has silent endpoints beside others.
func hasLastResort(v *view.View) bool {
	for p := range v.Parts() {
		if e, ok := p.(*view.Endpoints); ok && slices.ContainsFunc(e.Localities, func(l view.LocalityEndpoints) bool { return l.LastResort }) {
			return true
		}
	}
	return false
}

// randomKeys are the keys of issuers, which change between snapshots.
type randomKeys struct {
	rng     *rand.Rand
	current *mesh.KeySets
}

func newRandomKeys(seed uint64) *randomKeys {
	return &randomKeys{rng: rand.New(rand.NewPCG(seed, 0))}
}

// change changes the keys that the objects name, or does not.
func (k *randomKeys) change(in mesh.Input) {
	if k.rng.IntN(3) > 0 {
		return
	}
	sets := map[mesh.KeyLocation]string{}
	for i, f := range in.Fragments {
		for _, r := range f.KeyRequests(in.PrivateKeys(i)) {
			if k.rng.IntN(4) > 0 {
				sets[r.Location] = "keys " + strconv.Itoa(k.rng.IntN(3))
			}
		}
	}
	k.current = mesh.NewKeySets(sets)
}

func (k *randomKeys) input(in mesh.Input) mesh.Input {
	in.KeySets = k.current
	return in
}

func rebuildsEqualBuilds(t *testing.T, seed uint64, coverage *meshgen.Coverage) (resorts int) {
	t.Helper()
	edge := seed%6 == 1 // with gateways among its proxies
	w := meshgen.New(seed, coverage)
	if edge {
		w = meshgen.NewEdge(seed, coverage)
	}
	rng := w.Rand()
	keys := newRandomKeys(seed)
	server := New(view.Settings{})
	var s *mesh.Snapshot
	var e, before *Indexed
	proxies := make([]*netProxy, 10)
	var kept []Configuration // nothing that was ever given is forgotten in half of the meshes
	for i := range proxies {
		if proxies[i] = newNetProxy(w); edge && i%2 == 0 {
			proxies[i].Type = view.Router
		}
	}
	for step := range 60 {
		var used []*mesh.Origin
		for _, p := range proxies {
			if p.had.View != nil {
				for part := range p.had.View.Parts() {
					used = append(used, part.Origins()...)
				}
			}
		}
		w.Prefer(used)
		var changes []meshgen.Change
		for range 1 + rng.IntN(10)/9 { // nobody looks at every snapshot
			changes = append(changes, w.Step(1+2*(rng.IntN(3)/2)+6*(rng.IntN(6)/5))...)
			keys.change(w.Input(s))
			s = mesh.Merge(keys.input(w.Input(s)))
			e = server.At(s)
			e.Prepare()
		}
		anew := mesh.Merge(keys.input(w.Input(nil)))
		fresh := New(view.Settings{})
		effect := false
		for i, p := range proxies {
			switch rng.IntN(24) {
			case 0, 1, 2: // it is busy
				continue
			case 3: // it is late
				if before != nil {
					mustGet(t, server, before, p, p.had)
				}
			case 4: // another one comes
				if p = p.sibling(w); rng.IntN(2) == 0 {
					p = newNetProxy(w)
				}
				proxies[i] = p
			}
			if rng.IntN(12) == 0 { // it is another one in some way
				proxyValues().Mutate(rng, &p.Proxy)
			}
			had := p.had
			p.had = mustGet(t, server, e, p, p.had)
			if hasLastResort(p.had.View) {
				resorts++
			}
			want := mustGet(t, fresh, fresh.At(anew), p, Configuration{})
			if d := differenceOfGiven(given(want), given(p.had)); d != "" {
				t.Fatalf("FAIRLEAD_NETS_SEED=%d, step %d, proxy %d %+v is given something else than by a server that has just started:\n%s\nafter %s",
					seed, step, i, p.Proxy, d, strings.Join(w.Log, "\n"))
			}
			if seed%2 == 0 {
				kept = append(kept, p.had)
			}
			effect = effect || had.Resources != nil && had.Resources != p.had.Resources
		}
		before = e
		coverage.Effect(changes, effect)
	}
	runtime.KeepAlive(kept)
	return resorts
}

// TestSharedEqualsAlone serves many different proxies together. It compares what each is
// given with what a server of its own would give it.
func TestSharedEqualsAlone(t *testing.T) {
	t.Parallel()
	served, different := 0, 0
	for _, seed := range meshgen.Seeds(t, 5, 60) {
		w := meshgen.New(1000+seed, meshgen.NewCoverage())
		s := mesh.Merge(w.Input(nil))
		server := New(view.Settings{})
		e := server.At(s)
		proxies := make([]*netProxy, 60)
		for i := range proxies {
			if proxies[i] = newNetProxy(w); i%3 > 0 {
				proxies[i] = proxies[w.Rand().IntN(i)].sibling(w)
			}
			proxies[i].had = mustGet(t, server, e, proxies[i], Configuration{})
		}
		distinct := map[mesh.Hash]bool{}
		for i, p := range proxies {
			alone := New(view.Settings{})
			want := mustGet(t, alone, alone.At(s), p, Configuration{})
			if d := differenceOfGiven(given(want), given(p.had)); d != "" {
				t.Fatalf("FAIRLEAD_NETS_SEED=%d, proxy %d %+v is given something else than alone:\n%s", seed, i, p.Proxy, d)
			}
			distinct[p.had.View.Hash()] = true
		}
		served, different = served+len(proxies), different+len(distinct)
	}
	if different < served/6 {
		t.Errorf("%d proxies see %d things: they have to differ to be mistaken for one another", served, different)
	}
}
