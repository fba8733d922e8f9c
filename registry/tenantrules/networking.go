package tenantrules

// networkingRows are fields of kinds that say who is called, and where.
func networkingRows() []Row {
	return append(append(hostRows(), addressRows()...), fileRows()...)
}

func hostRows() []Row {
	return []Row{
		{
			Fields: []string{"ServiceEntry.hosts"}, Class: "host", Rule: Own,
			Why: "A host of another owner is declared for clients of the object's namespace alone.",
			Try: serviceEntry + `{hosts: [orders.shop.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: []string{"ServiceEntry.hosts"}, Class: "host of nobody", Rule: Own,
			Why: "A host that no pattern gives to the source is declared for clients of the object's namespace alone.",
			Try: serviceEntry + `{hosts: [api.partner.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: []string{"ServiceEntry.hosts"}, Class: "short name", Rule: Own,
			Why: "`NAME.NS.svc.DOMAIN` of another namespace, and its short forms, are for clients of the object's namespace alone.",
			Try: serviceEntry + `{hosts: [vault.shop.svc.cluster.local], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: []string{"VirtualService.hosts"}, Class: "host", Rule: Own,
			Why: "A host of another owner is routed for clients of the object's namespace alone.",
			Try: virtualService + `{hosts: [orders.shop.internal], ` + toApp + `}`,
		},
		{
			Fields: []string{"VirtualService.gateways", "HTTPMatchRequest.gateways", "L4MatchAttributes.gateways", "TLSMatchAttributes.gateways"}, Class: "gateway", Rule: Own,
			Why: "Gateways of other namespaces can be named; a host that an unbound source routes there is not routed by a tenant.",
			Try: virtualService + `{hosts: [orders.example.com], gateways: [edge/shared], ` + toApp + `}`,
		},
		{
			Fields: []string{"DestinationRule.host"}, Class: "host", Rule: Own,
			Why: "The rule counts for clients of its own namespace, and for its namespace's services.",
			Try: destinationRule + `{host: orders.shop.internal, trafficPolicy: {connectionPool: {tcp: {maxConnections: 1}}}}`,
		},
		{
			Fields: []string{"Destination.host"}, Class: "host", Rule: AsIstio,
			Why: "Routes of a tenant's own hosts lead anywhere; the AuthorizationPolicy of the destination decides who may call it.",
			Try: virtualService + `{hosts: [app.evil.internal], http: [{route: [{destination: {host: orders.shop.internal, port: {number: 80}}}]}]}`,
		},
		{
			Fields: []string{"Delegate.name", "Delegate.namespace"}, Class: "object", Rule: AsIstio,
			Why: "A delegate of another namespace is included for the tenant's own hosts. Where others include the tenant's, it is [judged](#routes-at-shared-gateways) as the tenant's route.",
			Try: virtualService + `{hosts: [app.evil.internal], http: [{delegate: {name: part, namespace: shop}}]}`,
		},
		{
			Fields: []string{"TLSMatchAttributes.sniHosts"}, Class: "host", Rule: Own,
			Why: "A server name that is none of the object's hosts is judged like a host.",
			Try: virtualService + `{hosts: ["*.internal"], tls: [{match: [{sniHosts: [orders.shop.internal]}], route: [{destination: {host: app.evil.internal}}]}]}`,
		},
		{
			Fields: []string{"Server.hosts", "Gateway.selector"}, Class: "host, workload", Rule: Own,
			Why: "A Gateway selects gateways of its own namespace alone.",
			Try: gateway + `{selector: {istio: shared}, servers: [{hosts: [orders.example.com], port: {number: 8082, name: http, protocol: HTTP}}]}`,
		},
		{
			Fields: []string{"IstioEgressListener.hosts"}, Class: "host", Rule: Own,
			Why: "A Sidecar is for workloads of its own namespace.",
			Try: sidecar + `{egress: [{hosts: ["shop/*"]}]}`,
		},
		{
			Fields: []string{"ServiceEntry.exportTo", "VirtualService.exportTo", "DestinationRule.exportTo"}, Class: "namespace", Rule: AsIstio,
			Why: "It says who sees the object; what it may say to them is the rule of its hosts.",
			Try: serviceEntry + `{hosts: [second.evil.internal], exportTo: [third], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: []string{"Port.number", "ServicePort.number", "L4MatchAttributes.port", "TLSMatchAttributes.port"}, Class: "port", Rule: Own,
			Why:  "Ports are shared: where connections name no service, those of sources without a namespace, of the catalog and of patterns come first.",
			Test: "xds/view TestTenantCannotTakePortOfOthers",
		},
		{
			Fields: []string{"TrafficPolicy.TunnelSettings.protocol", "TrafficPolicy.TunnelSettings.targetHost", "TrafficPolicy.TunnelSettings.targetPort"}, Class: "host, port", Rule: AsIstio,
			Why: "The tenant's own host is asked for the target; what it reaches is its own.",
			Try: destinationRule + `{host: app.evil.internal, trafficPolicy: {tunnel: {protocol: CONNECT, targetHost: orders.shop.internal, targetPort: 80}}}`,
		},
		{
			Fields: []string{"LoadBalancerSettings.ConsistentHashLB.MagLev.tableSize", "LoadBalancerSettings.ConsistentHashLB.RingHash.minimumRingSize", "LoadBalancerSettings.ConsistentHashLB.minimumRingSize"},
			Class:  "size", Rule: AsIstio,
			Why: "It is memory of each Envoy that calls the tenant's host: up to 65,537 entries.",
			Try: destinationRule + `{host: app.evil.internal, trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: 4096}}}}}`,
		},
		{
			Fields: []string{"LoadBalancerSettings.ConsistentHashLB.MagLev.tableSize", "LoadBalancerSettings.ConsistentHashLB.RingHash.minimumRingSize", "LoadBalancerSettings.ConsistentHashLB.minimumRingSize"},
			Class:  "large size", Rule: Refused,
			Why: "A table of more than 65,537 entries is refused, and of all tables of a source what is over 1,048,576.",
			Try: destinationRule + `{host: app.evil.internal, trafficPolicy: {loadBalancer: {consistentHash: {useSourceIp: true, ringHash: {minimumRingSize: 8388608}}}}}`,
		},
		{
			Fields: []string{"HTTPRewrite.authority", "HTTPRewrite.uri", "HTTPRedirect.authority", "HTTPRedirect.uri", "HTTPRedirect.scheme", "HTTPRedirect.port", "HTTPRedirect.prefixRewrite"},
			Class:  "host, URL", Rule: AsIstio,
			Why: "It is text of requests for the tenant's own hosts, or of answers to them.",
			Try: virtualService + `{hosts: [app.evil.internal], http: [{rewrite: {authority: orders.shop.internal}, route: [{destination: {host: app.evil.internal}}]}]}`,
		},
		{
			Fields: []string{"Headers.HeaderOperations.add", "Headers.HeaderOperations.set"}, Class: "expression, secret", Rule: Refused,
			Why: "Command operators that read something of the host, such as `%ENVIRONMENT(NAME)%`, are refused.",
			Try: virtualService + `{hosts: [app.evil.internal], http: [{headers: {request: {set: {x: "%ENVIRONMENT(HOME)%"}}}, route: [{destination: {host: app.evil.internal}}]}]}`,
		},
		{
			Fields: []string{"RegexRewrite.match", "RegexRewrite.rewrite", "StringMatch.regex"}, Class: "expression", Rule: AsIstio,
			Why: "Envoy runs it in linear time, for requests of the tenant's own hosts.",
			Try: virtualService + `{hosts: [app.evil.internal], http: [{match: [{uri: {regex: "/a.*"}}], route: [{destination: {host: app.evil.internal}}]}]}`,
		},
		{
			Fields: []string{"RegexRewrite.match", "StringMatch.regex"}, Class: "large expression", Rule: Refused,
			Why: "A program of more than 4,096 instructions is refused: Envoys refuse all routes of a table with a larger one.",
			Try: virtualService + `{hosts: [app.evil.internal], http: [{match: [{uri: {regex: '/\pL{30}'}}], route: [{destination: {host: app.evil.internal}}]}]}`,
		},
	}
}

func addressRows() []Row {
	return []Row{
		{
			Fields: []string{"ServiceEntry.addresses"}, Class: "address", Rule: Own,
			Why: "A service at an address of another owner is for clients of the object's namespace alone.",
			Try: serviceEntry + `{hosts: [second.evil.internal], addresses: [10.1.0.1], ports: [{number: 80, name: tcp, protocol: TCP}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: []string{"L4MatchAttributes.destinationSubnets", "TLSMatchAttributes.destinationSubnets"}, Class: "address", Rule: Own,
			Why: "A route for an address of another owner is for clients of the object's namespace alone.",
			Try: virtualService + `{hosts: [app.evil.internal], tcp: [{match: [{destinationSubnets: [10.1.0.1/32]}], route: [{destination: {host: app.evil.internal}}]}]}`,
		},
		{
			Fields: []string{"WorkloadEntry.address"}, Class: "address", Rule: AsIstio,
			Why: "An address of others as an endpoint of one's own host takes nothing from them.",
			Try: serviceEntry + `{hosts: [second.evil.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.1.0.1}]}`,
		},
		{
			Fields: []string{"WorkloadEntry.address"}, Class: "address", Rule: Setting, Flag: "--allow-local-addresses",
			Why: "Loopback, link-local and metadata addresses lead each host to itself.",
			Try: serviceEntry + `{hosts: [second.evil.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 169.254.169.254}]}`,
		},
		{
			Fields: []string{"WorkloadEntry.address"}, Class: "file", Rule: Setting, Flag: "--allow-unix-sockets",
			Why: "An Envoy would open the unix socket as its own user.",
			Try: serviceEntry + `{hosts: [second.evil.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: "unix:///run/x.sock"}]}`,
		},
		{
			Fields: []string{"WorkloadEntry.labels", "WorkloadSelector.labels", "WorkloadSelector.matchLabels"}, Class: "workload", Rule: Own,
			Why: "Services, policies and Sidecars select workloads of their own namespace.",
			Try: workloadEntry + `{address: 10.6.6.8, labels: {app: orders}}`,
		},
		{
			Fields: []string{"WorkloadEntry.serviceAccount"}, Class: "identity", Rule: Own,
			Why: "It is a service account of the object's namespace.",
			Try: workloadEntry + `{address: 10.6.6.8, labels: {app: orders}, serviceAccount: orders}`,
		},
		{
			Fields: []string{"WorkloadEntry.network"}, Class: "network", Rule: AsIstio,
			Why: "Endpoints of the tenant's own hosts are reached by the gateway of the network.",
			Try: serviceEntry + `{hosts: [second.evil.internal], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.6.6.7, network: far}]}`,
		},
		{
			Fields: []string{"WorkloadEntry.ports", "ServicePort.targetPort", "Port.targetPort"}, Class: "port", Rule: AsIstio,
			Why: "It is a port of an endpoint of the tenant's own host.",
			Try: serviceEntry + `{hosts: [second.evil.internal], ports: [{number: 80, name: http, protocol: HTTP, targetPort: 22}], resolution: STATIC, endpoints: [{address: 10.6.6.7}]}`,
		},
		{
			Fields: []string{"ServiceEntry.subjectAltNames", "ClientTLSSettings.subjectAltNames"}, Class: "identity", Rule: AsIstio,
			Why: "It says which identities clients of the tenant's own host expect.",
			Try: destinationRule + `{host: app.evil.internal, trafficPolicy: {tls: {mode: ISTIO_MUTUAL, subjectAltNames: ["spiffe://cluster.local/ns/shop/sa/orders"]}}}`,
		},
		{
			Fields: []string{"IstioEgressListener.bind", "IstioIngressListener.bind", "IstioIngressListener.defaultEndpoint", "SidecarPort.number", "SidecarPort.targetPort"}, Class: "address, port", Rule: Own,
			Why: "A Sidecar is for workloads of its own namespace.",
			Try: sidecar + `{egress: [{bind: 127.0.0.9, port: {number: 9000, name: http, protocol: HTTP}, hosts: ["*/*"]}]}`,
		},
		{
			Fields: []string{"IstioIngressListener.defaultEndpoint"}, Class: "file", Rule: Setting, Flag: "--allow-unix-sockets",
			Why: "An Envoy would open the unix socket as its own user.",
			Try: sidecar + `{ingress: [{port: {number: 9000, name: http, protocol: HTTP}, defaultEndpoint: "unix:///run/x.sock"}]}`,
		},
		{
			Fields: []string{"Server.bind"}, Class: "address", Rule: Own,
			Why: "A Gateway selects gateways of its own namespace alone.",
			Try: gateway + `{selector: {istio: shared}, servers: [{bind: 127.0.0.1, hosts: ["*"], port: {number: 8081, name: http, protocol: HTTP}}]}`,
		},
		{
			Fields: []string{"Server.defaultEndpoint"}, Class: "address", Rule: NoEffect,
			Why: "VirtualServices say where requests go.",
			Try: gateway + `{selector: {istio: shared}, servers: [{defaultEndpoint: "127.0.0.1:80", hosts: ["*"], port: {number: 8081, name: http, protocol: HTTP}}]}`,
		},
		{
			Fields: []string{"HTTPHealthCheckConfig.host", "HTTPHealthCheckConfig.path", "HTTPHealthCheckConfig.port", "HTTPHealthCheckConfig.scheme", "TCPHealthCheckConfig.host", "TCPHealthCheckConfig.port", "GrpcHealthCheckConfig.port", "GrpcHealthCheckConfig.service", "ExecHealthCheckConfig.command"},
			Class:  "address, port, command", Rule: Own,
			Why:       "A WorkloadGroup is for hosts of its own namespace.",
			Elsewhere: true, // agents get it
			Try:       workloadGroup + `{metadata: {labels: {app: orders}}, template: {serviceAccount: orders}, probe: {httpGet: {host: 10.1.0.1, port: 80}}}`,
		},
	}
}

func fileRows() []Row {
	client := func(tls string) string {
		return destinationRule + `{host: app.evil.internal, trafficPolicy: {tls: {` + tls + `}}}`
	}
	server := func(tls string) string {
		return gateway + `{selector: {istio: shared}, servers: [{hosts: ["*"], port: {number: 8443, name: https, protocol: HTTPS}, tls: {` + tls + `}}]}`
	}
	return []Row{
		{
			Fields: []string{"ClientTLSSettings.caCertificates", "ClientTLSSettings.caCrl", "ClientTLSSettings.clientCertificate", "ClientTLSSettings.privateKey"}, Class: "file, secret", Rule: Setting, Flag: "--allow-files",
			Why: "An Envoy would open the file as its own user.",
			Try: client("mode: MUTUAL, clientCertificate: /etc/x.pem, privateKey: /etc/x.key, caCertificates: /etc/ca.pem"),
		},
		{
			Fields: []string{"ServerTLSSettings.caCertificates", "ServerTLSSettings.caCrl", "ServerTLSSettings.privateKey", "ServerTLSSettings.serverCertificate", "ServerTLSSettings.TLSCertificate.caCertificates", "ServerTLSSettings.TLSCertificate.privateKey", "ServerTLSSettings.TLSCertificate.serverCertificate"},
			Class:  "file, secret", Rule: Setting, Flag: "--allow-files",
			Why: "An Envoy would open the file as its own user.",
			Try: server("mode: SIMPLE, serverCertificate: /etc/x.pem, privateKey: /etc/x.key"),
		},
		{
			Fields: []string{"ClientTLSSettings.credentialName"}, Class: "credential", Rule: Setting, Flag: "--config-credentials", Name: "shop-client",
			Why: "Gateways of other namespaces make no connection by it; those of its own use what their hosts have.",
			Try: client("mode: MUTUAL, credentialName: shop-client"),
		},
		{
			Fields: []string{"ClientTLSSettings.caCertCredentialName"}, Class: "credential", Rule: Refused,
			Why: "The field is not in force.",
			Try: client("mode: SIMPLE, caCertCredentialName: shop-client"),
		},
		{
			Fields: []string{"ServerTLSSettings.credentialName", "ServerTLSSettings.credentialNames", "ServerTLSSettings.caCertCredentialName"}, Class: "credential", Rule: Own,
			Why: "A Gateway selects gateways of its own namespace alone.",
			Try: server("mode: SIMPLE, credentialName: shop-cert"),
		},
	}
}
