package mesh

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A service whose connections are not HTTP may take all that a client sends to its
// port: where it has no address, or where the client's proxy has one listener a port.
// So at each port there is an order of those that may have it, which depends on nothing but what
// is in force, and is the same on every server: unbound sources and catalogs, namespaces with a
// grant of the port, services of hosts of patterns, all others; among these HTTP before what is not,
// and then the first namespace by name. Nothing is restricted for it.

// portName is the name of a port in conflicts.
func portName(port uint32) Hostname { return Hostname(":" + strconv.FormatUint(uint64(port), 10)) }

// sharedPort is a port, or the services at it that are HTTP: these share it.
type sharedPort struct {
	port uint32
	http bool
}

// name is the name of a grant: ":7000" or ":http:7000".
func (p sharedPort) name() Hostname {
	if p.http {
		return ":http" + portName(p.port)
	}
	return portName(p.port)
}

// portOf is the port of a grant.
func portOf(h Hostname) (sharedPort, bool) {
	text, http := strings.CutPrefix(string(h), ":http")
	text, is := strings.CutPrefix(text, ":")
	n, err := strconv.ParseUint(text, 10, 16)
	return sharedPort{uint32(n), http}, is && err == nil
}

// recordedPort is the port of a name on record: ":7000" for what is not HTTP, ":NAMESPACE:7000" for HTTP.
func recordedPort(h Hostname) (sharedPort, bool) {
	if p, is := portOf(h); is && !p.http {
		return p, true
	}
	i := strings.LastIndexByte(string(h), ':')
	if i <= 1 || h[0] != ':' {
		return sharedPort{}, false
	}
	p, is := portOf(h[i:])
	return sharedPort{p.port, true}, is
}

// Port is the port that a grant is about, at which services of its namespace come before those of other bound
// sources.
func (g Grant) Port() (port uint32, is bool) {
	p, is := portOf(g.Name)
	return p.port, is
}

// hasPort reports whether a namespace has a grant of a port.
func (g *Grants) hasPort(namespace string, p sharedPort) bool {
	return g != nil && slices.Contains(g.ports[p], namespace)
}

// needsPort reports whether services of a namespace come behind others at a port, which a grant would change.
func (o *owners) needsPort(namespace string, p sharedPort) bool {
	if o.unboundAt(p) {
		return false
	}
	for i, b := range o.bindings {
		if b == nil || !b.has(namespace) {
			continue
		}
		list := o.claims[i].opaque.get(p.port)
		if p.http {
			list = o.claims[i].http.get(p.port)
		}
		if slices.ContainsFunc(list, func(svc *Service) bool {
			return svc.Namespace == namespace && !o.isRestricted(i, svc) && o.yieldsAt(portKey{i, namespace, p.port, p.http, o.patterned(i, svc)})
		}) {
			return true
		}
	}
	return false
}

// sharesPort reports whether services of a protocol share the listener of a port.
// HTTP_PROXY takes all connections of the port, and GRPC-WEB turns on translation for all
// services.
func sharesPort(p Protocol) bool { return p.IsHTTP() && p != HTTPProxy && p != GRPCWeb }

