package server

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/pki/svid"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// victim is where host a is, a loopback address so that a connection can come from it.
const victim = "127.0.3.1"

func entry(annotations string) string {
	return "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: one, namespace: shop, annotations: {" + annotations + "}}\n" +
		"spec: {address: " + victim + ", serviceAccount: cart, labels: {app: cart}}\n"
}

// machine is a host with a certificate of its own, that dials from an address.
type machine struct {
	t    *testing.T
	name string
	conn *grpc.ClientConn
}

// joined is a host that is entitled to shop/cart; more is of its token.
func (r *running) joined(name, from string, more func(*TokenRequest)) *machine {
	t := r.t
	t.Helper()
	in := TokenRequest{Host: name, Workloads: []string{"shop/cart"}}
	if more != nil {
		more(&in)
	}
	var made Token
	if err := r.client.Do(t.Context(), http.MethodPost, "/v1/tokens", in, &made); err != nil {
		t.Fatal(err)
	}
	token, err := svid.ParseJoinToken(made.Token)
	if err != nil {
		t.Fatal(err)
	}
	client, err := svid.NewClient(svid.ClientConfig{Servers: token.Servers})
	if err != nil {
		t.Fatal(err)
	}
	key, err := svid.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	id, err := client.Join(t.Context(), token, key)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+r.listener.Addr().String(),
		grpc.WithTransportCredentials(credentials.NewTLS(svid.ClientTLS(func() *svid.Identity { return id }))),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			d := net.Dialer{}
			if from != "" {
				d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
			}
			return d.DialContext(ctx, "tcp", to)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &machine{t, name, conn}
}

type deltaStream = grpc.BidiStreamingClient[discovery.DeltaDiscoveryRequest, discovery.DeltaDiscoveryResponse]

// claim opens a stream as the workload; err is why it is not let in.
func (m *machine) claim(name string) (s deltaStream, leave func(), err error) {
	m.t.Helper()
	s, leave = m.subscribe(name)
	_, err = s.Recv()
	return s, leave, err
}

// subscribe opens a stream as the workload and asks for clusters; the answer is not read.
func (m *machine) subscribe(name string) (s deltaStream, leave func()) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	m.t.Cleanup(cancel)
	node, err := (&bootstrap.Node{
		Type: bootstrap.TypeSidecar, Name: name, Namespace: "shop", Domain: "cluster.local",
		Address: netip.MustParseAddr(victim), ServiceAccount: "cart", AgentVersion: "1.0",
	}).Proto()
	if err != nil {
		m.t.Fatal(err)
	}
	s, err = discovery.NewAggregatedDiscoveryServiceClient(m.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := s.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: string(stream.ClusterType)}); err != nil && err != io.EOF { //nolint:errorlint // gRPC gives it bare
		m.t.Fatal(err)
	}
	return s, cancel
}

// reconnect claims the workload of a server that was restarted.
func (m *machine) reconnect(name string) error {
	m.t.Helper()
	for {
		_, _, err := m.claim(name)
		if grpcstatus.Code(err) != codes.Unavailable || m.t.Context().Err() != nil {
			return err
		}
	}
}

// say reports the health of the workload.
func say(s deltaStream, reason string) error {
	r := &discovery.DeltaDiscoveryRequest{TypeUrl: bootstrap.HealthType}
	if reason != "" {
		r.ErrorDetail = &rpcstatus.Status{Code: 1, Message: reason}
	}
	return s.Send(r)
}

// health is what the mesh has of the workload.
func (r *running) health() (mesh.Health, string) {
	list := r.registry.Snapshot().WorkloadsAt(victim)
	if len(list) != 1 {
		return 0, fmt.Sprint(len(list), " workloads")
	}
	return list[0].Health, list[0].HealthReason
}

func (r *running) waitHealth(want mesh.Health, reason string) {
	r.t.Helper()
	r.eventually(func() error {
		if h, why := r.health(); h != want || !strings.Contains(why, reason) {
			return fmt.Errorf("the workload is %s (%s), want %s (%s)", h, why, want, reason)
		}
		return nil
	})
}

