package main

import (
	"fmt"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	// codeCannotCall: a proxy has neither outbound listeners nor capture.
	codeCannotCall = codes.CannotCall
	// codeHeardLate: clients without mTLS wait for a server that speaks first.
	codeHeardLate = codes.HeardLate
	// codeIngressTLS: the tls of an ingress listener has no effect.
	codeIngressTLS = codes.IngressTLS
	// codeLeftOutDelegate: a VirtualService does not include a delegate, because that would be too much.
	codeLeftOutDelegate = codes.LeftOutDelegate
)

// maxJudgedAt is how many different workloads of one address are judged: the proxy of each has the
// services of all of them.
const maxJudgedAt = 32

// maxAlike is how many workloads that differ in nothing but name and address are judged, if all of them
// are found alike: a view costs as much as all policies that select the workload.
const maxAlike = 32

// verdict is what was found for a workload, and for all whose proxies differ in nothing but the name.
type verdict struct {
	cannot  bool
	sidecar *mesh.Sidecar
}

// fleet is what was found for workloads that differ in nothing but name and address.
type fleet struct {
	verdict

	judged int
	mixed  bool
}

func (f *fleet) add(v verdict) {
	f.mixed = f.mixed || f.judged > 0 && f.verdict != v
	f.verdict = v
	f.judged++
}

// cannotCall finds the workloads whose proxies nothing can call through: it makes the view of
// each, as a server does for an agent of this release. Workloads of one Sidecar are one finding.
func cannotCall(s *mesh.Snapshot) (findings []finding) {
	var settings view.Settings
	index := settings.NewIndex(s)
	var order []*mesh.Meta
	found := map[*mesh.Meta][]string{}
	known, judged := map[string]verdict{}, map[string]int{}
	fleets := map[string]*fleet{}
	for _, w := range s.Workloads {
		proxy := proxyOf(s, w, view.Sidecar, view.InterceptNone)
		alike := proxy
		alike.ID = ""
		key := fmt.Sprintf("%s %+v", w.Namespace, alike)
		v, is := known[key]
		alike.Addresses = nil
		class := fmt.Sprintf("%s %+v", w.Namespace, alike)
		if fleets[class] == nil {
			fleets[class] = &fleet{}
		}
		if f := fleets[class]; !is && f.judged >= maxAlike && !f.mixed {
			v, is = f.verdict, true
		}
		if place := w.Namespace + " " + w.Address; !is && judged[place] < maxJudgedAt {
			judged[place]++
			v.cannot, v.sidecar = index.Build(proxy).CannotCall(s)
			known[key] = v
			fleets[class].add(v)
		}
		cannot, sidecar := v.cannot, v.sidecar
		if !cannot {
			continue
		}
		at := &w.Meta
		if sidecar != nil {
			at = &sidecar.Meta
		}
		if found[at] == nil {
			order = append(order, at)
		}
		found[at] = append(found[at], w.Name)
	}
	for _, at := range order {
		message := view.CannotCallText
		if at.Kind == mesh.KindSidecar {
			message += " (workloads: " + someOf(found[at]) + ")"
		}
		findings = append(findings, findingOf(manifest.Fault{Origin: at.Origin, Key: at.Key, Code: codeCannotCall, Severity: manifest.Warning, Message: message}))
	}
	return findings
}

// heardLate finds ports at which clients without mTLS wait for a server that speaks first.
func heardLate(s *mesh.Snapshot) (findings []finding) {
	var settings view.Settings
	for _, h := range settings.NewIndex(s).HeardLate() {
		message := fmt.Sprintf("%s:%d: the server probably speaks first, and port %d of its workloads is PERMISSIVE: clients without mTLS hear it only after 1 s where packets are captured, and after 15 s elsewhere. "+
			"Set the port to STRICT, or to DISABLE, by portLevelMtls of a PeerAuthentication", h.Service.Hostname, h.Port.Number, h.Target)
		findings = append(findings, findingOf(manifest.Fault{Origin: h.Service.Origin, Key: h.Service.Key, Code: codeHeardLate, Severity: manifest.Warning, Message: message}))
	}
	return findings
}

// idleIngressTLS finds ingress listeners of Sidecars whose tls has no effect.
func idleIngressTLS(s *mesh.Snapshot) (findings []finding) {
	var settings view.Settings
	for _, l := range settings.NewIndex(s).IdleIngressTLS() {
		port := l.Sidecar.Spec.GetIngress()[l.Listener].GetPort().GetNumber()
		mode := "PERMISSIVE"
		if l.Mode == mesh.Strict {
			mode = "STRICT"
		}
		message := fmt.Sprintf("spec.ingress[%d].tls has no effect, as in Istio: port %d of workload %q is %s, so it has mTLS of the mesh. "+
			"Set the port to DISABLE by portLevelMtls of a PeerAuthentication, or remove tls", l.Listener, port, l.Workload.Name, mode)
		findings = append(findings, findingOf(manifest.Fault{Origin: l.Sidecar.Origin, Key: l.Sidecar.Key, Code: codeIngressTLS, Severity: manifest.Warning, Message: message}))
	}
	return findings
}

// leftOutDelegates finds delegates that VirtualServices do not include, because that would be too much.
func leftOutDelegates(s *mesh.Snapshot) (findings []finding) {
	var settings view.Settings
	for _, f := range settings.NewIndex(s).LeftOutDelegates() {
		e := f.Explain(s)
		findings = append(findings, findingOf(manifest.Fault{Origin: e.Origin, Key: e.Key, Code: codeLeftOutDelegate, Severity: manifest.Warning, Message: e.Text + ": " + e.Action}))
	}
	return findings
}

// proxyOf is the proxy of a workload.
func proxyOf(s *mesh.Snapshot, w *mesh.Workload, kind view.ProxyType, interception view.Interception) view.Proxy {
	return view.Proxy{
		Type: kind, Interception: interception, Addresses: []string{w.Address}, ServiceAccount: mesh.ServiceAccount{Namespace: w.Namespace, Name: w.ServiceAccount},
		Labels: w.Labels, Locality: view.LocalityFromLabels(w.Locality, w.Labels), Network: w.Network, Tracing: s.TracingOf(w), Headers: s.HeadersOf(w), Topology: s.TopologyOf(w),
		ID: fmt.Sprintf("%s~%s~%s.%s~%s.svc.cluster.local", kind, w.Address, w.Name, w.Namespace, w.Namespace),
	}
}
