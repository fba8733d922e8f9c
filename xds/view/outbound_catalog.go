package view

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// named leaves the chains that tell the service from others on its port. What comes
// from a catalog may take the connections to its own virtual address, those that
// name it, and those of a listener that a Sidecar has for its very host; never all to a port,
// for that would be anybody's who may register a service with that port.
func (t *target) named(chains []*Chain) []*Chain {
	if !t.svc.Catalog || slices.Contains(t.svc.Addresses, t.bind) || t.e.hasPort() && t.e.names(t.svc.Hostname) {
		return chains
	}
	return slices.DeleteFunc(chains, nameless)
}

// takesAll reports whether all connections are one service's: then HTTP among them
// is too, and is not looked for because a catalog has a service on that port.
func (en *entry) takesAll() bool {
	return !en.protocol.IsHTTP() && en.protocol != mesh.Undeclared && slices.ContainsFunc(en.chains, nameless)
}

// nameless reports whether a chain takes any connection.
func nameless(c *Chain) bool {
	return c.TCP != nil && len(c.Match.CIDRs) == 0 && len(c.Match.ServerNames) == 0
}

// names reports whether a person wrote the host into the listener, and not a
// wildcard.
func (e *egress) names(host mesh.Hostname) bool {
	return slices.ContainsFunc(e.listener.GetHosts(), func(h string) bool {
		return strings.EqualFold(h[strings.IndexByte(h, '/')+1:], string(host))
	})
}

// turns is how often the services of a port are gone through: what comes first takes
// what only one can have.
const turns = yielding + 1

// yielding is the last turn: that of services which other ones come before.
const yielding = 2

// turn tells when it is a service's: first comes what is written down, then what is
// of a catalog, and then what has to yield.
func (o *outbound) turn(svc *service, port uint32) int {
	switch {
	case svc.Catalog:
		return 1
	case len(svc.Yields) > 0 && svc.Namespace != o.sc.namespace() && slices.Contains(svc.Yields, port):
		return yielding
	default:
		return 0
	}
}
