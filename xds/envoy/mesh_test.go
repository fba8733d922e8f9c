package envoy_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"gopkg.in/yaml.v3"
	meshconfig "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// document is a manifest as far as these tests need it. Reading manifests as
// users write them is registry/manifest's; here they are well-formed.
type document struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
		Created         time.Time `yaml:"creationTimestamp"`
	} `yaml:"metadata"`
	Spec any `yaml:"spec"`
}

// snapshotOf makes a snapshot of manifests and of MeshConfig's fields that
// differ from the defaults.
func snapshotOf(tb testing.TB, manifests, settings string) *mesh.Snapshot {
	tb.Helper()
	f := &mesh.Fragment{Source: "test"}
	dec := yaml.NewDecoder(strings.NewReader(manifests))
	for line := 1; ; line++ {
		var d document
		err := dec.Decode(&d)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			tb.Fatalf("reading manifests: %v", err)
		}
		if d.Kind != "" {
			addDocument(tb, f, d, line)
		}
	}
	slices.SortStableFunc(f.Workloads, func(a, b *mesh.Workload) int { return a.Compare(b.Key) })
	mc := &meshconfig.MeshConfig{
		TrustDomain:    "cluster.local",
		RootNamespace:  "istio-system",
		EnableAutoMtls: wrapperspb.Bool(true),
		ConnectTimeout: durationpb.New(10 * time.Second),
		DnsRefreshRate: durationpb.New(60 * time.Second),
		OutboundTrafficPolicy: &meshconfig.MeshConfig_OutboundTrafficPolicy{
			Mode: meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY,
		},
	}
	if settings != "" {
		over := &meshconfig.MeshConfig{}
		var node any
		if err := yaml.Unmarshal([]byte(settings), &node); err != nil {
			tb.Fatalf("reading settings: %v", err)
		}
		decode(tb, node, over)
		proto.Merge(mc, over)
		if over.GetOutboundTrafficPolicy() != nil {
			mc.OutboundTrafficPolicy = over.GetOutboundTrafficPolicy()
		}
	}
	return mesh.NewSnapshot(nil, &mesh.MeshConfig{Spec: mc}, []*mesh.Fragment{f})
}

func decode(tb testing.TB, from any, to proto.Message) {
	tb.Helper()
	body, err := json.Marshal(from)
	if err != nil {
		tb.Fatalf("marshaling spec: %v", err)
	}
	if err := protojson.Unmarshal(body, to); err != nil {
		tb.Fatalf("decoding %T: %v\n%s", to, err, body)
	}
}

func addDocument(tb testing.TB, f *mesh.Fragment, d document, line int) {
	tb.Helper()
	body, err := json.Marshal(d)
	if err != nil {
		tb.Fatalf("marshaling document: %v", err)
	}
	if d.Metadata.Namespace == "" {
		d.Metadata.Namespace = "default"
	}
	meta := mesh.Meta{
		Key:     mesh.Key{Kind: mesh.Kind(d.Kind), Namespace: d.Metadata.Namespace, Name: d.Metadata.Name},
		Labels:  d.Metadata.Labels,
		Created: d.Metadata.Created,
		Hash:    sha256.Sum256(body),
		Origin:  &mesh.Origin{Source: "test", Path: "mesh.yaml", Line: line, Column: 1},
	}
	switch meta.Kind {
	case mesh.KindServiceEntry:
		spec := &networking.ServiceEntry{}
		decode(tb, d.Spec, spec)
		f.Services = append(f.Services, servicesOf(meta, spec)...)
	case mesh.KindWorkloadEntry:
		spec := &networking.WorkloadEntry{}
		decode(tb, d.Spec, spec)
		w := workloadOf(meta, spec)
		f.Workloads = append(f.Workloads, w)
	case mesh.KindVirtualService:
		spec := &networking.VirtualService{}
		decode(tb, d.Spec, spec)
		resolveRoutes(spec, meta.Namespace)
		f.VirtualServices = append(f.VirtualServices, &mesh.VirtualService{Meta: meta, Spec: spec, ExportTo: exports(spec.GetExportTo(), meta.Namespace)})
	case mesh.KindDestinationRule:
		spec := &networking.DestinationRule{}
		decode(tb, d.Spec, spec)
		spec.Host = resolve(spec.GetHost(), meta.Namespace)
		f.DestinationRules = append(f.DestinationRules, &mesh.DestinationRule{Meta: meta, Spec: spec, ExportTo: exports(spec.GetExportTo(), meta.Namespace)})
	case mesh.KindSidecar:
		spec := &networking.Sidecar{}
		decode(tb, d.Spec, spec)
		f.Sidecars = append(f.Sidecars, &mesh.Sidecar{Meta: meta, Spec: spec})
	case mesh.KindPeerAuthentication:
		spec := &security.PeerAuthentication{}
		decode(tb, d.Spec, spec)
		f.PeerAuthentications = append(f.PeerAuthentications, &mesh.PeerAuthentication{Meta: meta, Spec: spec})
	case mesh.KindAuthorizationPolicy:
		spec := &security.AuthorizationPolicy{}
		decode(tb, d.Spec, spec)
		f.Unenforced = append(f.Unenforced, &mesh.Unenforced{Meta: meta, Selector: spec.GetSelector().GetMatchLabels()})
	default:
		tb.Fatalf("unknown kind %q", d.Kind)
	}
}

