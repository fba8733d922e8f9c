package workload

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/credential"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// edge is a real Envoy with a listener that has a server for each credential. It waits for ever
// for a secret of which nobody says that it is absent.
type edge struct {
	*envoytest.Envoy
	s    *Server
	ca   *folderCA
	port int
}

func startEdge(t *testing.T, version string, s *Server, ca *folderCA, simple []string, mutual ...string) *edge {
	t.Helper()
	sds := func(name string) map[string]any {
		return map[string]any{"name": name, "sds_config": json.RawMessage(`{"resource_api_version":"V3","initial_fetch_timeout":"0s","api_config_source":{"api_type":"DELTA_GRPC",
		 "set_node_on_first_message_only":true,"transport_api_version":"V3","grpc_services":[{"envoy_grpc":{"cluster_name":"sds-grpc"}}]}}`)}
	}
	var chains []any
	for i, name := range append(simple, mutual...) {
		common := map[string]any{"tls_certificate_sds_secret_configs": []any{sds(credential.Prefix + name)}}
		verify := i >= len(simple)
		if verify {
			common["combined_validation_context"] = map[string]any{
				"default_validation_context": map[string]any{}, "validation_context_sds_secret_config": sds(credential.Prefix + name + credential.CASuffix),
			}
		}
		chains = append(chains, map[string]any{
			"filter_chain_match": map[string]any{"server_names": []string{name + ".test"}},
			"transport_socket": map[string]any{"name": "tls", "typed_config": map[string]any{
				"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext", "require_client_certificate": verify, "common_tls_context": common,
			}},
			"filters": []any{json.RawMessage(`{"name":"hcm","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
   "stat_prefix":"in","route_config":{"virtual_hosts":[{"name":"all","domains":["*"],"routes":[{"match":{"prefix":"/"},"direct_response":{"status":200}}]}]},
   "http_filters":[{"name":"router","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}]}}`)},
		})
	}
	port := envoytest.FreePorts(t, 1)[0]
	listener, err := json.Marshal(map[string]any{
		"name": "edge", "address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": port}},
		"listener_filters": []any{json.RawMessage(`{"name":"tls","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector"}}`)},
		"filter_chains":    chains,
	})
	if err != nil {
		t.Fatal(err)
	}
	b := fmt.Appendf(nil, edgeEnvoy, envoytest.AdminJSON, s.c.Socket, listener)
	return &edge{envoytest.Start(t, envoytest.Config{Bootstrap: b, Version: version}), s, ca, port}
}

const edgeEnvoy = `{"node":{"id":"edge","cluster":"edge"},"admin":%s,"static_resources":{
 "secrets":[{"name":"token","generic_secret":{"secret":{"inline_string":"` + testToken + `"}}}],
 "clusters":[{"name":"sds-grpc","connect_timeout":"1s","typed_extension_protocol_options":{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions":{
  "@type":"type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions","explicit_http_config":{"http2_protocol_options":{}},
  "http_filters":[{"name":"token","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.credential_injector.v3.CredentialInjector","overwrite":true,
   "credential":{"name":"token","typed_config":{"@type":"type.googleapis.com/envoy.extensions.http.injected_credentials.generic.v3.Generic","header":"` + tokenHeader + `","credential":{"name":"token"}}}}},
   {"name":"codec","typed_config":{"@type":"type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec"}}]}},
  "load_assignment":{"cluster_name":"sds-grpc","endpoints":[{"lb_endpoints":[{"endpoint":{"address":{"pipe":{"path":%q}}}}]}]}}],
 "listeners":[%s]}}`

// client calls one server of the edge; with a client certificate if there is one.
func (e *edge) client(t *testing.T, name string, keepAlive bool, own ...tls.Certificate) func(ctx context.Context) (*big.Int, error) {
	t.Helper()
	pool := x509.NewCertPool()
	pool.AddCert(e.ca.cert)
	c := &http.Client{Timeout: envoytest.Attempt, Transport: &http.Transport{
		DisableKeepAlives: !keepAlive, TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: name + ".test", Certificates: own, MinVersion: tls.VersionTLS12},
	}}
	t.Cleanup(c.CloseIdleConnections)
	return func(ctx context.Context) (*big.Int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("https://127.0.0.1:%d/", e.port), http.NoBody)
		if err != nil {
			return nil, err
		}
		res, err := c.Do(req)
		if err != nil {
			return nil, err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			return nil, err
		}
		return res.TLS.PeerCertificates[0].SerialNumber, nil
	}
}

