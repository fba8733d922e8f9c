package mapping

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/fairlead/fairlead/registry/mesh"
)

// hasher computes the hashes of objects: over everything but where they come
// from and why they are unhealthy. The buffer is used again.
type hasher struct{ buf []byte }

func (h *hasher) reset(kind string) {
	h.buf = h.buf[:0]
	h.text(kind)
}

// text adds a value with its length, so that neighbours cannot run into one
// another.
func (h *hasher) text(s string) {
	h.buf = binary.AppendUvarint(h.buf, uint64(len(s)))
	h.buf = append(h.buf, s...)
}

func (h *hasher) number(n uint64) { h.buf = binary.AppendUvarint(h.buf, n) }

func (h *hasher) key(k mesh.Key) {
	h.text(string(k.Kind))
	h.text(k.Namespace)
	h.text(k.Name)
}

// workload is the hash of an instance, whose labels are given sorted.
func (h *hasher) workload(x *mesh.Workload, labels []pair) mesh.Hash {
	h.reset("consul instance 1")
	h.key(x.Key)
	h.number(uint64(len(labels)))
	for _, p := range labels {
		h.text(p.key)
		h.text(p.value)
	}
	h.text(x.Address)
	h.number(uint64(len(x.Ports))) // one at most, so there is no order to it
	for name, port := range x.Ports {
		h.text(name)
		h.number(uint64(port))
	}
	h.text(x.ServiceAccount)
	h.text(x.Network)
	h.text(x.Locality.Region)
	h.text(x.Locality.Zone)
	h.text(x.Locality.SubZone)
	h.number(uint64(x.Weight))
	h.number(uint64(x.Health))
	if x.Withdrawn {
		h.text("withdrawn")
	}
	if owner := x.Owner(); owner != "" {
		h.text("owner")
		h.text(owner)
	}
	return sha256.Sum256(h.buf)
}

// service is the hash of a service with all its hosts.
func (h *hasher) service(s *mesh.Service, hosts []mesh.Hostname) mesh.Hash {
	h.reset("consul service 1")
	h.key(s.Key)
	h.number(uint64(len(hosts)))
	for _, host := range hosts {
		h.text(string(host))
	}
	h.number(uint64(len(s.Addresses)))
	for _, a := range s.Addresses {
		h.text(a)
	}
	h.number(uint64(len(s.Ports)))
	for _, p := range s.Ports {
		h.text(p.Name)
		h.number(uint64(p.Number))
		h.text(string(p.Protocol))
		h.number(uint64(p.TargetPort))
	}
	h.number(uint64(s.Resolution))
	if s.External {
		h.text("external")
	}
	h.text(s.Selector[mesh.LabelConsulService])
	return sha256.Sum256(h.buf)
}
