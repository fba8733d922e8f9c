package tenantrules

import (
	"strings"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// keyed is a document of a tenant with annotations or labels.
func keyed(document, place, key, value string) string {
	return strings.Replace(document, "namespace: evil}", "namespace: evil, "+place+": {"+key+": "+value+"}}", 1)
}

func annotated(document, key, value string) string {
	return keyed(document, "annotations", key, value)
}

func labeled(document, key, value string) string { return keyed(document, "labels", key, value) }

func annotation(names ...string) []string { return fieldsOf(metakeys.Annotation, names) }

func label(names ...string) []string { return fieldsOf(metakeys.Label, names) }

func fieldsOf(place metakeys.Place, names []string) []string {
	out := make([]string, 0, len(names))
	for _, name := range names {
		out = append(out, metakeys.Key{Place: place, Name: name}.String())
	}
	return out
}

const (
	// second is another service of the tenant.
	second = `{hosts: [second.evil.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.6.6.7`
	// joins is a workload that services which are for the tenant's namespace alone select.
	joins = `{address: 10.6.6.8, labels: {app: orders}}`
)

func annotationRows() []Row {
	return []Row{
		{
			Fields: annotation(metakeys.ProxyConfig), Class: "file, secret, expression", Rule: Own,
			Why: "It is for proxies of workloads of the object's namespace, and has what a ProxyConfig of the mesh may have.",
			Try: annotated(workloadEntry, metakeys.ProxyConfig, `"{tracing: {customTags: {home: {environment: {name: HOME}}}}, proxyHeaders: {server: {value: evil}}}"`) + joins,
		},
		{
			Fields: annotation(metakeys.ProxyConfig), Class: "address, file", Rule: Refused,
			Why: "Fields that are not in force, such as addresses of collectors and files, keep the object out.",
			Try: annotated(workloadEntry, metakeys.ProxyConfig, `"{statsdUdpAddress: '10.1.0.1:8125', customConfigFile: /etc/x.json}"`) + joins,
		},
		{
			Fields: annotation(metakeys.DryRun), Class: "policy", Rule: Own,
			Why: "A policy is for workloads of its own namespace.",
			Try: annotated(authorization, metakeys.DryRun, `"true"`) + `{action: DENY, selector: {matchLabels: {app: orders}}, rules: [{}]}`,
		},
		{
			Fields: annotation(metakeys.AutoRegistrationGroup), Class: "object", Rule: Own,
			Why: "It is a WorkloadGroup of the object's namespace.",
			Try: annotated(workloadEntry, metakeys.AutoRegistrationGroup, "orders") + joins,
		},
		{
			Fields: annotation(metakeys.Host), Class: "host of the mesh", Rule: Own,
			Why:  "It says which agent may speak for the object's workload; who writes it decides nothing for workloads of other namespaces at that address.",
			Test: "registry/agents TestProvenAddressExcludesOthers",
		},
		{
			Fields: annotation(metakeys.GatewaySemantics), Class: "object", Rule: Own,
			Why: "Some rules of validation do not hold then. A Gateway selects gateways of its own namespace alone.",
			Try: annotated(gateway, metakeys.GatewaySemantics, "gateway") + `{selector: {istio: shared}, servers: [{hosts: ["~/*"], port: {number: 8083, name: http-none, protocol: HTTP}}, {hosts: ["*"], port: {number: 8082, name: http, protocol: HTTP}}]}`,
		},
		{
			Fields: annotation(metakeys.RouteSemantics), Class: "host, gateway", Rule: Own,
			Why: "Some rules of validation do not hold then; a host of another owner is not routed by a tenant.",
			Try: annotated(virtualService, metakeys.RouteSemantics, "gateway") + `{hosts: [orders.shop.internal, orders.example.com], gateways: [mesh, edge/shared], ` + toApp + `}`,
		},
		{
			Fields: annotation(metakeys.AlwaysReject, metakeys.ParentNamespace, metakeys.Parents), Class: "object", Rule: Refused,
			Why: "They are internal to Istio.",
			Try: annotated(virtualService, metakeys.ParentNamespace, "shop") + `{hosts: [app.evil.internal], ` + toApp + `}`,
		},
		{
			Fields: annotation(metakeys.PrometheusScrape, metakeys.PrometheusPath, metakeys.PrometheusPort, metakeys.PrometheusScheme), Class: "port, URL", Rule: Own,
			Why:       "The agent of the workload asks its own host, at localhost.",
			Elsewhere: true, // agents get it
			Try:       annotated(workloadGroup, metakeys.PrometheusPort, `"22"`) + `{metadata: {labels: {app: orders}}, template: {serviceAccount: orders}}`,
		},
	}
}

func labelRows() []Row {
	return []Row{
		{
			Fields: label(metakeys.TLSMode), Class: "identity", Rule: AsIstio,
			Why: "It says whether an endpoint of the tenant's own host takes mTLS.",
			Try: serviceEntry + second + `, labels: {security.istio.io/tlsMode: istio}}]}`,
		},
		{
			Fields: label(metakeys.IstioLocality, metakeys.TopologyRegion, metakeys.TopologyZone, metakeys.TopologySubzone, metakeys.TopologyCluster), Class: "locality", Rule: AsIstio,
			Why: "It says where an endpoint of the tenant's own host is.",
			Try: serviceEntry + second + `, labels: {istio-locality: eu.a}}]}`,
		},
		{
			Fields: label(metakeys.TopologyNetwork), Class: "network", Rule: AsIstio,
			Why: "Endpoints of the tenant's own hosts are reached by the gateway of the network.",
			Try: serviceEntry + second + `, labels: {topology.istio.io/network: far}}]}`,
		},
		{
			Fields: label(metakeys.UseWaypoint), Class: "object", Rule: Refused,
			Why: "There are no waypoints; where the label contradicts the resolution, validation refuses the object, as Istio's does.",
			Try: labeled(serviceEntry, metakeys.UseWaypoint, "shop") + `{hosts: ["*.second.evil.internal"], location: MESH_INTERNAL, ports: [{number: 80, name: http, protocol: HTTP}], resolution: DYNAMIC_DNS}`,
		},
		{
			Fields: label(metakeys.AutoallocateIP), Class: "address", Rule: AsIstio,
			Why: "The server chooses the address, which nobody has.",
			Try: labeled(serviceEntry, metakeys.AutoallocateIP, `"true"`) + `{hosts: [second.evil.internal], ports: [{number: 80, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: label(metakeys.WorkloadName, metakeys.CanonicalName, metakeys.CanonicalRevision, metakeys.KubernetesName, metakeys.KubernetesVersion, metakeys.App, metakeys.Version), Class: "workload", Rule: Own,
			Why: "Metrics and spans name the workload so, with its own namespace.",
			Try: workloadEntry + `{address: 10.6.6.8, labels: {app: orders, service.istio.io/workload-name: orders-1}}`,
		},
		{
			Fields: label(metakeys.ConsulService, metakeys.ConsulDatacenter, metakeys.ConsulNode), Class: "service", Rule: Own,
			Why: "An instance of the catalog's service is one of its own namespace.",
			Try: `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: selects, namespace: evil}
spec:
  hosts: [selects.evil.internal]
  exportTo: ["."]
  resolution: STATIC
  ports: [{number: 83, name: http, protocol: HTTP}]
  workloadSelector: {labels: {consul.fairlead.io/service: web}}
---
` + workloadEntry + `{address: 10.6.6.8, labels: {consul.fairlead.io/service: web, consul.fairlead.io/datacenter: far, consul.fairlead.io/node: n1}}`,
		},
	}
}

// registrationRows are keys of what is registered in Consul. Who registers is not bound to a namespace
// by a source, but by Consul's own rules for the names of services.
func registrationRows() []Row {
	const tried = "registry/consul/mapping TestRegistrationNamesNothingOfOthers"
	return []Row{
		{
			Fields: append(fieldsOf(metakeys.ServiceMeta, []string{metakeys.ServiceNamespace, metakeys.ServiceAccount}), fieldsOf(metakeys.ServiceTag, []string{metakeys.ServiceNamespace, metakeys.ServiceAccount})...),
			Class:  "identity", Rule: Refused, Test: tried,
			Why: "An instance that names another identity than its service has is left out, unless a rule trusts it (`--consul-service NAME:trust-metadata=true`).",
		},
		{
			Fields: append(fieldsOf(metakeys.ServiceMeta, []string{metakeys.ServiceTLS, metakeys.ServiceProtocol}), fieldsOf(metakeys.ServiceTag, []string{metakeys.ServiceTLS, metakeys.TLSMode})...),
			Class:  "protocol, mTLS", Rule: Own, Test: tried,
			Why: "It is for the registered service alone.",
		},
		{
			Fields: fieldsOf(metakeys.NodeMeta, []string{metakeys.NodeExternal, metakeys.NodeRegion, metakeys.NodeZone, metakeys.NodeSubZone, metakeys.NodeSubzone}),
			Class:  "locality", Rule: Own, Test: tried,
			Why: "It is for the instances of the node.",
		},
		{
			Fields: fieldsOf(metakeys.Address, []string{metakeys.AddressVirtual, metakeys.AddressConsulVirtual}),
			Class:  "address", Rule: Setting, Test: tried,
			Why: "Only what Consul itself gives out counts, unless a rule trusts the registration (`trust-metadata=true`).",
		},
		{
			Fields: fieldsOf(metakeys.Address, []string{metakeys.AddressLAN, metakeys.AddressLANIPv4, metakeys.AddressLANIPv6, metakeys.AddressWAN, metakeys.AddressWANIPv4, metakeys.AddressWANIPv6}),
			Class:  "address", Rule: AsIstio, Test: tried,
			Why: "An address of others as an instance of one's own service takes nothing from them; loopback, link-local and metadata addresses are left out.",
		},
	}
}
