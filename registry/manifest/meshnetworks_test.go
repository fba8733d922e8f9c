package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

// TestMeshNetworks holds that the example of Istio's API is read as it is.
func TestMeshNetworks(t *testing.T) {
	t.Parallel()
	const text = `
networks:
  network1:
    endpoints:
    - fromRegistry: registry1
    - fromCidr: 192.168.100.0/22
    gateways:
    - registryServiceName: istio-ingressgateway.istio-system.svc.cluster.local
      port: 15443
    - address: 192.168.100.1
      port: 15443
  network2: {}
`
	got, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(text))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	n := got.Spec.GetNetworks()
	if len(n) != 2 || len(n["network1"].GetEndpoints()) != 2 || len(n["network1"].GetGateways()) != 2 || got.Hash.IsZero() || got.Origin.Path != "networks.yaml" {
		t.Errorf("got %v", got)
	}
	for _, empty := range []string{"{}", "networks: {}\n"} {
		if got, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(empty)); got == nil || len(faults) > 0 {
			t.Errorf("%q: got %v, %v", empty, got, faults)
		}
	}
}

// TestMeshNetworksFaults holds that what is wrong has its place, and that nothing of such a file
// counts.
func TestMeshNetworksFaults(t *testing.T) {
	t.Parallel()
	ends := func(list string) string { return "networks: {a: {endpoints: [" + list + "]}}" }
	gws := func(list string) string { return "networks: {a: {gateways: [" + list + "]}}" }
	for text, want := range map[string]string{
		"netwroks: {}":                 `networks.yaml:1:1: error [FL0110] MeshNetworks netwroks: there is no field "netwroks" here; did you mean "networks"?`,
		"networks: {a: 1}":             `networks.yaml:1:15: error [FL0111] MeshNetworks networks.a: must be an object, not integer`,
		"[]":                           `networks.yaml:1:1: error [FL0111] MeshNetworks: the networks must be an object, not list`,
		"{}\n---\n{}":                  `networks.yaml:3:1: error [FL0105] MeshNetworks: the networks must be one document`,
		"meshNetworks: {networks: {}}": `networks.yaml:1:15: error [FL0110] MeshNetworks meshNetworks: the networks are below this field, as in a file for Kubernetes; write them alone into the file, which begins with "networks:"`,
		"kind: ConfigMap\ndata: {meshNetworks: 'networks: {}'}": `networks.yaml:2:22: error [FL0110] MeshNetworks data.meshNetworks: the networks are below this field, as in a file for Kubernetes; ` +
			`write them alone into the file, which begins with "networks:"`,
		`networks: {"": {}}`:                          `networks.yaml:1:16: error [FL0120] MeshNetworks networks[""]: the name of the network is empty`,
		ends("{}"):                                    `networks.yaml:1:28: error [FL0120] MeshNetworks networks.a.endpoints[0]: the entry says nothing; write fromCidr or fromRegistry`,
		ends("{fromCidr: 10.0.0.0/33}"):               `networks.yaml:1:39: error [FL0120] MeshNetworks networks.a.endpoints[0].fromCidr: "10.0.0.0/33" is not a CIDR block; write an address, a slash and the number of fixed bits, as in "10.0.0.0/8"`,
		ends("{fromRegistry: a/b}"):                   `networks.yaml:1:43: error [FL0120] MeshNetworks networks.a.endpoints[0].fromRegistry: "a/b" is no name of a registry: write Kubernetes for everything in files, or the name of a Consul datacenter`,
		ends("{fromRegistry: a, fromCidr: b}"):        `networks.yaml:1:46: error [FL0116] MeshNetworks networks.a.endpoints[0].fromCidr: fromRegistry and fromCidr exclude one another; keep one of them`,
		gws("{port: 1}"):                              `networks.yaml:1:27: error [FL0120] MeshNetworks networks.a.gateways[0]: the gateway has no address; write address or registryServiceName`,
		gws("{address: 10.0.0.1}"):                    `networks.yaml:1:27: error [FL0120] MeshNetworks networks.a.gateways[0].port: port 0 is out of range; use 1 to 65535`,
		gws("{address: gw_1!, port: 1}"):              `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: "gw_1!" is neither an IP address nor a DNS name; write an address or a name of the gateway`,
		gws("{address: '*.example', port: 1}"):        `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: "*.example" is neither an IP address nor a DNS name; write an address or a name of the gateway`,
		gws("{address: gw.localhost, port: 1}"):       `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: "gw.localhost" is a name of a loopback address, and other hosts cannot connect to it; write an address or a name of the gateway`,
		gws("{address: 10.0.0.0.1, port: 1}"):         `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: "10.0.0.0.1" is neither an IP address nor a DNS name; write an address or a name of the gateway`,
		gws("{address: 0.0.0.0, port: 1}"):            `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: 0.0.0.0 is no address that other hosts can connect to; write an address of the gateway`,
		gws("{address: 127.0.0.2, port: 1}"):          `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: 127.0.0.2 is no address that other hosts can connect to; write an address of the gateway`,
		gws("{address: '::1', port: 1}"):              `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: ::1 is no address that other hosts can connect to; write an address of the gateway`,
		gws("{address: '::ffff:127.0.0.1', port: 1}"): `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: ::ffff:127.0.0.1 is no address that other hosts can connect to; write an address of the gateway`,
		gws("{address: '::ffff:0.0.0.0', port: 1}"):   `networks.yaml:1:37: error [FL0120] MeshNetworks networks.a.gateways[0].address: ::ffff:0.0.0.0 is no address that other hosts can connect to; write an address of the gateway`,
		gws("{registryServiceName: '*.a', port: 1}"):  `networks.yaml:1:49: error [FL0120] MeshNetworks networks.a.gateways[0].registryServiceName: "*.a" is not a DNS name: the part "*" holds a wildcard, which is not allowed there`,
		"networks: {a: {endpoints: [{fromCidr: 10.0.0.0/8}]}, b: {endpoints: [{fromCidr: 10.2.0.0/16}]}}": `networks.yaml:1:81: error [FL0120] MeshNetworks networks.b.endpoints[0].fromCidr: ` +
			`10.2.0.0/16 overlaps with 10.0.0.0/8 of network "a"; an address is in one network`,
		"networks: {a: {endpoints: [{fromCidr: 10.0.0.0/8}]}, b: {endpoints: [{fromCidr: '::ffff:10.2.0.0/112'}]}}": `networks.yaml:1:81: error [FL0120] MeshNetworks networks.b.endpoints[0].fromCidr: ` +
			`10.2.0.0/16 overlaps with 10.0.0.0/8 of network "a"; an address is in one network`,
		gws("{registryServiceName: a_b/c.mesh, port: 1}"): `networks.yaml:1:49: error [FL0120] MeshNetworks networks.a.gateways[0].registryServiceName: "a_b" is no name of a namespace; write HOST or NAMESPACE/HOST`,
		"networks: {a: {endpoints: [{fromRegistry: dc1}]}, b: {endpoints: [{fromRegistry: dc1}]}}": `networks.yaml:1:82: error [FL0120] MeshNetworks networks.b.endpoints[0].fromRegistry: ` +
			`the registry dc1 is in network "a" already; a registry is in one network`,
		"networks: {a: {gateways: [" + strings.Repeat("{address: 10.0.0.1, port: 1},", 65) + "]}}": `networks.yaml:1:26: error [FL0120] MeshNetworks networks.a.gateways: there are 65 gateways; a network has at most 64`,
	} {
		got, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(text))
		if got != nil || len(faults) == 0 || faults[0].String() != want {
			t.Errorf("%.60s:\n got %v %v\nwant %s", text, got, faults, want)
		}
	}
	for text, want := range map[string]string{
		gws("{address: 10.0.0.1, port: 1, locality: eu}"): "warning [FL0131] MeshNetworks networks.a.gateways[0].locality: no effect here",
		ends("{fromRegistry: kubernetes}"):                "warning [FL0131] MeshNetworks networks.a.endpoints[0].fromRegistry: no effect, unless a Consul datacenter has this name: for everything in files, write Kubernetes",
		ends("{fromRegistry: Kubernetes}"):                "",
		ends("{fromRegistry: dc1}"):                       "",
	} {
		got, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(text))
		if got == nil || len(faults) > 1 || (len(faults) == 1) != (want != "") || want != "" && !strings.Contains(faults[0].String(), want) {
			t.Errorf("%s: %v, %v", text, got, faults)
		}
	}
}

