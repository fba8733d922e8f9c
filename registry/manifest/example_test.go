package manifest_test

import (
	"fmt"
	"os"

	"github.com/fairlead/fairlead/registry/manifest"
)

func ExampleDecode() {
	const text = `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: orders, namespace: shop}
spec:
  hosts: [orders.shop.example]
  http:
  - rout:
    - destination: {host: orders.shop.example}
    timeout: 5
`
	file, faults := manifest.Decode(manifest.Options{}, "orders.yaml", []byte(text))
	for _, f := range faults {
		_, _ = fmt.Fprintln(os.Stdout, f)
	}
	_, _ = fmt.Fprintln(os.Stdout, file.Objects[0].Meta.Key, file.Objects[0].Valid)
	// Output:
	// orders.yaml:8:5: error [FL0110] VirtualService shop/orders spec.http[0].rout: there is no field "rout" here; did you mean "route"?
	// orders.yaml:10:14: error [FL0111] VirtualService shop/orders spec.http[0].timeout: must be a string, not an integer; write 5s for seconds, or another unit: 500ms, 1h30m
	// VirtualService shop/orders false
}
