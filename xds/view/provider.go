package view

import (
	"slices"

	security "istio.io/api/security/v1beta1"

	"github.com/fairlead/fairlead/registry/mesh"
)

// Provider is an extension provider (MeshConfig's extensionProviders) that AuthorizationPolicies
// with action CUSTOM ask by ext_authz.
type Provider struct {
	Name string
	// Fault says why the provider cannot be asked: what the rules of its policies match is
	// denied. It is empty for one that can be asked.
	Fault string
	// One of HTTP and GRPC is set, unless there is a Fault.
	HTTP *mesh.HTTPAuthorizer
	GRPC *mesh.GRPCAuthorizer
	// Host is that of the provider's service, and Cluster the cluster for it.
	Host    mesh.Hostname
	Cluster ClusterRef

	origins []*mesh.Origin
}

// providerSubset begins, in place of a subset's name, the names of clusters by which extension
// providers are asked. No subset has a name with an underscore.
const providerSubset = "ext_authz."

// providersOf returns the extension providers that policies ask, by name, with a cluster of its
// own for each. It is not a cluster of the sidecar scope: a Sidecar may leave the service out, and
// a namespace may have another service of that host, which must not decide in its place.
func (pc *proxyContext) providersOf(policies []AuthorizationPolicy) (providers []Provider, parts []Part) {
	var names []string
	for _, p := range policies {
		if p.Action == security.AuthorizationPolicy_CUSTOM {
			names = append(names, p.Provider)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		a, err := pc.s.Authorizer(name)
		if err != nil {
			providers = append(providers, Provider{Name: name, Fault: err.Error()})
			continue
		}
		p := Provider{
			Name: name, HTTP: a.HTTP, GRPC: a.GRPC, Host: a.Service.Hostname, origins: []*mesh.Origin{a.Service.Origin},
			Cluster: Outbound(a.Service.Hostname, a.Port.Number, providerSubset+name),
		}
		port := a.Port
		if a.GRPC != nil {
			port.Protocol = mesh.GRPC // whatever the service says of the port, it is asked by gRPC
		}
		made := pc.providerParts(a.Service, port, p.Cluster, Reports{})
		if len(made.clusters) == 0 {
			p = Provider{Name: name, Fault: "service: " + string(p.Host) + " has no endpoint with an address"}
		}
		providers, parts = append(providers, p), slices.Concat(parts, made.clusters, made.endpoints)
	}
	return providers, parts
}

// providerParts are the cluster and the endpoints of an extension provider. reports is zero for one
// that is asked about requests.
func (pc *proxyContext) providerParts(svc *mesh.Service, port mesh.Port, ref ClusterRef, reports Reports) *serviceParts {
	in := pc.inputOf(svc, pc.rules.lookup(pc.namespace(), pc.proxy.Labels, svc.Hostname, svc.Namespace))
	out := &serviceParts{}
	pc.appendCluster(out, clusterInput{serviceInput: &in, port: port, members: in.membersAt(port), ref: ref, reports: reports})
	return out
}

// customInputs are what the slots of CUSTOM policies have: for each extension provider the rules
// that say which requests it is asked about, and behind them how it is asked. The first ones
// change on their own when rules do, the others when providers do, and in between no request
// passes that both would have refused:
//
//   - A single provider's slots are there from the start, whoever it is. It is asked about all
//     requests that its rules match, also in the moment in which the rules are another's.
//   - Several have slots with their names, which no other provider ever has. Listeners that still
//     drain keep the slots that they have, with what was in them.
func (a *Authorization) customInputs() []extensionInput {
	if a == nil || len(a.Providers) == 0 {
		return []extensionInput{{Slot: CustomSlot}, {Slot: ExtAuthzSlot}}
	}
	out := make([]extensionInput, 0, 2*len(a.Providers))
	for i := range a.Providers {
		p := &a.Providers[i]
		rules := extensionInput{Slot: CustomSlot, Authorization: a.where(func(policy *AuthorizationPolicy) bool {
			return slotOf(policy.Action) == CustomSlot && policy.Provider == p.Name
		})}
		asks := extensionInput{Slot: ExtAuthzSlot, Provider: p}
		if p.Fault != "" {
			asks.Authorization = rules.Authorization
		}
		if len(a.Providers) > 1 {
			rules.Slot, asks.Slot = rules.Slot.For(p.Name), asks.Slot.For(p.Name)
		}
		out = append(out, rules, asks)
	}
	return out
}