// TestMeshNetworksAreBounded holds that a file cannot make the server hold more than it allows.
func TestMeshNetworksAreBounded(t *testing.T) {
	t.Parallel()
	var many, long strings.Builder
	many.WriteString("networks:\n")
	for i := range 1001 {
		fmt.Fprintf(&many, "  n%d: {}\n", i)
	}
	long.WriteString("networks: {a: {endpoints: [")
	for i := range 10_001 {
		fmt.Fprintf(&long, "{fromCidr: 10.%d.%d.%d},", i>>16, i>>8&255, i&255)
	}
	long.WriteString("]}}")
	for text, want := range map[string]string{
		many.String(): "there are 1001 networks; at most 1000 are read",
		long.String(): "the networks have 10001 endpoints; at most 10000 are read",
	} {
		if got, faults := manifest.DecodeMeshNetworks("networks.yaml", []byte(text)); got != nil || len(faults) != 1 || !strings.Contains(faults[0].Message, want) {
			t.Errorf("got %v, %v; want %s", got, faults, want)
		}
	}
}

// TestNamesOfGateways holds that gateways may have names, up to a limit.
func TestNamesOfGateways(t *testing.T) {
	t.Parallel()
	text := func(n int) []byte {
		var b strings.Builder
		b.WriteString("networks:\n")
		for i := range n {
			fmt.Fprintf(&b, "  n%d: {gateways: [{address: GW-%d.Example., port: 15443}, {address: gw-%d.example, port: 15444}, {address: 203.0.113.1, port: 1}, {registryServiceName: gw.mesh, port: 1}]}\n", i, i, i)
		}
		return []byte(b.String())
	}
	got, faults := manifest.DecodeMeshNetworks("networks.yaml", text(2))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if names := fmt.Sprint(got.GatewayNames()); names != "[gw-0.example gw-1.example]" {
		t.Errorf("names %s", names)
	}
	if _, faults := manifest.DecodeMeshNetworks("networks.yaml", text(256)); len(faults) > 0 {
		t.Error(faults)
	}
	if got, faults := manifest.DecodeMeshNetworks("networks.yaml", text(257)); got != nil || !strings.Contains(fmt.Sprint(faults), "the gateways have 257 names; at most 256 are looked up") {
		t.Error(faults)
	}
}
