package registry_test

import (
	"context"
	"fmt"
	"log/slog"

	meshconfig "istio.io/api/mesh/v1alpha1"

	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/mesh"
)

// static is a source that never changes.
type static struct{ fragment *mesh.Fragment }

func (s static) Name() string { return s.fragment.Source }

func (s static) Run(ctx context.Context, out chan<- *mesh.Fragment) error {
	select {
	case out <- s.fragment:
		<-ctx.Done()
	case <-ctx.Done():
	}
	return ctx.Err()
}

func ExampleRegistry() {
	source := static{&mesh.Fragment{
		Source: "static",
		Services: []*mesh.Service{{
			Meta: mesh.Meta{
				Key:    mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "shop", Name: "orders"},
				Origin: &mesh.Origin{Source: "static", Path: "orders.yaml", Line: 1, Column: 1},
			},
			Hostname: "orders.shop.example",
		}},
	}}
	r, err := registry.New(registry.Config{
		Logger:   slog.New(slog.DiscardHandler),
		Sources:  []registry.Source{source},
		Fallback: &mesh.MeshConfig{Spec: &meshconfig.MeshConfig{RootNamespace: "istio-system"}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	changed, unsubscribe := r.Subscribe()
	defer unsubscribe()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- r.Run(ctx) }()
	<-changed
	for _, svc := range r.Snapshot().ServicesVisibleTo("web") {
		fmt.Println(svc.Hostname, "is written in", svc.Origin)
	}
	cancel()
	fmt.Println(<-ended)
	// Output:
	// orders.shop.example is written in orders.yaml:1:1
	// <nil>
}
