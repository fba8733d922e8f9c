package mesh

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A service whose connections are not HTTP may take all that a client sends to its
// port: where it has no address, or where the client's proxy has one listener a port.
// So the ports of bound sources come behind those of others: of unbound sources and
// of catalogs, and of who has them on record. Nothing is restricted for it.

// portName is the name of a port on record.
func portName(port uint32) Hostname { return Hostname(":" + strconv.FormatUint(uint64(port), 10)) }

// portOf is the port of such a name.
func portOf(h Hostname) (uint32, bool) {
	s, is := strings.CutPrefix(string(h), ":")
	n, err := strconv.ParseUint(s, 10, 16)
	return uint32(n), is && err == nil
}

// httpPortName is the name on record of a port at which a namespace has HTTP. Several
// namespaces may be on record for one port.
func httpPortName(namespace string, port uint32) Hostname {
	return Hostname(":" + namespace + string(portName(port)))
}

// httpPortOf is the namespace and the port of such a name.
func httpPortOf(h Hostname) (namespace string, port uint32, is bool) {
	if i := strings.LastIndexByte(string(h), ':'); i > 1 && h[0] == ':' {
		port, is = portOf(h[i:])
		return string(h[1:i]), port, is
	}
	return "", 0, false
}

// httpOfOthers reports whether a namespace is on record with HTTP at a port, which a
// binding does not have.
func (o *Owners) httpOfOthers(b *Binding, port uint32) bool {
	if o == nil {
		return false
	}
	from := sortedNameOf(portName(port)) // names that end so are behind it
	i, _ := slices.BinarySearchFunc(o.order, from, compareSortedNames)
	for ; i < len(o.order) && strings.HasPrefix(o.order[i].key, from.key); i++ {
		if ns, _, is := httpPortOf(o.order[i].name); is && !b.has(ns) {
			return true
		}
	}
	return false
}

// hasHTTP reports whether a namespace of a bound source has an HTTP service at a port that
// others see.
func (o *owners) hasHTTP(namespace string, port uint32) bool {
	for i, b := range o.bindings {
		if b != nil && slices.ContainsFunc(o.claims[i].http.get(port), func(svc *Service) bool { return svc.Namespace == namespace && !o.isRestricted(i, svc) }) {
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
	for _, http := range []bool{false, true} {
		for _, port := range opaquePorts(svc, http) {
			if o.yieldsAt(source, svc.Namespace, port, http) {
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
				Reason: fmt.Sprintf("the listener of port %d serves services of other namespaces, and not %s, for clients outside the namespace %s: these services had the port first, or their "+
					"source is not bound to namespaces; requests arrive as HTTP; use another port", port, p.Protocol, svc.Namespace),
			})
		default:
			out = append(out, Conflict{
				Key: svc.Key, Host: portName(port), Dropped: svc.Origin, Foreign: true,
				Reason: fmt.Sprintf("connections to port %d go to services of other namespaces first, for clients outside the namespace %s: these services had the port first, or their source is "+
					"not bound to namespaces; give the service an address, or another port", port, svc.Namespace),
			})
		}
	}
	return out
}

func (o *owners) yieldsAt(source int, namespace string, port uint32, http bool) bool {
	question := portKey{source, namespace, port, http}
	return cached(o.cache, func(a *decisionCache) map[portKey]bool { return a.yields }, question, func() bool {
		return o.comesBehind(source, namespace, port, http)
	})
}

func (o *owners) comesBehind(source int, namespace string, port uint32, http bool) bool {
	b := o.bindings[source]
	for i := range o.claims {
		if o.bindings[i] == nil && (len(o.claims[i].opaque.get(port)) > 0 || !http && len(o.claims[i].http.get(port)) > 0) {
			return true
		}
	}
	if owner, known := o.record.Of(portName(port)); known {
		return !b.has(owner.Namespace)
	}
	if http {
		return false
	}
	if o.record.httpOfOthers(b, port) { // away for a moment is no chance for others
		return true
	}
	for i := range o.claims {
		if i == source || o.bindings[i] == nil {
			continue
		}
		if slices.ContainsFunc(o.claims[i].http.get(port), func(x *Service) bool { return !b.has(x.Namespace) && !o.isRestricted(i, x) }) ||
			slices.ContainsFunc(o.claims[i].opaque.get(port), func(x *Service) bool {
				return !b.has(x.Namespace) && x.Namespace < namespace && !o.isRestricted(i, x)
			}) {
			return true
		}
	}
	return false
}

// grantPort is the owner to put on record for a port: the first with a service there that
// is not HTTP, if nobody else has a service there.
func (o *owners) grantPort(port uint32) (Owner, bool) {
	was, known := o.record.Of(portName(port))
	var free []string
	for i, b := range o.bindings {
		if b == nil {
			continue
		}
		for _, svc := range o.claims[i].opaque.get(port) {
			if o.isRestricted(i, svc) {
				continue
			}
			if known && svc.Namespace == was.Namespace {
				return was, true
			}
			if !known && !o.yieldsAt(i, svc.Namespace, port, false) {
				free = append(free, svc.Namespace)
			}
		}
	}
	if len(free) == 0 {
		return Owner{}, false
	}
	first := slices.Min(free)
	for i, b := range o.bindings {
		if b != nil && !b.has(first) && slices.ContainsFunc(o.claims[i].http.get(port), func(svc *Service) bool { return !o.isRestricted(i, svc) }) {
			return Owner{}, false // of a namespace that another directory is bound to, too
		}
	}
	return Owner{Namespace: first}, true
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
		w.hosts[portName(port)] = true
	}
	for _, port := range w.httpPorts(svc) {
		w.hosts[httpPortName(svc.Namespace, port)] = true
	}
}

// markHTTP marks the ports at which HTTP services, or the record of them, changed: a
// service without HTTP may be put on record now.
func (w *restricter) markHTTP() {
	for h := range w.hosts {
		if _, port, is := httpPortOf(h); is {
			w.ports[port] = true
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
	for port := range w.ports {
		note(c.opaque.get(port))
	}
	for h := range w.hosts {
		if port, is := portOf(h); is {
			note(c.opaque.get(port))
			note(c.http.get(port))
		}
	}
}
