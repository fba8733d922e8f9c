package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/manifest"
)

// tlsSettingsMesh is a host with a service behind mTLS, and with a rule by which it calls a
// server outside by TLS.
const tlsSettingsMesh = `
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: shop}
spec: {mtls: {mode: STRICT}}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: shop}
spec:
  hosts: [outside.example]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: OUTPORT, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1, ports: {tcp: OUTSIDE}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: shop}
spec: {host: outside.example, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true, sni: outside.example}}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: lines, namespace: shop}
spec:
  ingress: [{port: {number: INPORT, name: tcp, protocol: TCP}, bind: 127.0.0.12, defaultEndpoint: "127.0.0.1:LINES"}]
  egress: [{port: {number: OUTPORT, name: tcp, protocol: TCP}, bind: 127.0.0.12, hosts: ["./*"]}]
`

// TestTLSSettingsOfTheMesh has each Envoy serve and originate TLS as MeshConfig says: meshMTLS is
// for servers in the mesh, tlsDefaults for what a DestinationRule asks for.
func TestTLSSettingsOfTheMesh(t *testing.T) {
	t.Parallel()
	suites, curves := manifest.TLSNames()
	for name, c := range map[string]struct {
		settings string
		v12      uint16        // the suite of a client with TLS 1.2; 0 means that it is refused
		offered  []tls.CurveID // by the Envoy as a client; nil means any
		suites   []uint16      // of TLS 1.2, by the Envoy as a client; nil means any
	}{
		"default": {"", tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, nil, nil},
		"tls13":   {"meshMTLS: {minProtocolVersion: TLSV1_3}\n", 0, nil, nil},
		"suite": {
			"meshMTLS: {minProtocolVersion: TLSV1_2, cipherSuites: [ECDHE-ECDSA-CHACHA20-POLY1305]}\n",
			tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, nil, nil,
		},
		"client": {
			"tlsDefaults: {minProtocolVersion: TLSV1_3, ecdhCurves: [P-384], cipherSuites: [ECDHE-ECDSA-AES128-GCM-SHA256]}\n",
			tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
			[]tls.CurveID{tls.CurveP384},
			[]uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
		},
		"everything": {
			fmt.Sprintf("meshMTLS: {cipherSuites: [%s]}\ntlsDefaults: {ecdhCurves: [%s], cipherSuites: [%s]}\n",
				strings.Join(suites, ", "), strings.Join(curves, ", "), strings.Join(suites, ", ")),
			tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
			[]tls.CurveID{tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519, tls.X25519MLKEM768},
			nil,
		},
	} {
		for _, version := range envoytest.Versions() {
			t.Run(name+"/"+version, func(t *testing.T) {
				t.Parallel()
				f := &fixture{ca: newAuthority(t), version: version}
				hellos := make(chan *tls.ClientHelloInfo, 16)
				outside := tlsOutside(t, f, hellos)
				ports := envoytest.FreePorts(t, 2)
				m := strings.NewReplacer("INPORT", strconv.Itoa(ports[0]), "OUTPORT", strconv.Itoa(ports[1]), "OUTSIDE", strconv.Itoa(outside), "LINES", strconv.Itoa(lineServer(t))).Replace(tlsSettingsMesh)
				e := f.start(t, snapshotOf(t, m, c.settings), proxyFile{Namespace: "shop", ServiceAccount: "orders", IP: serverIP, Interception: "NONE"})
				in, out := net.JoinHostPort(serverIP, strconv.Itoa(ports[0])), net.JoinHostPort(serverIP, strconv.Itoa(ports[1]))

				client := &tls.Config{Certificates: []tls.Certificate{f.ca.pair(t, webID)}, NextProtos: []string{"istio"}, InsecureSkipVerify: true}
				var state tls.ConnectionState
				envoytest.Eventually(t, envoytest.Patience, func() (err error) {
					state, err = lineByTLS(t.Context(), in, client)
					return err
				})
				if state.Version != tls.VersionTLS13 {
					t.Errorf("the server chose %s", tls.VersionName(state.Version))
				}
				client.MaxVersion = tls.VersionTLS12
				client.CipherSuites = []uint16{
					tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
				}
				state, err := lineByTLS(t.Context(), in, client)
				switch {
				case c.v12 == 0 && err == nil:
					t.Errorf("TLS 1.2 was accepted: %s", tls.CipherSuiteName(state.CipherSuite))
				case c.v12 != 0 && (err != nil || state.CipherSuite != c.v12):
					t.Errorf("TLS 1.2: %s, %v; want %s", tls.CipherSuiteName(state.CipherSuite), err, tls.CipherSuiteName(c.v12))
				}

				envoytest.Eventually(t, envoytest.Patience, func() error {
					line, err := sayAndWait(t.Context(), out, []byte("hello\n"), false)
					if err == nil && line != "echo hello\n" {
						err = fmt.Errorf("the server outside says %q", line)
					}
					return err
				})
				hello := <-hellos
				if c.offered != nil && !slices.Equal(hello.SupportedCurves, c.offered) {
					t.Errorf("offers the curves %v, want %v", hello.SupportedCurves, c.offered)
				}
				old := slices.DeleteFunc(slices.Clone(hello.CipherSuites), func(id uint16) bool { return id>>8 == 0x13 }) // of TLS 1.3
				if c.suites != nil && !slices.Equal(old, c.suites) {
					t.Errorf("offers the suites %x, want %x", old, c.suites)
				}
				if !slices.Equal(hello.SupportedVersions, []uint16{tls.VersionTLS13, tls.VersionTLS12}) {
					t.Errorf("offers the versions %x", hello.SupportedVersions)
				}
				e.NoRejections(t)
			})
		}
	}
}

// tlsOutside echoes lines by TLS.
func tlsOutside(t *testing.T, f *fixture, hellos chan<- *tls.ClientHelloInfo) int {
	t.Helper()
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{f.ca.serverCertificate(t, "outside.example")}}
	cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		select {
		case hellos <- hello:
		default:
		}
		return nil, nil //nolint:nilnil // the configuration as it is
	}
	return accept(t, func(c net.Conn) {
		s := tls.Server(c, cfg)
		defer func() { _ = s.Close() }()
		if line, err := bufio.NewReader(s).ReadString('\n'); err == nil {
			_, _ = io.WriteString(s, "echo "+line)
		}
	})
}

// lineByTLS says a line by TLS, and returns the connection's state when it has come back.
func lineByTLS(ctx context.Context, address string, cfg *tls.Config) (tls.ConnectionState, error) {
	c, err := (&tls.Dialer{Config: cfg}).DialContext(ctx, "tcp", address)
	if err != nil {
		return tls.ConnectionState{}, err
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return tls.ConnectionState{}, err
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "echo hello\n" {
		return tls.ConnectionState{}, fmt.Errorf("got %q: %w", line, errors.Join(err, io.ErrUnexpectedEOF))
	}
	t, ok := c.(*tls.Conn)
	if !ok {
		return tls.ConnectionState{}, errors.New("no TLS connection")
	}
	return t.ConnectionState(), nil
}
