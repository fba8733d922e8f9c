package mesh

import "testing"

// TestTracerAddress: an address of a tracer is a host and a port, and nothing that could change an
// URL.
func TestTracerAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		host string
		port uint32
	}{
		"zipkin.shop:9411": {"zipkin.shop", 9411}, "Zipkin.Shop:9411": {"zipkin.shop", 9411}, "10.0.0.1:1": {"10.0.0.1", 1},
		"$(HOST_IP):8126": {"127.0.0.1", 8126}, "[fd00::1]:9411": {"fd00::1", 9411},
		"": {}, ":9411": {}, "zipkin": {}, "zipkin:": {}, "zipkin:0": {}, "zipkin:65536": {}, "zipkin:http": {}, "a/b:1": {}, "a b:1": {}, "$(OTHER):1": {},
	} {
		host, port, ok := TracerAddress(text)
		if ok != (want.port > 0) || ok && (host != want.host || port != want.port) {
			t.Errorf("%q: %q, %d, %t", text, host, port, ok)
		}
	}
}