func exports(list []string, ns string) mesh.Exports {
	out := mesh.Exports{}
	for _, e := range list {
		if e == "." {
			e = ns
		}
		out = append(out, e)
	}
	slices.Sort(out)
	if len(out) == 0 {
		return nil
	}
	return out
}

func resolve(host, ns string) string {
	if strings.Contains(host, ".") || strings.HasPrefix(host, "*") {
		return host
	}
	return host + "." + ns + ".svc.cluster.local"
}

func resolveRoutes(vs *networking.VirtualService, ns string) {
	for i, h := range vs.GetHosts() {
		vs.Hosts[i] = resolve(h, ns)
	}
	fix := func(d *networking.Destination) {
		if d != nil {
			d.Host = resolve(d.GetHost(), ns)
		}
	}
	for _, r := range vs.GetHttp() {
		for _, d := range r.GetRoute() {
			fix(d.GetDestination())
		}
		fix(r.GetMirror())
		for _, m := range r.GetMirrors() {
			fix(m.GetDestination())
		}
	}
	for _, r := range vs.GetTcp() {
		for _, d := range r.GetRoute() {
			fix(d.GetDestination())
		}
	}
	for _, r := range vs.GetTls() {
		for _, d := range r.GetRoute() {
			fix(d.GetDestination())
		}
	}
}

func servicesOf(meta mesh.Meta, spec *networking.ServiceEntry) []*mesh.Service {
	var out []*mesh.Service
	for _, h := range spec.GetHosts() {
		s := &mesh.Service{
			Meta:            meta,
			Hostname:        mesh.Hostname(strings.ToLower(h)),
			Resolution:      resolutionOf(spec.GetResolution()),
			External:        spec.GetLocation() == networking.ServiceEntry_MESH_EXTERNAL,
			ExportTo:        exports(spec.GetExportTo(), meta.Namespace),
			SubjectAltNames: spec.GetSubjectAltNames(),
		}
		for _, a := range spec.GetAddresses() {
			if _, err := netip.ParsePrefix(a); err == nil {
				a = strings.TrimSuffix(a, "/32")
			}
			s.Addresses = append(s.Addresses, a)
		}
		for _, p := range spec.GetPorts() {
			s.Ports = append(s.Ports, mesh.Port{
				Name: p.GetName(), Number: p.GetNumber(), Protocol: mesh.Protocol(strings.ToUpper(p.GetProtocol())),
				TargetPort: p.GetTargetPort(),
			})
		}
		if sel := spec.GetWorkloadSelector(); sel != nil {
			s.Selector = sel.GetLabels()
		}
		for _, e := range spec.GetEndpoints() {
			inline := meta
			inline.Kind, inline.Name, inline.Labels = mesh.KindWorkloadEntry, "", nil
			s.Inline = append(s.Inline, workloadOf(inline, e))
		}
		out = append(out, s)
	}
	return out
}

func resolutionOf(r networking.ServiceEntry_Resolution) mesh.Resolution {
	switch r {
	case networking.ServiceEntry_STATIC:
		return mesh.ResolutionStatic
	case networking.ServiceEntry_DNS:
		return mesh.ResolutionDNS
	case networking.ServiceEntry_DNS_ROUND_ROBIN:
		return mesh.ResolutionDNSRoundRobin
	default:
		return mesh.ResolutionNone
	}
}

func workloadOf(meta mesh.Meta, spec *networking.WorkloadEntry) *mesh.Workload {
	meta.Labels = spec.GetLabels()
	w := &mesh.Workload{
		Meta: meta, Address: spec.GetAddress(), Ports: spec.GetPorts(), ServiceAccount: spec.GetServiceAccount(),
		Network: spec.GetNetwork(), Locality: mesh.ParseLocality(spec.GetLocality()), Weight: spec.GetWeight(),
	}
	if v := meta.Labels["test/health"]; v == "unhealthy" { // tests have no prober
		w.Health = mesh.Unhealthy
	}
	return w
}

// yamlOf writes messages as YAML, which people read and git compares.
func yamlOf(tb testing.TB, list []proto.Message) []byte {
	tb.Helper()
	var all []any
	for _, m := range list {
		body, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
		if err != nil {
			tb.Fatalf("marshaling %T: %v", m, err)
		}
		var node any
		if err := json.Unmarshal(body, &node); err != nil {
			tb.Fatalf("reading own JSON: %v", err)
		}
		all = append(all, node)
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(all); err != nil {
		tb.Fatalf("writing YAML: %v", err)
	}
	return out.Bytes()
}

func fatalIf(tb testing.TB, err error, doing string, args ...any) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s: %v", fmt.Sprintf(doing, args...), err)
	}
}
