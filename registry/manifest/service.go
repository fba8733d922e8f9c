package manifest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// localityLabel is where a workload's locality is read from if its field is
// empty; the label's "." stand for "/".
const localityLabel = metakeys.IstioLocality

// services are the services of a ServiceEntry, one a host. They share ports,
// addresses and endpoints.
func (o *Object) services(spec *networking.ServiceEntry) []*mesh.Service {
	inline := make([]*mesh.Workload, 0, len(spec.GetEndpoints()))
	for i, e := range spec.GetEndpoints() {
		meta := mesh.Meta{
			Key:    mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: o.Meta.Namespace},
			Labels: e.GetLabels(),
			Origin: o.Origin(fmt.Sprintf("spec.endpoints[%d]", i)),
		}
		meta.Hash = hashOf(&meta, e)
		inline = append(inline, workload(meta, e))
	}
	var selector map[string]string
	if spec.GetWorkloadSelector() != nil {
		// Set, if only to nothing: then it selects every workload.
		selector = map[string]string{}
		maps.Copy(selector, spec.GetWorkloadSelector().GetLabels())
	}
	names := slices.Clone(spec.GetSubjectAltNames())
	slices.Sort(names)
	out := make([]*mesh.Service, 0, len(spec.GetHosts()))
	seen := map[mesh.Hostname]bool{}
	for _, h := range spec.GetHosts() {
		host := mesh.Hostname(strings.ToLower(h))
		if seen[host] {
			continue
		}
		seen[host] = true
		s := &mesh.Service{
			Meta:            o.Meta,
			Hostname:        host,
			Addresses:       addresses(spec.GetAddresses()),
			Ports:           ports(spec.GetPorts()),
			Resolution:      resolution(spec.GetResolution()),
			External:        spec.GetLocation() == networking.ServiceEntry_MESH_EXTERNAL,
			ExportTo:        o.exports(spec.GetExportTo()),
			SubjectAltNames: slices.Compact(names),
			Selector:        selector,
			Inline:          inline,
		}
		if selector == nil && len(inline) == 0 && isDNS(s.Resolution) {
			// Without endpoints, a DNS service is where its own name points.
			s.Inline = []*mesh.Workload{o.hostEndpoint(host)}
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *mesh.Service) int { return strings.Compare(string(a.Hostname), string(b.Hostname)) })
	return out
}

func isDNS(r mesh.Resolution) bool {
	return r == mesh.ResolutionDNS || r == mesh.ResolutionDNSRoundRobin
}

func (o *Object) hostEndpoint(host mesh.Hostname) *mesh.Workload {
	meta := mesh.Meta{
		Key:    mesh.Key{Kind: mesh.KindWorkloadEntry, Namespace: o.Meta.Namespace},
		Origin: o.Origin("spec.hosts"),
	}
	meta.Hash = hashOf(&meta, &networking.WorkloadEntry{Address: string(host)})
	return &mesh.Workload{Meta: meta, Address: string(host)}
}

// workloadEntry is a WorkloadEntry. Labels of the metadata win over those of the
// spec, as in Istio.
func (o *Object) workloadEntry(spec *networking.WorkloadEntry) *mesh.Workload {
	meta := o.Meta
	switch {
	case len(spec.GetLabels()) == 0:
	case len(o.Meta.Labels) == 0:
		meta.Labels = spec.GetLabels() // which nobody else has
	default:
		meta.Labels = maps.Clone(spec.GetLabels())
		maps.Copy(meta.Labels, o.Meta.Labels)
	}
	w := workload(meta, spec)
	w.ProxyConfig = o.proxyConfig
	return w
}

func workload(meta mesh.Meta, spec *networking.WorkloadEntry) *mesh.Workload {
	w := &mesh.Workload{
		Meta:           meta,
		Address:        spec.GetAddress(),
		Ports:          spec.GetPorts(),
		ServiceAccount: spec.GetServiceAccount(),
		Network:        spec.GetNetwork(),
		Weight:         spec.GetWeight(),
	}
	if addr, err := netip.ParseAddr(w.Address); err == nil {
		w.Address = addr.String()
	}
	locality := spec.GetLocality()
	if label := w.Labels[localityLabel]; locality == "" && label != "" {
		locality = label
		if !strings.Contains(label, "/") {
			locality = strings.ReplaceAll(label, ".", "/")
		}
	}
	w.Locality = mesh.ParseLocality(locality)
	return w
}

// addresses are normalised and sorted; a block of one address is that address.
func addresses(list []string) []string {
	var out []string
	for _, a := range list {
		if addr, err := netip.ParseAddr(a); err == nil {
			out = append(out, addr.String())
			continue
		}
		if block, err := netip.ParsePrefix(a); err == nil {
			if block.IsSingleIP() {
				out = append(out, block.Addr().String())
			} else {
				out = append(out, block.Masked().String())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func ports(list []*networking.ServicePort) []mesh.Port {
	out := make([]mesh.Port, 0, len(list))
	for _, p := range list {
		out = append(out, mesh.Port{
			Name: p.GetName(), Number: p.GetNumber(), Protocol: protocol(p.GetProtocol()), TargetPort: p.GetTargetPort(),
		})
	}
	return out
}

// protocol reads a port's protocol, in any case; what Istio does not know is
// undeclared.
func protocol(name string) mesh.Protocol {
	switch p := mesh.Protocol(strings.ToUpper(name)); p {
	case mesh.HTTP, mesh.HTTPProxy, mesh.HTTP2, mesh.GRPC, mesh.GRPCWeb, mesh.HTTPS, mesh.TLS,
		mesh.TCP, mesh.UDP, mesh.Mongo, mesh.Redis, mesh.MySQL:
		return p
	case mesh.Undeclared:
		return mesh.Undeclared
	default:
		return mesh.Undeclared
	}
}

func resolution(r networking.ServiceEntry_Resolution) mesh.Resolution {
	switch r {
	case networking.ServiceEntry_NONE:
		return mesh.ResolutionNone
	case networking.ServiceEntry_STATIC:
		return mesh.ResolutionStatic
	case networking.ServiceEntry_DNS:
		return mesh.ResolutionDNS
	case networking.ServiceEntry_DNS_ROUND_ROBIN:
		return mesh.ResolutionDNSRoundRobin
	case networking.ServiceEntry_DYNAMIC_DNS:
		return mesh.ResolutionDynamicDNS
	default:
		return mesh.ResolutionNone
	}
}
