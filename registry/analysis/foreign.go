package analysis

import (
	"fmt"
	"strings"

	networking "istio.io/api/networking/v1alpha3"

	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// foreignHosts warns of a host that a source which is bound to namespaces names,
// and that is another's.
func foreignHosts(w *meshIndex, r *report) {
	at, fields := w.conflicting(), hostFields{}
	for _, c := range w.in.Foreign {
		if o := at[c.Dropped]; c.Foreign && o != nil {
			r.warn(place{o, fields.of(w, o, c.Host)}, "%s", c.Reason)
		}
	}
}

// conflicting are the objects by their origins, if there is a conflict.
func (w *meshIndex) conflicting() map[*mesh.Origin]*manifest.Object {
	at := map[*mesh.Origin]*manifest.Object{}
	if len(w.in.Foreign) > 0 {
		for _, o := range w.in.Objects {
			at[o.Meta.Origin] = o
		}
	}
	return at
}

// tenantConflicts reports what sources that are bound to namespaces may not, of one kind.
func tenantConflicts(kind mesh.ConflictKind) func(w *meshIndex, r *report) {
	return func(w *meshIndex, r *report) {
		at := w.conflicting()
		for _, c := range w.in.Foreign {
			if o := at[c.Dropped]; c.Kind == kind && o != nil {
				r.add(place{o, c.Field}, severityOf(c), c.Reason)
			}
		}
	}
}

// severityOf is an error where something is not in force.
func severityOf(c mesh.Conflict) Severity {
	if c.Refused {
		return Error
	}
	return Warning
}

// FaultOf is the fault of a source that is bound to namespaces, of a conflict of its own.
func FaultOf(c mesh.Conflict) manifest.Fault {
	code := CodeForeignHost
	switch c.Kind {
	case mesh.ConflictObject:
	case mesh.ConflictCredential:
		code = CodeForeignCredential
	case mesh.ConflictTables:
		code = CodeHashTables
	case mesh.ConflictRoute:
		code = CodeForeignRoute
	}
	return manifest.Fault{
		Origin: c.Dropped, Key: c.Key, Field: c.Field, Code: manifest.Code(code), Severity: manifest.Severity(severityOf(c)), Message: c.Reason,
	}
}

// hostFields are where objects name hosts. Each object is read once: it may have thousands of hosts, and a conflict for each.
type hostFields map[*manifest.Object]map[mesh.Hostname]string

// of is where an object names a host, an address or a port.
func (f hostFields) of(w *meshIndex, o *manifest.Object, host mesh.Hostname) string {
	if se, ok := o.Spec.(*networking.ServiceEntry); ok {
		for i, p := range se.GetPorts() {
			if host == mesh.Hostname(fmt.Sprintf(":%d", p.GetNumber())) {
				return fmt.Sprintf("spec.ports[%d]", i)
			}
		}
		for i, a := range se.GetAddresses() {
			if mesh.SameAddress(mesh.Hostname(a), host) {
				return fmt.Sprintf("spec.addresses[%d]", i)
			}
		}
	}
	if f[o] == nil {
		f[o] = w.hostsOf(o)
	}
	if field, ok := f[o][host]; ok {
		return field
	}
	return "spec.hosts"
}

// hostsOf are the hosts of an object, as conflicts name them, and where it names them first.
func (w *meshIndex) hostsOf(o *manifest.Object) map[mesh.Hostname]string {
	var hosts []string
	switch spec := o.Spec.(type) {
	case *networking.ServiceEntry:
		hosts = spec.GetHosts()
	case *networking.VirtualService:
		hosts = spec.GetHosts()
	}
	out := make(map[mesh.Hostname]string, len(hosts))
	for i, h := range hosts {
		name := mesh.Hostname(strings.ToLower(h))
		if _, is := o.Spec.(*networking.VirtualService); is {
			name = w.fqdn(h, o.Meta.Namespace)
		}
		if _, known := out[name]; !known {
			out[name] = fmt.Sprintf("spec.hosts[%d]", i)
		}
	}
	return out
}
