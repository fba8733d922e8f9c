package registry

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry/mesh"
)

func meta(kind mesh.Kind, namespace, name, content string) mesh.Meta {
	m := mesh.Meta{Key: mesh.Key{Kind: kind, Namespace: namespace, Name: name}, Origin: &mesh.Origin{Source: "files", Path: name + ".yaml"}}
	m.Hash = sha256.Sum256([]byte(m.String() + content))
	return m
}

func workload(namespace string, i int, app string) *mesh.Workload {
	w := &mesh.Workload{
		Meta:    meta(mesh.KindWorkloadEntry, namespace, fmt.Sprintf("w%04d", i), app),
		Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256), ServiceAccount: "default",
	}
	w.Labels = map[string]string{"app": app}
	return w
}

func workloads(namespace string, from, to int, app string) []*mesh.Workload {
	var list []*mesh.Workload
	for i := from; i < to; i++ {
		list = append(list, workload(namespace, i, app))
	}
	return list
}

func service(namespace, name, app string) *mesh.Service {
	return &mesh.Service{
		Meta: meta(mesh.KindServiceEntry, namespace, name, app), Hostname: mesh.Hostname(name + ".example"),
		Ports: []mesh.Port{{Name: "http", Number: 80, Protocol: mesh.HTTP}}, Selector: map[string]string{"app": app},
	}
}

func inlineService(namespace, name string, from, to int) *mesh.Service {
	s := service(namespace, name, fmt.Sprint(from, to))
	s.Selector, s.Inline = nil, workloads(namespace, from, to, "x")
	return s
}

func virtualService(name, content string) *mesh.VirtualService {
	return &mesh.VirtualService{Meta: meta(mesh.KindVirtualService, "default", name, content)}
}

func fallback() *mesh.MeshConfig {
	return &mesh.MeshConfig{
		Meta: meta(mesh.KindMeshConfig, "istio-system", "default", ""),
		Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"},
	}
}

func silent() *slog.Logger { return slog.New(slog.DiscardHandler) }

// fakeSource says what a test says.
type fakeSource struct {
	name string
	says chan *mesh.Fragment
	fail chan error
}

func newFakeSource(name string) *fakeSource {
	return &fakeSource{name: name, says: make(chan *mesh.Fragment), fail: make(chan error)}
}

// say hands over a reading. It leaves f alone: tests that run at once say the same one.
func (s *fakeSource) say(f *mesh.Fragment) {
	said := *f
	said.Source = s.name
	s.says <- &said
}

func (s *fakeSource) Name() string { return s.name }

func (s *fakeSource) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-s.fail:
			return err
		case f := <-s.says:
			select {
			case out <- f:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

var errBroken = errors.New("broken")
