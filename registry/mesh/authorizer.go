package mesh

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

type (
	// HTTPAuthorizer has the settings of MeshConfig's extension provider envoyExtAuthzHttp.
	HTTPAuthorizer = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationHttpProvider
	// GRPCAuthorizer has those of envoyExtAuthzGrpc.
	GRPCAuthorizer = meshconfig.MeshConfig_ExtensionProvider_EnvoyExternalAuthorizationGrpcProvider
)

// Authorizer is an extension provider that AuthorizationPolicies with the action CUSTOM can
// ask, and the port of a service where it is asked.
type Authorizer struct {
	Name string
	// One of HTTP and GRPC is set.
	HTTP    *HTTPAuthorizer
	GRPC    *GRPCAuthorizer
	Service *Service
	Port    Port
}

// Errors of extension providers.
var (
	// ErrNoAuthorizer: there is none of this name.
	ErrNoAuthorizer = errors.New("MeshConfig's extensionProviders have no envoyExtAuthzHttp and no envoyExtAuthzGrpc of this name")
	// ErrNoAuthorizerService: its service is in no source.
	ErrNoAuthorizerService = errors.New("there is no service")

	errAuthorizerTwice = errors.New("MeshConfig's extensionProviders have the name twice")
	errNoBodyLimit     = errors.New("includeRequestBodyInCheck: maxRequestBytes is 0; write how many bytes of the body are sent")
)

// Authorizer returns the extension provider of a name. An error says why it cannot be asked:
// there is none, its settings are not valid, or there is no such service. It checks what Istio
// checks (pilot/pkg/security/authz/builder/extauthz.go), and what makes Envoy refuse the
// configuration. As in Istio, a service is found whatever its exportTo says; but see locate.
func (s *Snapshot) Authorizer(name string) (*Authorizer, error) {
	if err := checkAuthorizerName(name); err != nil {
		return nil, err
	}
	var out *Authorizer
	for _, p := range s.MeshConfig.Spec.GetExtensionProviders() {
		a := &Authorizer{Name: name, HTTP: p.GetEnvoyExtAuthzHttp(), GRPC: p.GetEnvoyExtAuthzGrpc()}
		if p.GetName() != name || a.HTTP == nil && a.GRPC == nil {
			continue
		}
		if out != nil {
			return nil, errAuthorizerTwice
		}
		out = a
	}
	if out == nil {
		return nil, ErrNoAuthorizer
	}
	if err := out.check(); err != nil {
		return nil, err
	}
	return out, s.locate(out)
}

const maxAuthorizerName = 63

// checkAuthorizerName checks a name as Istio does. It is a part of the names of rules, and ends
// there where it cannot have a character: see the prefix that tells the rules of providers apart.
func checkAuthorizerName(name string) error {
	switch {
	case name == "":
		return errors.New("the policy names no provider")
	case len(name) > maxAuthorizerName:
		return fmt.Errorf("the name has more than %d characters", maxAuthorizerName)
	case strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }):
		return errors.New("the name has other characters than lower case letters, digits and hyphens")
	case strings.HasPrefix(name, "-") || strings.HasSuffix(name, "-"):
		return errors.New("the name begins or ends with a hyphen")
	default:
		return nil
	}
}

// check checks the settings.
func (a *Authorizer) check() error {
	body := a.HTTP.GetIncludeRequestBodyInCheck()
	if a.GRPC != nil {
		body = a.GRPC.GetIncludeRequestBodyInCheck()
	}
	if body != nil && body.GetMaxRequestBytes() == 0 {
		return errNoBodyLimit
	}
	if a.HTTP == nil {
		return nil
	}
	if prefix := a.HTTP.GetPathPrefix(); prefix != "" {
		if _, err := url.Parse(prefix); err != nil || !strings.HasPrefix(prefix, "/") {
			return fmt.Errorf("pathPrefix: %q is not a path that begins with a slash", prefix)
		}
	}
	for _, f := range []struct {
		name string
		list []string
	}{
		{"includeRequestHeadersInCheck", a.HTTP.GetIncludeRequestHeadersInCheck()},
		{"includeHeadersInCheck", a.HTTP.GetIncludeHeadersInCheck()}, //nolint:staticcheck // people's files have it
		{"headersToUpstreamOnAllow", a.HTTP.GetHeadersToUpstreamOnAllow()},
		{"headersToDownstreamOnDeny", a.HTTP.GetHeadersToDownstreamOnDeny()},
		{"headersToDownstreamOnAllow", a.HTTP.GetHeadersToDownstreamOnAllow()},
	} {
		if slices.Contains(f.list, "*") || slices.Contains(f.list, "") {
			return fmt.Errorf("%s: an entry is empty or only a star; write a name, or a star before or after a part of one", f.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.HTTP.GetIncludeAdditionalHeadersInCheck())) {
		if strings.HasPrefix(name, ":") || strings.EqualFold(name, "host") {
			return fmt.Errorf("includeAdditionalHeadersInCheck: the header %q cannot be replaced", name)
		}
	}
	return nil
}

// locate finds the service and its port. The service is written as HOST or NAMESPACE/HOST.
//
// Whoever writes for a bound namespace may declare any host there. Without a namespace such a
// service does not count: it could take the place of the one that is meant, or make the name
// ambiguous, and so decide for the whole mesh.
func (s *Snapshot) locate(a *Authorizer) error {
	text, number := a.HTTP.GetService(), a.HTTP.GetPort()
	if a.GRPC != nil {
		text, number = a.GRPC.GetService(), a.GRPC.GetPort()
	}
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
	for _, svc := range services {
		if declared && svc.Catalog {
			continue
		}
		if a.Service != nil && a.Service.Namespace != svc.Namespace {
			return fmt.Errorf("service: there is %s in the namespaces %s and %s; write NAMESPACE/%s", host, a.Service.Namespace, svc.Namespace, host)
		}
		port, ok := svc.Port(number)
		if a.Service == nil || ok && a.Port.Number == 0 {
			a.Service = svc
			if ok {
				a.Port = port
			}
		}
	}
	switch {
	case a.Service == nil && hidden != nil:
		return fmt.Errorf("service: %s is only in a namespace that sources are bound to; if you mean this service, write %s/%s", host, hidden.Namespace, host)
	case a.Service == nil:
		return fmt.Errorf("service: %w %q", ErrNoAuthorizerService, text)
	case a.Port.Number == 0 || a.Port.Protocol == UDP:
		return fmt.Errorf("port: the service %s has no port %d for TCP", host, number)
	case a.Service.Resolution == ResolutionNone || a.Service.Resolution == ResolutionDynamicDNS:
		return fmt.Errorf("service: %s has no addresses of its own (resolution NONE or DYNAMIC_DNS)", host)
	default:
		return nil
	}
}

// AuthorizerHosts are the hosts of all extension providers that policies can ask. What is said
// of these hosts may concern every workload with such a policy.
func AuthorizerHosts(c *meshconfig.MeshConfig) map[Hostname]bool {
	out := map[Hostname]bool{}
	for _, p := range c.GetExtensionProviders() {
		for _, text := range []string{p.GetEnvoyExtAuthzHttp().GetService(), p.GetEnvoyExtAuthzGrpc().GetService()} {
			if text != "" {
				out[Hostname(strings.ToLower(text[strings.Index(text, "/")+1:]))] = true
			}
		}
	}
	return out
}
