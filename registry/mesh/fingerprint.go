package mesh

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"
)

// Fingerprint hashes everything in a snapshot that a reader could see, origins
// and look-ups included, by content. It is slow and meant for tests: taken
// before and after, it shows that nobody wrote to a snapshot; of two snapshots,
// that they say the same. Generation, Changed and Changes are left out, as they
// tell of the way and not of the state.
func (s *Snapshot) Fingerprint() (Hash, error) {
	p := &printer{h: sha256.New()}
	p.meta(&s.MeshConfig.Meta)
	p.message(s.MeshConfig.Spec)
	if s.MeshNetworks != nil {
		p.meta(&s.MeshNetworks.Meta)
		p.message(s.MeshNetworks.Spec)
	}
	for _, svc := range s.Services {
		p.service(svc)
		for _, w := range s.EndpointsOf(svc) {
			p.text(w.String(), w.Address)
		}
		p.text(fmt.Sprint(s.ServiceAccountsOf(svc), len(s.ServicesOn(svc.Hostname))))
	}
	for _, w := range s.Workloads {
		p.workload(w)
		for _, svc := range s.ServicesOf(w) {
			p.text(svc.String(), string(svc.Hostname))
		}
		for _, list := range [][]*Workload{s.WorkloadsIn(w.Namespace), s.WorkloadsAt(w.Address)} {
			for _, other := range list {
				if list[0] == w { // each list once
					p.text(other.String())
				}
			}
		}
	}
	for _, k := range kinds {
		k.fingerprint(p, s)
	}
	for _, c := range s.Conflicts {
		p.text(c.Key.String(), string(c.Host), c.Kept.String(), c.Dropped.String(), c.Field, c.Reason)
	}
	p.text(s.Missing...)
	return Hash(p.h.Sum(nil)), p.err
}

type printer struct {
	h   hash.Hash
	err error // the first one
}

func printAll[T object](p *printer, list []T, spec func(T)) {
	p.text(strconv.Itoa(len(list)))
	for _, x := range list {
		p.meta(x.meta())
		spec(x)
	}
}

// text writes strings so that no two lists of them look alike.
func (p *printer) text(list ...string) {
	p.h.Write(binary.AppendUvarint(nil, uint64(len(list))))
	for _, s := range list {
		p.h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		p.h.Write([]byte(s))
	}
}

func (p *printer) labels(m map[string]string) {
	keys := slices.Sorted(maps.Keys(m))
	p.text(keys...)
	for _, k := range keys {
		p.text(m[k])
	}
}

func (p *printer) message(m proto.Message) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("marshalling %s: %w", m.ProtoReflect().Descriptor().FullName(), err)
	}
	p.text(string(b))
}

func (p *printer) meta(m *Meta) {
	p.text(m.String(), m.Created.UTC().String(), m.Hash.String())
	if m.Origin != nil {
		p.text(m.Origin.Source, m.Origin.String())
	}
	p.labels(m.Labels)
	p.labels(m.Annotations)
}

func (p *printer) service(s *Service) {
	p.meta(&s.Meta)
	p.text(string(s.Hostname), fmt.Sprint(s.Ports, s.Resolution, s.External, s.Catalog, s.Selector == nil, s.Yields, s.LostNames))
	p.text(s.Addresses...)
	p.text(s.Allocated...)
	p.text(s.ExportTo...)
	p.text(s.SubjectAltNames...)
	p.labels(s.Selector)
	for _, w := range s.Inline {
		p.workload(w)
	}
}

func (p *printer) workload(w *Workload) {
	p.meta(&w.Meta)
	p.text(w.Address, w.ServiceAccount, w.Network, w.HealthReason, fmt.Sprint(w.Locality, w.Weight, w.Health, w.Withdrawn))
	for _, k := range slices.Sorted(maps.Keys(w.Ports)) {
		p.text(k, strconv.FormatUint(uint64(w.Ports[k]), 10))
	}
	p.message(w.ProxyConfig)
}