// opaquePorts are the ports of a service where a proxy sees connections only, and no
// requests, or which others cannot share; with http, the other ports.
func opaquePorts(svc *Service, http bool) []uint32 {
	var out []uint32
	for _, p := range svc.Ports {
		if p.Protocol != UDP && sharesPort(p.Protocol) == http {
			out = append(out, p.Number)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (w *restricter) opaquePorts(svc *Service) []uint32 {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return opaquePorts(svc, false)
}

func (w *restricter) httpPorts(svc *Service) []uint32 {
	if len(w.serviceHosts(svc)) == 0 {
		return nil
	}
	return opaquePorts(svc, true)
}

// yields are the ports of a bound source's service at which others have precedence.
func (o *owners) yields(source int, svc *Service) []uint32 {
	var out []uint32
	patterned := o.patterned(source, svc)
	for _, http := range []bool{false, true} {
		for _, port := range opaquePorts(svc, http) {
			if o.yieldsAt(portKey{source, svc.Namespace, port, http, patterned}) {
				out = append(out, port)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// yieldConflicts reports the ports at which connections that name no service go to others
// first. A service with an address has the connections to it, and one with TLS those that
// name it.
func yieldConflicts(svc *Service, yields []uint32) []Conflict {
	var out []Conflict
	for _, port := range opaquePorts(svc, false) {
		p, _ := svc.Port(port)
		switch {
		case !slices.Contains(yields, port) || p.Protocol.IsTLS() || len(svc.Addresses) > 0 && !p.Protocol.IsHTTP():
		case p.Protocol.IsHTTP():
			out = append(out, Conflict{
				Key: svc.Key, Host: portName(port), Dropped: svc.Origin, Foreign: true,
				Reason: fmt.Sprintf("the listener of port %d serves services of other namespaces, and not %s, for clients outside the namespace %s: these services come first there, or their "+
					"source is not bound to namespaces; requests arrive as HTTP; use another port", port, p.Protocol, svc.Namespace),
			})
		default:
			out = append(out, Conflict{
				Key: svc.Key, Host: portName(port), Dropped: svc.Origin, Foreign: true,
				Reason: fmt.Sprintf("connections to port %d go to services of other namespaces first, for clients outside the namespace %s: these services come first there, or their source is "+
					"not bound to namespaces; give the service an address, or another port", port, svc.Namespace),
			})
		}
	}
	return out
}

// patterned reports whether a pattern gives the host of a service to its source.
func (o *owners) patterned(source int, svc *Service) bool {
	return o.bindings[source].covers(svc.Hostname.canonical())
}

func (o *owners) yieldsAt(q portKey) bool {
	return cached(o.cache, func(a *decisionCache) map[portKey]bool { return a.yields }, q, func() bool {
		return o.comesBehind(q)
	})
}

func (o *owners) comesBehind(q portKey) bool {
	b := o.bindings[q.source]
	if o.unboundAt(sharedPort{q.port, q.http}) {
		return true
	}
	for i := range o.claims {
		if i == q.source || o.bindings[i] == nil {
			continue
		}
		first := func(http bool) func(*Service) bool {
			return func(x *Service) bool {
				return !b.has(x.Namespace) && o.comesFirst(i, x, http, q) && !o.isUnseen(i, x)
			}
		}
		c := &o.claims[i]
		if slices.ContainsFunc(c.opaque.get(q.port), first(false)) || !q.http && slices.ContainsFunc(c.http.get(q.port), first(true)) {
			return true
		}
	}
	return false
}

// isUnseen reports whether no other namespace sees a bound source's service, which therefore has no port: it is
// restricted, or all that it is exported to have one of its addresses in a service of their own.
func (o *owners) isUnseen(source int, svc *Service) bool {
	if o.isRestricted(source, svc) {
		return true
	}
	if o.forAll(svc) {
		return false
	}
	private := o.privateAddresses(source, svc.Namespace, addressNames(svc))
	return len(private) > 0 && onlyOwn(exportsWithout(svc.ExportTo, o.defaults, svc.Namespace, namespacesOf(private)), o.defaults, svc.Namespace)
}

// unboundAt reports whether an unbound source or a catalog has a service at a port that does not share it.
func (o *owners) unboundAt(p sharedPort) bool {
	for i := range o.claims {
		if o.bindings[i] == nil && (len(o.claims[i].opaque.get(p.port)) > 0 || !p.http && len(o.claims[i].http.get(p.port)) > 0) {
			return true
		}
	}
	return false
}

// comesFirst reports whether another bound source's service comes first at a port. HTTP shares it with HTTP.
func (o *owners) comesFirst(source int, x *Service, http bool, q portKey) bool {
	patterned, granted := o.patterned(source, x), o.grants.hasPort(x.Namespace, sharedPort{q.port, http})
	switch {
	case granted != o.grants.hasPort(q.namespace, sharedPort{q.port, q.http}):
		return granted
	case patterned != q.patterned:
		return patterned
	case http != q.http:
		return http
	default:
		return x.Namespace < q.namespace
	}
}

// markPorts marks ports that changed. If more than HTTP changed, all services of the port
// are decided again, else those that are not HTTP.
func (w *restricter) markPorts(deltas []Delta[*Service]) {
	for _, d := range deltas {
		w.markPortsOf(d.Old)
		w.markPortsOf(d.New)
	}
}

func (w *restricter) markPortsOf(svc *Service) {
	for _, port := range w.opaquePorts(svc) {
		w.ports[port] = true
	}
	for _, port := range w.httpPorts(svc) {
		if !w.ports[port] {
			w.ports[port] = false
		}
	}
}

// atPorts adds the services of a source that have to be decided again because of their
// ports.
func (w *restricter) atPorts(c *claims, to map[*Service]bool) {
	note := func(list []*Service) {
		for _, svc := range list {
			to[svc] = true
		}
	}
	for port, all := range w.ports {
		note(c.opaque.get(port))
		if all {
			note(c.http.get(port))
		}
	}
}