// TestAHostSpeaksForItsOwn: host b has a certificate of the mesh, and its token
// entitles it to the service account of a's instance. It claims a's address, says
// that the instance is not well, and leaves. Whoever comes first, and by each proof of
// a, that has no effect once a is there, and b is named.
func TestAHostSpeaksForItsOwn(t *testing.T) {
	t.Parallel()
	type proof struct {
		annotations, from string
		token             func(*TokenRequest)
	}
	for name, p := range map[string]proof{
		"unproven":   {},
		"source":     {from: victim},
		"token":      {token: func(in *TokenRequest) { in.Addresses = []string{victim} }},
		"annotation": {annotations: "fairlead.io/host: a"},
	} {
		for _, first := range []string{"a", "b"} {
			if name == "unproven" && first == "b" {
				continue // then it is b's, as it always was: nothing shows otherwise
			}
			t.Run(name+"_"+first+"_first", func(t *testing.T) {
				t.Parallel()
				r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry(p.annotations)})))
				a, b := r.joined("a", p.from, p.token), r.joined("b", "", nil)
				var before deltaStream
				if first == "b" {
					s, _, err := b.claim("one")
					if (err != nil) != (name == "annotation") {
						t.Fatalf("b claims first: %v", err)
					}
					if err == nil {
						if err := say(s, "b says so"); err != nil {
							t.Fatal(err)
						}
						r.waitHealth(mesh.Unhealthy, "b says so")
						before = s
					}
				}
				s, leave, err := a.claim("one")
				if err != nil {
					t.Fatalf("a claims its own: %v", err)
				}
				if before != nil {
					for err == nil {
						_, err = before.Recv()
					}
					if grpcstatus.Code(err) != codes.PermissionDenied {
						t.Errorf("b's stream goes on: %v", err)
					}
				}
				if err := say(s, ""); err != nil {
					t.Fatal(err)
				}
				r.waitHealth(mesh.Healthy, "")
				for range 3 {
					if _, _, err := b.claim("one"); grpcstatus.Code(err) != codes.PermissionDenied {
						t.Fatalf("b claims what is a's: %v", err)
					}
				}
				if h, why := r.health(); h != mesh.Healthy {
					t.Errorf("the workload is %s: %s", h, why)
				}
				r.named(t, name)
				leave()
				r.waitHealth(mesh.HealthUnknown, "")
			})
		}
	}
}

// TestAProvenAddressIsOneHosts: a second workload is at the address that a has proven.
// b, which is entitled to it, too, gets it neither before nor after a is there; a host
// that connects from the address does.
func TestAProvenAddressIsOneHosts(t *testing.T) {
	t.Parallel()
	second := strings.Replace(entry(""), "name: one", "name: two", 1)
	for _, first := range []string{"a", "b"} {
		t.Run(first+"_first", func(t *testing.T) {
			t.Parallel()
			r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry(""), "b.yaml": second})))
			a := r.joined("a", "", func(in *TokenRequest) { in.Addresses = []string{"/" + victim} })
			b, c := r.joined("b", "", nil), r.joined("c", victim, nil)
			var before deltaStream
			if first == "b" {
				s, _, err := b.claim("two")
				if err != nil {
					t.Fatal(err)
				}
				before = s
			}
			if _, _, err := a.claim("one"); err != nil {
				t.Fatal(err)
			}
			if before != nil {
				var err error
				for err == nil {
					_, err = before.Recv()
				}
				if grpcstatus.Code(err) != codes.PermissionDenied {
					t.Errorf("b's stream goes on: %v", err)
				}
			}
			if _, _, err := b.claim("two"); grpcstatus.Code(err) != codes.PermissionDenied {
				t.Errorf("b claims a workload at a's address: %v", err)
			}
			if _, _, err := c.claim("two"); err != nil {
				t.Errorf("a second agent of the machine: %v", err)
			}
		})
	}
}

