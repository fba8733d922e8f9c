package mesh

import (
	"crypto/sha256"
	"fmt"
	"testing"

	meshconfig "istio.io/api/mesh/v1alpha1"
)

func testMeshConfig() *MeshConfig {
	return &MeshConfig{
		Meta: testMeta(KindMeshConfig, "istio-system", "default", "1"),
		Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system", TrustDomain: "cluster.local"},
	}
}

func testMeta(kind Kind, namespace, name, content string) Meta {
	m := Meta{Key: Key{Kind: kind, Namespace: namespace, Name: name}, Origin: &Origin{Source: "files", Path: name + ".yaml", Line: 1, Column: 1}}
	m.Hash = sha256.Sum256([]byte(m.String() + content))
	return m
}

func testWorkload(namespace, name, address, app string) *Workload {
	w := &Workload{Meta: testMeta(KindWorkloadEntry, namespace, name, address+app), Address: address, ServiceAccount: "sa-" + app}
	w.Labels = map[string]string{"app": app, "env": "prod"}
	return w
}

func testService(namespace, name, app string) *Service {
	s := &Service{
		Meta:     testMeta(KindServiceEntry, namespace, name, app),
		Hostname: Hostname(name + "." + namespace + ".example"),
		Ports:    []Port{{Name: "http", Number: 80, Protocol: HTTP}},
	}
	if app != "" {
		s.Selector = map[string]string{"app": app, "env": "prod"}
	}
	return s
}

func testVirtualService(namespace, name, content string) *VirtualService {
	return &VirtualService{Meta: testMeta(KindVirtualService, namespace, name, content)}
}

// testFragment is a mesh of namespaces with services services each, and
// workloads workloads a service.
func testFragment(namespaces, services, workloads int) *Fragment {
	f := &Fragment{Source: "files"}
	for n := range namespaces {
		ns := fmt.Sprintf("ns%03d", n)
		for i := range services {
			app := fmt.Sprintf("app%05d", i)
			f.Services = append(f.Services, testService(ns, app, app))
			for j := range workloads {
				address := fmt.Sprintf("10.%d.%d.%d", n, i%256, (i/256)*16+j)
				f.Workloads = append(f.Workloads, testWorkload(ns, fmt.Sprintf("%s-%d", app, j), address, app))
			}
		}
	}
	return f
}

func testSnapshot(prev *Snapshot, fragments ...*Fragment) *Snapshot {
	return NewSnapshot(prev, testMeshConfig(), fragments)
}

func fingerprint(tb testing.TB, s *Snapshot) Hash {
	tb.Helper()
	h, err := s.Fingerprint()
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

// testDerived is a service as a catalog's source derives it.
func testDerived(namespace, name string, port uint32, exports ...string) *Service {
	s := testService(namespace, "consul/"+name, "")
	s.Hostname = Hostname(name + ".service.consul")
	s.Ports[0].Number = port
	s.Selector = map[string]string{LabelConsulService: name}
	s.ExportTo, s.Catalog = exports, true
	s.Hash = sha256.Sum256(fmt.Append(nil, s.Key, port, exports))
	return s
}

// testInstance is an instance of a catalog's service.
func testInstance(namespace, address, service string) *Workload {
	w := testWorkload(namespace, "consul/dc1/node/"+service, address, service)
	w.Labels[LabelConsulService] = service
	return w
}