// presents waits until a server presents a certificate.
func (e *edge) presents(t *testing.T, name string, serial *big.Int) {
	t.Helper()
	call := e.client(t, name, false)
	envoytest.Eventually(t, deadline, func() error {
		got, err := call(t.Context())
		if err == nil && got.Cmp(serial) != 0 {
			err = fmt.Errorf("serial is %d, want %d", got, serial)
		}
		return err
	})
}

// refuses waits until the handshakes of a server fail; why is in the error of the client.
func (e *edge) refuses(t *testing.T, name, why string, own ...tls.Certificate) {
	t.Helper()
	call := e.client(t, name, false, own...)
	envoytest.Eventually(t, deadline, func() error {
		switch _, err := call(t.Context()); {
		case err == nil:
			return errors.New("it answers")
		case !strings.Contains(err.Error(), why):
			return fmt.Errorf("it fails with %w, want %q", err, why)
		}
		return nil
	})
}

func eachVersion(t *testing.T, test func(t *testing.T, version string)) {
	t.Helper()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			envoytest.BinaryVersion(t, version) // or skip, before anything runs
			test(t, version)
		})
	}
}

// TestBadCredentialsFailAlone starts an Envoy with servers on one port, of which one has a good
// credential: the others fail, each by itself, and serve once they are repaired.
func TestBadCredentialsFailAlone(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version string) {
		t.Helper()
		s, ca := credentialServer(t)
		later := time.Now().Add(30 * time.Minute)
		good := ca.put(t, "good", later)
		ca.put(t, "old", time.Now().Add(-time.Minute))
		_, chain, _ := ca.issue(t, "half.test", later)
		_, _, key := ca.issue(t, "half.test", later)
		ca.write(t, "half", "tls.crt", chain)
		ca.write(t, "half", "tls.key", key)
		ca.write(t, "cut", "tls.crt", chain[:99])
		ca.write(t, "cut", "tls.key", key)
		bad := []string{"absent", "half", "cut"}
		e := startEdge(t, version, s, ca, append(bad, "good", "old"))
		e.presents(t, "good", good)
		for _, name := range bad {
			e.refuses(t, name, "")
		}
		e.refuses(t, "old", "expired")
		for _, name := range append(bad, "old") {
			e.presents(t, name, ca.put(t, name, later))
		}
		e.presents(t, "good", good)
		e.NoRejections(t)
	})
}

// TestCredentialsRotateUnderLoad rotates a certificate in three ways, while 500 requests a second
// arrive on old and new connections: none fails.
func TestCredentialsRotateUnderLoad(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version string) {
		t.Helper()
		s, ca := credentialServer(t)
		later := time.Now().Add(30 * time.Minute)
		first := ca.put(t, "a", later)
		e := startEdge(t, version, s, ca, []string{"a"})
		e.presents(t, "a", first)
		done, finish := context.WithCancel(t.Context())
		var load sync.WaitGroup
		var sent, failed atomic.Int64
		var reason atomic.Value
		kept, fresh := e.client(t, "a", true), e.client(t, "a", false)
		const interval, workers, each = 2 * time.Millisecond, 8, 10
		ticks := make(chan int64)
		load.Go(func() {
			defer close(ticks)
			ticker := time.NewTicker(interval)
			defer ticker.Stop()
			for i := int64(0); ; i++ {
				select {
				case <-done.Done():
					return
				case <-ticker.C:
				}
				select {
				case ticks <- i:
				case <-done.Done():
					return
				}
			}
		})
		for range workers {
			load.Go(func() {
				for i := range ticks {
					call := kept
					if i%each == 0 {
						call = fresh
					}
					sent.Add(1)
					if _, err := call(context.WithoutCancel(t.Context())); err != nil {
						failed.Add(1)
						reason.Store(err.Error())
					}
				}
			})
		}
		// File by file: between, certificate and key do not fit.
		serial, chain, key := ca.issue(t, "a.test", later)
		ca.write(t, "a", "tls.crt", chain)
		envoytest.Eventually(t, deadline, func() error {
			if is := s.Credentials(); len(is) != 1 || is[0].State != credential.Mismatch || !is[0].Served {
				return fmt.Errorf("the status does not say that the rotation is half written: %+v", is)
			}
			return nil
		})
		ca.write(t, "a", "tls.key", key)
		e.presents(t, "a", serial)
		// The whole folder at once, as atomic writers do, and then the folder itself.
		serial = atomicPut(t, ca, "a", "..1", later)
		e.presents(t, "a", serial)
		serial = atomicPut(t, ca, "a", "..2", later)
		e.presents(t, "a", serial)
		envoytest.Eventually(t, deadline, func() error {
			if n := sent.Load(); n < 1000 {
				return fmt.Errorf("only %d requests so far", n)
			}
			return nil
		})
		finish()
		load.Wait()
		if failed.Load() > 0 {
			t.Errorf("%d of %d requests failed, the last: %v", failed.Load(), sent.Load(), reason.Load())
		}
		e.NoRejections(t)
	})
}

