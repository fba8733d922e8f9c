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

// ErrNoAuthorizer says that there is no extension provider of this name.
var ErrNoAuthorizer = errors.New("MeshConfig's extensionProviders have no envoyExtAuthzHttp and no envoyExtAuthzGrpc of this name")

var (
	errAuthorizerTwice = errors.New("MeshConfig's extensionProviders have the name twice")
	errNoBodyLimit     = errors.New("includeRequestBodyInCheck: maxRequestBytes is 0; write how many bytes of the body are sent")
)

// Authorizer returns the extension provider of a name. An error says why it cannot be asked:
// there is none, its settings are not valid, or there is no such service. It checks what Istio
// checks (pilot/pkg/security/authz/builder/extauthz.go), and what makes Envoy refuse the
// configuration. As in Istio, a service is found whatever its exportTo says; but see
// [Snapshot.ProviderService].
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

// locate finds the service and its port.
func (s *Snapshot) locate(a *Authorizer) (err error) {
	text, number := a.HTTP.GetService(), a.HTTP.GetPort()
	if a.GRPC != nil {
		text, number = a.GRPC.GetService(), a.GRPC.GetPort()
	}
	a.Service, a.Port, err = s.ProviderService(text, number)
	return err
}
