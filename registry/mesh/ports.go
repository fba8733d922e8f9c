package mesh

import (
	"fmt"
	"slices"
	"strconv"
)

// A service whose connections are not HTTP may take all that a client sends to its
// port: where it has no address, or where the client's proxy has one listener a port.
// So at each port there is an order of those that may have it, which depends on nothing but what
// is in force, and is the same on every server: unbound sources and catalogs, services of hosts of
// patterns, all others; among these HTTP before what is not, and then the first namespace by
// name. Nothing is restricted for it.

// portName is the name of a port in conflicts.
func portName(port uint32) Hostname { return Hostname(":" + strconv.FormatUint(uint64(port), 10)) }

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
	for i := range o.claims {
		if o.bindings[i] == nil && (len(o.claims[i].opaque.get(q.port)) > 0 || !q.http && len(o.claims[i].http.get(q.port)) > 0) {
			return true
		}
	}
	for i := range o.claims {
		if i == q.source || o.bindings[i] == nil {
			continue
		}
		first := func(http bool) func(*Service) bool {
			return func(x *Service) bool {
				return !b.has(x.Namespace) && o.comesFirst(i, x, http, q) && !o.isRestricted(i, x)
			}
		}
		c := &o.claims[i]
		if slices.ContainsFunc(c.opaque.get(q.port), first(false)) || !q.http && slices.ContainsFunc(c.http.get(q.port), first(true)) {
			return true
		}
	}
	return false
}

// comesFirst reports whether another bound source's service comes first at a port. HTTP shares it with HTTP.
func (o *owners) comesFirst(source int, x *Service, http bool, q portKey) bool {
	switch patterned := o.patterned(source, x); {
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