// atomicPut writes a certificate as atomic writers do: a new directory, to which a link is swapped.
func atomicPut(t *testing.T, ca *folderCA, folder, revision string, until time.Time) *big.Int {
	t.Helper()
	serial, chain, key := ca.issue(t, folder+".test", until)
	in := filepath.Join(ca.dir, folder)
	if err := os.MkdirAll(filepath.Join(in, revision), 0o750); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(in, revision, "tls.crt"), chain)
	write(t, filepath.Join(in, revision, "tls.key"), key)
	link := func(to, at string) {
		if err := errors.Join(os.Symlink(to, at+".new"), os.Rename(at+".new", at)); err != nil {
			t.Fatal(err)
		}
	}
	link(revision, filepath.Join(in, "..data"))
	for _, name := range []string{"tls.crt", "tls.key"} {
		if to, _ := os.Readlink(filepath.Join(in, name)); to != "..data/"+name {
			link("..data/"+name, filepath.Join(in, name))
		}
	}
	return serial
}

// TestRevokedClients: MUTUAL takes clients of ca.crt that are not in ca.crl; a list that cannot be
// read revokes what the last good one revoked, and never nothing.
func TestRevokedClients(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, version string) {
		t.Helper()
		s, ca := credentialServer(t)
		later := time.Now().Add(30 * time.Minute)
		serial := ca.put(t, "m", later)
		ca.write(t, "m", "ca.crt", ca.rootPEM())
		ca.put(t, "unread", later)
		ca.write(t, "unread", "ca.crt", ca.rootPEM())
		ca.write(t, "unread", "ca.crl", "no list")
		ownCertificate := func() (tls.Certificate, *big.Int) {
			n, chain, key := ca.issue(t, "client", later)
			c, err := tls.X509KeyPair([]byte(chain), []byte(key))
			if err != nil {
				t.Fatal(err)
			}
			return c, n
		}
		one, _ := ownCertificate()
		two, revoked := ownCertificate()
		e := startEdge(t, version, s, ca, nil, "m", "unread")
		takes := func(own tls.Certificate) {
			t.Helper()
			call := e.client(t, "m", false, own)
			envoytest.Eventually(t, deadline, func() error {
				got, err := call(t.Context())
				if err == nil && got.Cmp(serial) != 0 {
					err = fmt.Errorf("serial is %d", got)
				}
				return err
			})
		}
		takes(one)
		takes(two)
		e.refuses(t, "m", "certificate required")
		e.refuses(t, "unread", "", one)
		ca.write(t, "m", "ca.crl", ca.revoke(t, revoked))
		e.refuses(t, "m", "revoked", two)
		takes(one)
		ca.write(t, "m", "ca.crl", "no list")
		envoytest.Eventually(t, deadline, func() error {
			for _, c := range s.Credentials() {
				if c.Name == "m-cacert" && c.State == credential.Broken && c.Served {
					return nil
				}
			}
			return fmt.Errorf("the status does not say so: %+v", s.Credentials())
		})
		e.refuses(t, "m", "revoked", two)
		takes(one)
		e.NoRejections(t)
	})
}
