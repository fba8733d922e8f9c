package view

import (
	"slices"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
)

// HeardLate is a port of a service at which the server speaks first, and of which a workload takes
// plaintext as well as mTLS: its Envoy waits for the client's first bytes, to tell them apart, and a
// client without mTLS sends none.
type HeardLate struct {
	Service *mesh.Service
	Port    mesh.Port
	// Target is the port of the workload.
	Target uint32
}

// HeardLate returns such ports, each once, in the order of services.
func (x *Index) HeardLate() (out []HeardLate) {
	for _, w := range x.s.Workloads {
		policy := x.authn.in(w.Namespace).forWorkload(w.Labels)
		for _, svc := range x.s.ServicesOf(w) {
			for _, p := range svc.Ports {
				target := w.PortFor(p)
				if !speaksFirst(p) || policy.forPort(target) != mesh.Permissive ||
					slices.ContainsFunc(out, func(h HeardLate) bool { return h.Service == svc && h.Port.Number == p.Number }) {
					continue
				}
				out = append(out, HeardLate{Service: svc, Port: p, Target: target})
			}
		}
	}
	return out
}

// speaksFirst reports whether the server of a port probably speaks first: by its protocol, its name, or
// the number that such a protocol has.
func speaksFirst(p mesh.Port) bool {
	if p.Protocol.IsHTTP() || p.Protocol.IsTLS() || p.Protocol == mesh.UDP || p.Protocol == mesh.Mongo {
		return false
	}
	const ftp, smtp, pop3, nntp, imap, submission, mysql, vnc = 21, 25, 110, 119, 143, 587, 3306, 5900
	name := strings.ToLower(p.Name)
	named := slices.ContainsFunc([]string{"ftp", "smtp", "pop3", "nntp", "imap", "mysql", "mariadb", "vnc"}, func(protocol string) bool {
		return slices.Contains(strings.Split(name, "-"), protocol)
	})
	return named || p.Protocol == mesh.MySQL || slices.Contains([]uint32{ftp, smtp, pop3, nntp, imap, submission, mysql, vnc}, p.Number)
}
