package server

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const cart = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: shop}
spec:
  hosts: [cart.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  workloadSelector: {labels: {app: cart}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: cart-1, namespace: shop}
spec: {address: 10.1.2.3, labels: {app: cart}, serviceAccount: cart}
`

// TestObjects: what is in force is told source by source.
func TestObjects(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": cart}), treeOf(t, map[string]string{"b.yaml": rule("shop", "b")})))
	var got []Object
	r.eventually(func() error {
		err := r.client.Do(t.Context(), http.MethodGet, "/debug/objects?source=files", nil, &got)
		if err == nil && len(got) != 2 {
			err = fmt.Errorf("objects %+v", got)
		}
		return err
	})
	service, workload := got[0], got[1]
	if service.Key != "ServiceEntry shop/cart" || service.Host != "cart.shop.internal" || len(service.Hash) != 64 {
		t.Errorf("service %+v", service)
	}
	if workload.Key != "WorkloadEntry shop/cart-1" || workload.Address != "10.1.2.3" || !strings.HasSuffix(workload.Origin, "a.yaml:11:1") {
		t.Errorf("workload %+v", workload)
	}
	second := r.sources().Files[1].Source
	if err := r.client.Do(t.Context(), http.MethodGet, "/debug/objects?source="+second, nil, &got); err != nil || len(got) != 0 {
		t.Errorf("objects of the other directory: %+v, %v", got, err)
	}
	err := r.client.Do(t.Context(), http.MethodGet, "/debug/objects?source=nobody", nil, &got)
	if err == nil || !strings.Contains(err.Error(), `source "nobody"`) {
		t.Errorf("of an unknown source: %v", err)
	}
}
