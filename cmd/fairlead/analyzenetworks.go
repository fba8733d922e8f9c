package main

import (
	"fmt"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	// codeNoGateway: a network has no gateway.
	codeNoGateway = codes.NoNetworkGateway
	// codePlaintextAcross: a workload takes no mTLS, and other networks reach it by mTLS only.
	codePlaintextAcross = codes.PlaintextAcross
)

// unreached finds workloads that other networks do not reach through a gateway.
func unreached(s *mesh.Snapshot) (findings []finding) {
	var settings view.Settings
	index := settings.NewIndex(s)
	add := func(at *mesh.Meta, code manifest.Code, format string, args ...any) {
		findings = append(findings, findingOf(manifest.Fault{Origin: at.Origin, Key: at.Key, Code: code, Severity: manifest.Warning, Message: fmt.Sprintf(format, args...)}))
	}
	for _, name := range index.NetworksWithoutGateways() {
		add(&s.MeshNetworks.Meta, codeNoGateway, "network %q has no gateway: no service named by registryServiceName has a workload at its port; "+
			"correct the name or the port of the service, or write address", name)
	}
	for _, u := range index.Unreached() {
		if u.Service == nil {
			add(u.Owner, codeNoGateway, "workload %s is in network %q, which has no gateway in the file of networks: proxies of other networks connect to its address, as in Istio. "+
				"Give the network a gateway, or take the workload out of it", u.Address, u.Network)
			continue
		}
		add(u.Owner, codePlaintextAcross, "workload %s of %s takes no mTLS, and proxies outside its network %q reach it by mTLS only: they leave it out. "+
			"Give it a serviceAccount and an agent, or remove the PeerAuthentication that disables mTLS", u.Address, u.Service.Hostname, u.Network)
	}
	return findings
}