// named: b is named in the status and in the log, and a has its proof.
func (r *running) named(t *testing.T, proof string) {
	t.Helper()
	var p Proxies
	if err := r.client.Do(t.Context(), http.MethodGet, "/v1/proxies", nil, &p); err != nil {
		t.Fatal(err)
	}
	refused := false
	for _, x := range p.Refused {
		refused = refused || x.Host == "b" && strings.Contains(x.Reason, `"a"`) && strings.Contains(x.Reason, victim)
	}
	if !refused {
		t.Errorf("b is not named as refused: %+v", p.Refused)
	}
	if len(p.Conflicts) != 1 || p.Conflicts[0].Host != "b" || p.Conflicts[0].Holder != "a" || p.Conflicts[0].Proof != proof {
		t.Errorf("conflicts: %+v", p.Conflicts)
	}
	for _, x := range p.Proxies {
		if x.Connected && (x.Host != "a" || x.AddressProof != proof) {
			t.Errorf("proxy %s of host %s has proof %q, want %q", x.Name, x.Host, x.AddressProof, proof)
		}
	}
	if log := r.out.String(); !strings.Contains(log, "host=b") || strings.Count(log, "proxy not admitted") > 4 {
		t.Errorf("the log has %d lines of refusals", strings.Count(log, "proxy not admitted"))
	}
}

// TestClaimsOnDisk: the record of who has which address survives the server, in a file
// of its own, and is no condition of anything: a broken one is as good as none.
func TestClaimsOnDisk(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": entry("")}))
	r := start(t, cfg)
	a, b := r.joined("a", "", nil), r.joined("b", "", nil)
	if _, _, err := a.claim("one"); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cfg.StateDir, "claims.json")
	r.eventually(func() error {
		saved, err := claims{path}.LoadClaims()
		if err == nil && len(saved.Claims) != 1 {
			err = fmt.Errorf("saved: %+v", saved)
		}
		return err
	})
	cfg.XDSAddress = r.listener.Addr().String()
	r.stop()

	r = start(t, cfg)
	if err := b.reconnect("one"); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("after a restart b comes first: %v", err)
	}
	if h, why := r.health(); h == mesh.Unhealthy {
		t.Errorf("a restart takes the workload out: %s", why)
	}
	r.stop()

	put(t, path, "{")
	r = start(t, cfg)
	if err := b.reconnect("one"); err != nil {
		t.Errorf("nobody is on record: %v", err)
	}
	if !strings.Contains(r.out.String(), "reading claims.json failed") {
		t.Error("that the record is lost is not in the log")
	}
}

// TestRequireProvenAddresses: what nothing proves is refused, and the refusal says how
// to prove it.
func TestRequireProvenAddresses(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, map[string]string{"a.yaml": entry("")}))
	cfg.RequireProvenAddresses = true
	r := start(t, cfg)
	if _, _, err := r.joined("b", "", nil).claim("one"); grpcstatus.Code(err) != codes.PermissionDenied {
		t.Errorf("without a proof: %v", err)
	}
	for _, want := range []string{"fairlead.io/host: b", "--address " + victim, "--require-proven-addresses"} {
		if log := r.out.String(); !strings.Contains(log, want) {
			t.Errorf("the log does not say %q", want)
		}
	}
	if _, _, err := r.joined("a", "", func(in *TokenRequest) { in.Addresses = []string{victim} }).claim("one"); err != nil {
		t.Errorf("with a proof: %v", err)
	}
}

// TestHostRemovedFreesItsAddress: what a removed host had is free for the next one at
// once, and so it is when its name goes to another machine.
func TestHostRemovedFreesItsAddress(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"remove", "replace"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := start(t, config(t, treeOf(t, map[string]string{"a.yaml": entry("")})))
			a, b := r.joined("a", "", func(in *TokenRequest) { in.Addresses = []string{victim} }), r.joined("b", "", nil)
			if _, _, err := a.claim("one"); err != nil {
				t.Fatal(err)
			}
			if _, _, err := b.claim("one"); err == nil {
				t.Fatal("b is let in beside a")
			}
			if how == "remove" {
				if err := r.client.Do(t.Context(), http.MethodDelete, "/v1/hosts/a", nil, nil); err != nil {
					t.Fatal(err)
				}
			} else {
				r.joined("a", "", func(in *TokenRequest) { in.Replace = true })
			}
			r.eventually(func() error {
				_, _, err := b.claim("one")
				return err
			})
		})
	}
}
