package sites

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/consultest"
	"github.com/fairlead/fairlead/internal/hosttest"
)

// catalogMesh has ledger be a service of site b's Consul. The same text is in both sites: in site b, the
// selector finds the instances of the catalog; in site a, which has no Consul, a WorkloadEntry without
// an address stands for them, which is reached through the gateway.
const catalogMesh = `
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: ledger-of-site-b, namespace: shop}
spec:
  labels: {consul.fairlead.io/service: ledger}
  serviceAccount: ledger
  network: site-b
  locality: site-b
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: ledger, namespace: shop}
spec:
  workloadSelector: {labels: {consul.fairlead.io/service: ledger}}
  ingress:
  - port: {number: 9080, name: http, protocol: HTTP}
    defaultEndpoint: 127.0.0.1:8080
  egress:
  - hosts: ["./*"]
`

// TestConsulInOneSite has the hosts of site b come from a Consul that site a does not reach.
func TestConsulInOneSite(t *testing.T) {
	consultest.Binary(t)
	s := newSites(t)
	consul := consultest.Start(t, consultest.Options{})
	forward(t, s.b.Control, "127.0.0.1:8500", consul.HostPort())
	s.b.serverArgs = []string{"--consul-address", "127.0.0.1:8500", "--consul-mesh-namespace", "shop", "--consul-service", "ledger:tls=istio,protocol=http"}
	s.b.serve = func(label string) {
		h := s.b.hosts[label]
		h.StartAgent("shop/ledger", h.IP4(), "--probe-http", "127.0.0.1:8080/healthz", "--probe-period", probePeriod)
	}
	catalog := consul.Client().Agent()
	for _, label := range []string{"orders-b1", "orders-b2"} {
		if err := catalog.ServiceRegister(&api.AgentServiceRegistration{ID: label, Name: "ledger", Address: s.b.hosts[label].IP4(), Port: 9080}); err != nil {
			t.Fatal(err)
		}
	}
	s.prepare = func() { inCatalog(s) }
	s.start()
	s.a.awaitEach(ledger, "orders-b1", "orders-b2")
	s.b.awaitOnly(ledger, "orders-b1", "orders-b2")
	if err := catalog.ServiceDeregister("orders-b1"); err != nil {
		t.Fatal(err)
	}
	s.b.awaitOnly(ledger, "orders-b2")
	s.a.awaitOnly(ledger, "orders-b2")
}

// inCatalog has the mesh of the example be one where site b's hosts are in Consul.
func inCatalog(s *sites) {
	s.each(func(l *site) {
		own, _, _ := strings.Cut(s.example("mesh/site-b.yaml"), "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata:\n  name: orders-b1")
		l.Write("site-b.yaml", own)
		l.Edit("services.yaml", `ledger: "yes"`, "consul.fairlead.io/service: ledger")
		l.Write("catalog.yaml", catalogMesh)
	})
	s.networks(strings.Replace(s.example("mesh-networks.yaml"), "  site-b:\n", "  site-b:\n    endpoints: [{fromRegistry: dc1}]\n", 1))
}

// forward has a program on a host pass connections on to an address of this machine.
func forward(t *testing.T, h *hosttest.Host, at, to string) {
	t.Helper()
	var l net.Listener
	h.As(0, func() {
		var lc net.ListenConfig
		var err error
		if l, err = lc.Listen(t.Context(), "tcp", at); err != nil {
			t.Error(err)
		}
	})
	if l == nil {
		t.FailNow()
	}
	var all sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); all.Wait() })
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { pass(t.Context(), c, to) })
		}
	})
}

func pass(ctx context.Context, c net.Conn, to string) {
	defer c.Close()
	var d net.Dialer
	far, err := d.DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer far.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = c.Close(), far.Close() })
	defer stop()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, far}, {far, c}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			if half, ok := way[0].(*net.TCPConn); ok {
				_ = half.CloseWrite()
			}
		})
	}
	both.Wait()
}
