package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/registry/manifest"
)

const unixObjects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec:
  hosts: [a.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: "unix:///srv/a.sock"}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a}
spec: {address: "unix:///srv/a.sock"}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: a}
spec:
  ingress: [{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: "unix:///srv/a.sock"}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: b}
spec:
  egress: [{port: {number: 0, name: http, protocol: HTTP}, bind: "unix:///srv/a.sock", hosts: ["*/*"]}]
`

// TestUnixSocketsBySource keeps out, with the position, what a source may not name,
// and nothing where it may.
func TestUnixSocketsBySource(t *testing.T) {
	t.Parallel()
	file, faults := manifest.Decode(manifest.Options{}, "a.yaml", []byte(unixObjects))
	for _, o := range file.Objects {
		if !o.InForce() {
			t.Errorf("%s is not in force: %v %v", o.Meta.Key, faults, o.NotInForce)
		}
	}
	file, _ = manifest.Decode(manifest.Options{NoUnixSockets: true}, "a.yaml", []byte(unixObjects))
	if len(file.Objects) != 4 {
		t.Fatalf("read %d objects", len(file.Objects))
	}
	for i, at := range []string{
		"a.yaml:8:25: error [FL0130] ServiceEntry default/a spec.endpoints[0].address: not in force", "a.yaml:13:17: error [FL0130] WorkloadEntry default/a spec.address: not in force",
		"a.yaml:19:79: error [FL0130] Sidecar default/a spec.ingress[0].defaultEndpoint: not in force", "a.yaml:25:66: error [FL0130] Sidecar default/b spec.egress[0].bind: not in force",
	} {
		o := file.Objects[i]
		if o.InForce() || len(o.NotInForce) != 1 || !strings.HasPrefix(o.NotInForce[0].String(), at) || o.Fragment() != nil {
			t.Errorf("%s: %v, want %s", o.Meta.Key, o.NotInForce, at)
		}
	}
}

const fileObjects = `apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a}
spec: {host: a.example, trafficPolicy: {tls: {mode: MUTUAL, clientCertificate: /srv/a.pem, privateKey: srv/a.key, caCertificates: system, caCrl: /srv/a.crl}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: b}
spec: {host: b.example, subsets: [{name: v1, trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: SIMPLE, caCertificates: /etc/ca.pem}}]}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: c}
spec: {host: c.example, trafficPolicy: {tls: {mode: SIMPLE, caCertificates: system, sni: /c}}}
`

// TestFilesBySource keeps out what names a file of the host's where a source may not
// name any. Whoever names a key that an Envoy can read has requests sent with its
// identity, to any server.
func TestFilesBySource(t *testing.T) {
	t.Parallel()
	file, faults := manifest.Decode(manifest.Options{NoUnixSockets: true}, "a.yaml", []byte(fileObjects))
	for _, o := range file.Objects {
		if !o.InForce() {
			t.Errorf("%s is not in force: %v %v", o.Meta.Key, faults, o.NotInForce)
		}
	}
	file, _ = manifest.Decode(manifest.Options{NoFiles: true}, "a.yaml", []byte(fileObjects))
	if len(file.Objects) != 3 {
		t.Fatalf("read %d objects", len(file.Objects))
	}
	for i, want := range [][]string{
		{"spec.trafficPolicy.tls.clientCertificate", "spec.trafficPolicy.tls.privateKey", "spec.trafficPolicy.tls.caCrl"},
		{"spec.subsets[0].trafficPolicy.portLevelSettings[0].tls.caCertificates"},
		nil,
	} {
		o := file.Objects[i]
		if o.InForce() != (want == nil) || len(o.NotInForce) != len(want) {
			t.Errorf("%s: %v, want %q", o.Meta.Key, o.NotInForce, want)
		}
		for _, at := range want {
			if !slices.ContainsFunc(o.NotInForce, func(f manifest.Fault) bool {
				return strings.Contains(f.String(), at+": not in force") && strings.Contains(f.String(), "--allow-files")
			}) {
				t.Errorf("%s: no fault at %s in %v", o.Meta.Key, at, o.NotInForce)
			}
		}
	}
}

const localObjects = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: a}
spec:
  hosts: [a.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}, {address: 127.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: a}
spec: {address: "::ffff:169.254.169.254"}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: b}
spec:
  hosts: [b.example, ip6-localhost]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: c}
spec:
  hosts: [c.example]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
  endpoints: [{address: web.localhost}]
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: a}
spec:
  ingress: [{port: {number: 80, name: http, protocol: HTTP}, defaultEndpoint: "127.0.0.1:8080"}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: d}
spec:
  hosts: [localhost]
  addresses: [127.0.0.1]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
`

// TestLocalAddressesBySource keeps out endpoints that each Envoy would find on its own host, where
// their source may not name any. What a Sidecar says of its own host is none.
func TestLocalAddressesBySource(t *testing.T) {
	t.Parallel()
	file, faults := manifest.Decode(manifest.Options{NoUnixSockets: true, NoFiles: true}, "a.yaml", []byte(localObjects))
	for _, o := range file.Objects {
		if !o.InForce() {
			t.Errorf("%s is not in force: %v %v", o.Meta.Key, faults, o.NotInForce)
		}
	}
	file, _ = manifest.Decode(manifest.Options{NoLocalAddresses: true}, "a.yaml", []byte(localObjects))
	if len(file.Objects) != 6 {
		t.Fatalf("read %d objects", len(file.Objects))
	}
	for i, at := range []string{
		"a.yaml:8:46: error [FL0130] ServiceEntry default/a spec.endpoints[1].address: not in force: \"127.0.0.1\" is a loopback address",
		"a.yaml:13:17: error [FL0130] WorkloadEntry default/a spec.address: not in force: \"::ffff:169.254.169.254\" is a link-local address",
		"a.yaml:19:22: error [FL0130] ServiceEntry default/b spec.hosts[1]: not in force: \"ip6-localhost\" is a name of a loopback address",
		"a.yaml:30:25: error [FL0130] ServiceEntry default/c spec.endpoints[0].address: not in force: \"web.localhost\" is a name of a loopback address",
		"", "",
	} {
		o := file.Objects[i]
		if at == "" {
			if !o.InForce() {
				t.Errorf("%s: %v", o.Meta.Key, o.NotInForce)
			}
			continue
		}
		if o.InForce() || len(o.NotInForce) != 1 || !strings.HasPrefix(o.NotInForce[0].String(), at) || o.Fragment() != nil {
			t.Errorf("%s: %v, want %s", o.Meta.Key, o.NotInForce, at)
		}
	}
}
