package mesh

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

// ErrNoProviderService says that the service of an extension provider is in no source.
var ErrNoProviderService = errors.New("there is no service")

// ProviderService returns the service and port that an extension provider of MeshConfig names.
// text is HOST or NAMESPACE/HOST.
//
// Whoever writes for a bound namespace may declare any host there. Without a namespace such a
// service does not count: it could take the place of the one that is meant, or make the name
// ambiguous, and so decide for the whole mesh, or get its access logs.
func (s *Snapshot) ProviderService(text string, number uint32) (*Service, Port, error) {
	namespace, host, named := strings.Cut(text, "/")
	if !named {
		namespace, host = "", text
	}
	host = strings.ToLower(host)
	var services []*Service
	var hidden *Service
	for _, svc := range s.ServicesOn(Hostname(host)) {
		switch {
		case named && svc.Namespace != namespace:
		case !named && s.tables.restrictions.owners.bound(svc.Namespace):
			hidden = svc
		default:
			services = append(services, svc)
		}
	}
	declared := slices.ContainsFunc(services, func(svc *Service) bool { return !svc.Catalog })
	var found *Service
	var port Port
	for _, svc := range services {
		if declared && svc.Catalog {
			continue
		}
		if found != nil && found.Namespace != svc.Namespace {
			return nil, Port{}, fmt.Errorf("service: there is %s in the namespaces %s and %s; write NAMESPACE/%s", host, found.Namespace, svc.Namespace, host)
		}
		p, ok := svc.Port(number)
		if found == nil || ok && port.Number == 0 {
			found = svc
			if ok {
				port = p
			}
		}
	}
	switch {
	case found == nil && hidden != nil:
		return nil, Port{}, fmt.Errorf("service: %s is only in a namespace that sources are bound to; if you mean this service, write %s/%s", host, hidden.Namespace, host)
	case found == nil:
		return nil, Port{}, fmt.Errorf("service: %w %q", ErrNoProviderService, text)
	case port.Number == 0 || port.Protocol == UDP:
		return nil, Port{}, fmt.Errorf("port: the service %s has no port %d for TCP", host, number)
	case found.Resolution == ResolutionNone || found.Resolution == ResolutionDynamicDNS:
		return nil, Port{}, fmt.Errorf("service: %s has no addresses of its own (resolution NONE or DYNAMIC_DNS)", host)
	default:
		return found, port, nil
	}
}

// ProviderHosts are the hosts of the extension providers for which servicesOf returns services;
// empty ones do not count. What is said of these hosts may concern every workload that uses such a
// provider.
func ProviderHosts(c *meshconfig.MeshConfig, servicesOf func(*meshconfig.MeshConfig_ExtensionProvider) []string) map[Hostname]bool {
	out := map[Hostname]bool{}
	for _, p := range c.GetExtensionProviders() {
		for _, text := range servicesOf(p) {
			if text != "" {
				out[Hostname(strings.ToLower(text[strings.Index(text, "/")+1:]))] = true
			}
		}
	}
	return out
}

// AuthorizerServices is the service of an extension provider that policies can ask.
func AuthorizerServices(p *meshconfig.MeshConfig_ExtensionProvider) []string {
	return []string{p.GetEnvoyExtAuthzHttp().GetService(), p.GetEnvoyExtAuthzGrpc().GetService()}
}
