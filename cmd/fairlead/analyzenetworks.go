package main

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/registry/codes"
	"github.com/fairlead/fairlead/registry/gatewaynames"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

const (
	// codeNoGateway: a network has no gateway.
	codeNoGateway = codes.NoNetworkGateway
	// codePlaintextAcross: a workload takes no mTLS, and other networks reach it by mTLS only.
	codePlaintextAcross = codes.PlaintextAcross
	// codeUnknownRegistry: fromRegistry of a network is the source of nothing.
	codeUnknownRegistry = codes.UnknownRegistry
)

// unreached finds workloads that other networks do not reach through a gateway, and networks that take in
// nothing. catalog may be nil.
func unreached(s *mesh.Snapshot, catalog *catalogReading) (findings []finding) {
	var settings view.Settings
	index := settings.NewIndex(s)
	add := func(at *mesh.Meta, code manifest.Code, format string, args ...any) {
		findings = append(findings, findingOf(manifest.Fault{Origin: at.Origin, Key: at.Key, Code: code, Severity: manifest.Warning, Message: fmt.Sprintf(format, args...)}))
	}
	for _, n := range view.NetworksWithoutGateways(s) {
		add(&s.MeshNetworks.Meta, codeNoGateway, "network %q has no gateway, so that proxies of other networks connect to the addresses of its workloads, as in Istio. %s; "+
			"correct the gateways, or write address", n.Network, strings.Join(n.Why, "; "))
	}
	datacenters, do := []string(nil), "correct the name, or give --consul-address if Consul has such a datacenter"
	if catalog != nil {
		datacenters, do = catalog.datacenters, "correct the name"
	}
	for _, r := range view.UnknownRegistries(s, datacenters) {
		add(&s.MeshNetworks.Meta, codeUnknownRegistry, "fromRegistry %q takes in nothing: no workload is of a Consul datacenter of this name, and everything in files is %s; %s", r, mesh.ClusterID, do)
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

// maxGatewayLookups bounds how long names of gateways are looked up, all together.
const maxGatewayLookups = 15 * time.Second

// lookUpGateways looks up the names of gateways as a server on this machine would. It says which ones are
// left out.
func (t *tree) lookUpGateways(cmd *cobra.Command) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), maxGatewayLookups)
	defer cancel()
	names := map[string][]netip.Addr{}
	for _, name := range t.networks.GatewayNames() {
		addresses, err := gatewaynames.Once(ctx, gatewaynames.System, name)
		if err == nil {
			names[name] = addresses
			continue
		}
		if _, err := fmt.Fprintf(cmd.ErrOrStderr(), "the gateway %s is left out: %v\n", name, err); err != nil {
			return err
		}
	}
	t.gateways = mesh.NewGatewayAddresses(names)
	return nil
}
