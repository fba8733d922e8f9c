package traffic

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/fairlead/fairlead/internal/envoytest"
)

const labHosts = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.lab]
  addresses: [10.77.0.1]
  ports: [{number: 21080, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.9}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild, namespace: shop}
spec:
  hosts: ["*.wild.lab"]
  addresses: [10.77.0.2]
  ports: [{number: 21443, name: tls, protocol: TLS}]
  resolution: NONE
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: hidden, namespace: other}
spec:
  hosts: [hidden.lab]
  addresses: [10.77.0.3]
  exportTo: ["."]
  ports: [{number: 21080, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.9}]
`

// nameserver answers the same address for every name, at port 53 of an address, by UDP and TCP.
func nameserver(t *testing.T, address, answer string) (stop func()) {
	t.Helper()
	at, lc := net.JoinHostPort(address, "53"), &net.ListenConfig{}
	conn, err := lc.ListenPacket(t.Context(), "udp", at)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := lc.Listen(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg)
		r.SetReply(q)
		if q.Question[0].Qtype == dns.TypeA {
			rr, err := dns.NewRR(q.Question[0].Name + " 60 IN A " + answer)
			if err != nil {
				t.Error(err)
			}
			r.Answer = append(r.Answer, rr)
		}
		_ = w.WriteMsg(r)
	})
	var ended sync.WaitGroup
	servers := []*dns.Server{{PacketConn: conn, Handler: handler}, {Listener: listener, Handler: handler}}
	for _, srv := range servers {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		ended.Go(func() { _ = srv.ActivateAndServe() })
		<-started
	}
	return func() {
		for _, srv := range servers {
			_ = srv.Shutdown()
		}
		ended.Wait()
	}
}

// resolve asks by UDP and by TCP, which must say the same.
func resolve(at, name string, qtype uint16) (string, error) {
	said := map[string]string{}
	for _, network := range []string{"udp", "tcp"} {
		m := new(dns.Msg)
		m.SetQuestion(name, qtype)
		r, _, err := (&dns.Client{Net: network, Timeout: envoytest.Attempt}).Exchange(m, at)
		if err != nil {
			return "", err
		}
		words := []string{dns.RcodeToString[r.Rcode]}
		for _, rr := range r.Answer {
			words = append(words, strings.TrimPrefix(rr.String(), rr.Header().String()))
		}
		said[network] = strings.Join(words, " ")
	}
	if said["udp"] != said["tcp"] {
		return "", fmt.Errorf("by UDP %s, by TCP %s", said["udp"], said["tcp"])
	}
	return said["udp"], nil
}

// TestNames: an agent answers the names that its workload sees, and asks the host's nameservers for
// all others; names follow their hosts, and are there after a restart without a control plane.
func TestNames(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	at := net.JoinHostPort(p.Address(11), "15053")
	conf := filepath.Join(t.TempDir(), "resolv.conf")
	nameservers := func(addresses ...string) {
		t.Helper()
		text := ""
		for _, a := range addresses {
			text += "nameserver " + a + "\n" //nolint:perfsprint // few
		}
		if err := os.WriteFile(conf+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(conf+".new", conf); err != nil {
			t.Fatal(err)
		}
	}
	stop := nameserver(t, p.Address(53), "192.0.2.1")
	defer nameserver(t, p.Address(54), "192.0.2.2")()
	nameservers(p.Address(53))
	p.clientH.Agent = append(p.clientH.Agent, "--dns", "--dns-address", at, "--dns-resolv-conf", conf)
	last := `{number: 9000, name: tcp, protocol: TCP}` + "\n    bind: 127.0.0.11\n    hosts: [\"./echo.shop.internal\"]\n"
	p.Edit("client.yaml", last, last+"  - hosts: [\"./api.lab\", \"./*.wild.lab\", \"*/hidden.lab\"]\n")
	p.Write("lab.yaml", labHosts)
	p.StartServer()
	client, _ := p.startHosts()
	becomes := func(name string, qtype uint16, want string) {
		t.Helper()
		settle(t, func() error {
			got, err := resolve(at, name, qtype)
			if err == nil && got != want {
				err = fmt.Errorf("%s %s: %s, want %s", name, dns.TypeToString[qtype], got, want)
			}
			return err
		})
	}
	becomes("api.lab.", dns.TypeA, "NOERROR 10.77.0.1")
	becomes("api.lab.", dns.TypeAAAA, "NOERROR")
	becomes("_http._tcp.api.lab.", dns.TypeSRV, "NOERROR 1 1 21080 api.lab.")
	becomes("a.wild.lab.", dns.TypeA, "NOERROR 10.77.0.2")
	becomes("hidden.lab.", dns.TypeA, "NOERROR 192.0.2.1")
	becomes("www.example.", dns.TypeA, "NOERROR 192.0.2.1")
	if list, err := p.CLI("proxy-config", "name", "client", "--run-dir", p.RunDir("server")); err != nil || !strings.Contains(list, "api.lab") || strings.Contains(list, "hidden") {
		t.Errorf("names of client: %v\n%s", err, list)
	}
	if list, err := p.CLI("proxy-config", "name", "echo", "--run-dir", p.RunDir("server")); err != nil || strings.Contains(list, "api.lab") {
		t.Errorf("names of an agent that answers none: %v\n%s", err, list)
	}

	p.Edit("lab.yaml", "10.77.0.1", "10.77.0.9")
	becomes("api.lab.", dns.TypeA, "NOERROR 10.77.0.9")

	stop()
	becomes("www.example.", dns.TypeA, "SERVFAIL")
	becomes("api.lab.", dns.TypeA, "NOERROR 10.77.0.9")
	nameservers(p.Address(54))
	becomes("www.example.", dns.TypeA, "NOERROR 192.0.2.2")

	p.Server.Kill()
	client.Kill()
	again := p.StartAgent(p.clientH, "")
	becomes("api.lab.", dns.TypeA, "NOERROR 10.77.0.9")
	becomes("www.example.", dns.TypeA, "NOERROR 192.0.2.2")
	settle(t, func() error {
		status, err := p.Admin("client", "/v1/status")
		if err == nil && !strings.Contains(status, `"table":"loaded"`) {
			err = fmt.Errorf("status %s", status)
		}
		return err
	})
	if page, err := p.Admin("client", "/metrics"); err != nil || !strings.Contains(page, `fairlead_agent_dns_queries_total{answer="mesh"}`) {
		t.Errorf("metrics: %v\n%s", err, page)
	}
	again.Stop()
}
