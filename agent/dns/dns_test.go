package dns

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	mdns "github.com/miekg/dns"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveEnv); dir != "" {
		if err := serveForCost(dir); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// name is the resource of a host with addresses.
func name(host string, addresses ...string) *stream.Resource {
	return encoded(host, &dnsv3.DnsTable_DnsVirtualDomain{Name: host, Endpoint: &dnsv3.DnsTable_DnsEndpoint{
		EndpointConfig: &dnsv3.DnsTable_DnsEndpoint_AddressList{AddressList: &dnsv3.DnsTable_AddressList{Address: addresses}},
	}})
}

// ports is the resource of a host with ports, SERVICE/PROTOCOL:PORT.
func ports(host string, list ...string) *stream.Resource {
	services := &dnsv3.DnsTable_DnsServiceList{}
	for _, text := range list {
		head, number, _ := strings.Cut(text, ":")
		service, protocol, _ := strings.Cut(head, "/")
		var port uint32
		_, _ = fmt.Sscan(number, &port)
		services.Services = append(services.Services, &dnsv3.DnsTable_DnsService{
			ServiceName: service, Protocol: &dnsv3.DnsTable_DnsServiceProtocol{ProtocolConfig: &dnsv3.DnsTable_DnsServiceProtocol_Name{Name: protocol}},
			Targets: []*dnsv3.DnsTable_DnsServiceTarget{{Port: port}},
		})
	}
	return encoded(bootstrap.NamePorts+host, &dnsv3.DnsTable_DnsVirtualDomain{Name: host, Endpoint: &dnsv3.DnsTable_DnsEndpoint{
		EndpointConfig: &dnsv3.DnsTable_DnsEndpoint_ServiceList{ServiceList: services},
	}})
}

func encoded(resource string, m proto.Message) *stream.Resource {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return stream.NewResource(bootstrap.NameType, stream.Resource{Name: resource, Version: "1", Body: b})
}

// tableOf has names.
func tableOf(t testing.TB, list ...*stream.Resource) *Table {
	t.Helper()
	table := &Table{}
	table.SetDomain("shop.svc.cluster.local")
	if refused := table.Update(list, nil, true); len(refused) > 0 {
		t.Fatalf("refused: %v", refused)
	}
	return table
}

// shop is the table of most tests.
func shop(t testing.TB) *Table {
	t.Helper()
	return tableOf(t,
		name("api.lab", "240.240.0.1", "2001:2::1"), ports("api.lab", "http/tcp:80", "grpc/tcp:9090", "dns/udp:53"),
		name("v4.lab", "10.1.0.1", "10.1.0.2", "10.1.0.3"),
		name("*.wild.lab", "240.240.0.2"), name("*.deep.wild.lab", "240.240.0.3"), name("exact.wild.lab", "240.240.0.4"),
		name("web.service.consul", "240.240.0.5"), ports("web.service.consul", "http/tcp:8080"),
		name("cart.shop.svc.cluster.local", "240.240.0.6"), name("cart.other.svc.cluster.local", "240.240.0.7"),
	)
}

// start runs a server at a free port, with the given nameservers, and returns where it listens.
func start(t testing.TB, table *Table, upstreams ...string) (*Server, string) {
	t.Helper()
	return startEdited(t, table, func(*Server) {}, upstreams...)
}

func startEdited(t testing.TB, table *Table, edit func(s *Server), upstreams ...string) (*Server, string) {
	t.Helper()
	dir := t.TempDir()
	conf := filepath.Join(dir, "resolv.conf")
	write(t, conf, upstreams...)
	s, err := New(Config{
		Logger: slog.New(slog.DiscardHandler), Table: table, Addresses: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")},
		ResolvConf: conf, Stub: filepath.Join(dir, "stub", "resolv.conf"),
	})
	if err != nil {
		t.Fatal(err)
	}
	edit(s)
	ctx, cancel := contextOf(t)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	await(t, "listening", func() bool { return s.listening.Load() != nil })
	if len(upstreams) > 0 {
		await(t, "upstreams", func() bool { return len(s.forward.current()) > 0 })
	}
	return s, (*s.listening.Load())[0]
}

// write writes a resolv.conf as editors do.
func write(t testing.TB, path string, nameservers ...string) {
	t.Helper()
	var b strings.Builder
	for _, n := range nameservers {
		b.WriteString("nameserver " + n + "\n")
	}
	if err := os.WriteFile(path+".new", []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatalf("waiting for %s took too long", what)
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // polls
	}
}

// ask asks by UDP or TCP.
func ask(t testing.TB, network, at, qname string, qtype uint16, edit ...func(*mdns.Msg)) *mdns.Msg {
	t.Helper()
	m := new(mdns.Msg)
	m.SetQuestion(qname, qtype)
	for _, e := range edit {
		e(m)
	}
	c := &mdns.Client{Net: network, Timeout: envoytest.Attempt, UDPSize: mdns.MaxMsgSize - 1}
	r, _, err := c.Exchange(m, at)
	if err != nil {
		t.Fatalf("asking for %s %s: %v", qname, mdns.TypeToString[qtype], err)
	}
	if r.Id != m.Id || r.Rcode != mdns.RcodeNotImplemented && (len(r.Question) != 1 || r.Question[0] != m.Question[0]) {
		t.Errorf("the answer is to another question: %v", r.Question)
	}
	return r
}

// said is an answer in one line: the records of the answer, sorted.
func said(r *mdns.Msg) string {
	var out []string
	for _, rr := range r.Answer {
		text := strings.TrimPrefix(rr.String(), rr.Header().String())
		out = append(out, mdns.TypeToString[rr.Header().Rrtype]+" "+text)
	}
	slices.Sort(out)
	return strings.Join(append([]string{mdns.RcodeToString[r.Rcode]}, out...), "; ")
}

// TestAnswers is the table of queries for names of the mesh.
func TestAnswers(t *testing.T) {
	t.Parallel()
	_, at := start(t, shop(t))
	const none = "SERVFAIL" // nobody else is asked in this test
	for _, c := range []struct {
		name string
		typ  uint16
		want string
	}{
		{"api.lab.", mdns.TypeA, "NOERROR; A 240.240.0.1"},
		{"api.lab.", mdns.TypeAAAA, "NOERROR; AAAA 2001:2::1"},
		{"API.lAb.", mdns.TypeA, "NOERROR; A 240.240.0.1"},
		{"api.lab.", mdns.TypeTXT, "NOERROR"},
		{"api.lab.", mdns.TypeHTTPS, "NOERROR"},
		{"api.lab.", mdns.TypeANY, "NOERROR; HINFO \"RFC8482\" \"\""},
		{"api.lab.", mdns.TypeAXFR, "REFUSED"},
		{"v4.lab.", mdns.TypeA, "NOERROR; A 10.1.0.1; A 10.1.0.2; A 10.1.0.3"},
		{"v4.lab.", mdns.TypeAAAA, "NOERROR"},
		{"lab.", mdns.TypeA, none},
		{"below.api.lab.", mdns.TypeA, none},
		{".", mdns.TypeNS, none},
		{"a.wild.lab.", mdns.TypeA, "NOERROR; A 240.240.0.2"},
		{"a.b.wild.lab.", mdns.TypeA, "NOERROR; A 240.240.0.2"},
		{"a.deep.wild.lab.", mdns.TypeA, "NOERROR; A 240.240.0.3"},
		{"exact.wild.lab.", mdns.TypeA, "NOERROR; A 240.240.0.4"},
		{"wild.lab.", mdns.TypeA, none},
		{"*.wild.lab.", mdns.TypeA, "NOERROR; A 240.240.0.2"},
		{"web.service.consul.", mdns.TypeA, "NOERROR; A 240.240.0.5"},
		{"web.service.consul.", mdns.TypeSRV, "NOERROR; SRV 1 1 8080 web.service.consul."},
		{"_web._tcp.service.consul.", mdns.TypeSRV, "NOERROR; SRV 1 1 8080 web.service.consul."},
		{"_http._tcp.api.lab.", mdns.TypeSRV, "NOERROR; SRV 1 1 80 api.lab."},
		{"_DNS._udp.api.lab.", mdns.TypeSRV, "NOERROR; SRV 1 1 53 api.lab."},
		{"_http._tcp.api.lab.", mdns.TypeA, "NOERROR"},
		{"_http._udp.api.lab.", mdns.TypeSRV, none},
		{"_http._tcp.v4.lab.", mdns.TypeSRV, none},
		{"cart.", mdns.TypeA, "NOERROR; A 240.240.0.6"},
		{"cart.shop.", mdns.TypeA, "NOERROR; A 240.240.0.6"},
		{"cart.other.", mdns.TypeA, "NOERROR; A 240.240.0.7"},
		{"cart.other.svc.", mdns.TypeA, "NOERROR; A 240.240.0.7"},
		{"cart.third.", mdns.TypeA, none},
		{"1.0.240.240.in-addr.arpa.", mdns.TypePTR, "NOERROR; PTR api.lab."},
		{"1.0.1.10.in-addr.arpa.", mdns.TypePTR, none}, // an address that others may name
		{"2.0.240.240.in-addr.arpa.", mdns.TypePTR, none},
		{reverseOf(t, "2001:2::1"), mdns.TypePTR, "NOERROR; PTR api.lab."},
		{reverseOf(t, "2001:2::99"), mdns.TypePTR, none},
		{`a\.wild.lab.`, mdns.TypeA, none}, // two labels, the first with a dot
	} {
		for _, network := range []string{"udp", "tcp"} {
			r := ask(t, network, at, c.name, c.typ)
			if got := said(r); got != c.want {
				t.Errorf("%s %s %s: %s, want %s", network, c.name, mdns.TypeToString[c.typ], got, c.want)
			}
			for _, rr := range r.Answer {
				if rr.Header().Name != c.name {
					t.Errorf("asked for %s, answered %s", c.name, rr.Header().Name)
				}
				if rr.Header().Ttl != 30 {
					t.Errorf("%s may be kept for %d s", c.name, rr.Header().Ttl)
				}
			}
			if ours := c.want != none && c.want != "REFUSED"; r.Authoritative != ours {
				t.Errorf("%s: authoritative %v", c.name, r.Authoritative)
			}
		}
	}
	srv := ask(t, "udp", at, "_http._tcp.api.lab.", mdns.TypeSRV)
	if len(srv.Extra) != 2 {
		t.Errorf("with the port come %v", srv.Extra)
	}
	chaos := ask(t, "udp", at, "version.bind.", mdns.TypeTXT, func(m *mdns.Msg) { m.Question[0].Qclass = mdns.ClassCHAOS })
	notify := ask(t, "udp", at, "api.lab.", mdns.TypeSOA, func(m *mdns.Msg) { m.Opcode = mdns.OpcodeNotify })
	version := ask(t, "udp", at, "api.lab.", mdns.TypeA, func(m *mdns.Msg) { m.SetEdns0(1232, false); m.IsEdns0().SetVersion(1) })
	if chaos.Rcode != mdns.RcodeRefused || notify.Rcode != mdns.RcodeNotImplemented || version.Rcode != mdns.RcodeBadVers {
		t.Errorf("CH: %s; NOTIFY: %s; EDNS 1: %s", said(chaos), said(notify), said(version))
	}
}

// TestNamesOfOthers has hosts that a tenant declares for everybody, to have the names of this host,
// of addresses, and of the control plane.
func TestNamesOfOthers(t *testing.T) {
	t.Parallel()
	const evil = "240.240.6.6"
	table := &Table{}
	table.SetDomain("shop.svc.cluster.local")
	table.SetOthers([]string{"Mesh.lab", "control"})
	hosts := []string{"localhost", "*.localhost", "*.arpa", "*.in-addr.arpa", "*.lab", "mesh.lab", "mesh.lab.corp.example", "control", "control.shop.svc.cluster.local", "control.corp.example"}
	list := []*stream.Resource{}
	for _, h := range hosts {
		list = append(list, name(h, evil), ports(h, "http/tcp:80"))
	}
	table.Update(list, nil, true)
	_, at := start(t, table)
	for _, n := range []string{
		"localhost.", "LOCALHOST.", "a.localhost.", "1.0.0.127.in-addr.arpa.", "0/26.2.0.192.in-addr.arpa.", "home.arpa.", "mesh.lab.", "MESH.LAB.", "mesh.lab.corp.example.", "control.",
		"control.corp.example.", "_http._tcp.localhost.", "_localhost._tcp.", "_mesh._tcp.lab.",
	} {
		for _, typ := range []uint16{mdns.TypeA, mdns.TypeAAAA, mdns.TypePTR, mdns.TypeSRV, mdns.TypeTXT} {
			if got := said(ask(t, "udp", at, n, typ)); got != "SERVFAIL" { // nobody else is asked in this test
				t.Errorf("%s %s: %s", n, mdns.TypeToString[typ], got)
			}
		}
	}
	if got := said(ask(t, "udp", at, "meshes.lab.", mdns.TypeA)); got != "NOERROR; A "+evil {
		t.Errorf("another host: %s", got)
	}
}

func reverseOf(t testing.TB, address string) string {
	t.Helper()
	out, err := mdns.ReverseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestOrderIsRandom: clients that take the first address spread.
func TestOrderIsRandom(t *testing.T) {
	t.Parallel()
	_, at := start(t, shop(t))
	first := map[string]bool{}
	for range 200 {
		r := ask(t, "udp", at, "v4.lab.", mdns.TypeA)
		first[r.Answer[0].String()] = true
	}
	if len(first) != 3 {
		t.Errorf("first were %v", first)
	}
}

// TestSizes: an answer is never larger than the client takes it; what is left out is there by TCP.
func TestSizes(t *testing.T) {
	t.Parallel()
	var many []string
	for i := range 100 {
		many = append(many, fmt.Sprintf("240.1.0.%d", i+1))
	}
	_, at := start(t, tableOf(t, name("many.lab", many...)))
	for _, size := range []int{0, 100, 512, 700, 1232, 4096, 65535} {
		r := ask(t, "udp", at, "many.lab.", mdns.TypeA, func(m *mdns.Msg) {
			if size > 0 {
				m.SetEdns0(uint16(size), true)
			}
		})
		r.Compress = true // as it came
		b, err := r.Pack()
		if err != nil {
			t.Fatal(err)
		}
		most := max(size, 512)
		if whole := len(r.Answer) == len(many); len(b) > most || r.Truncated == whole || whole != (most > 2000) || (r.IsEdns0() != nil) != (size > 0) {
			t.Errorf("%d bytes taken: %d bytes, %d addresses, truncated %v, EDNS %v", size, len(b), len(r.Answer), r.Truncated, r.IsEdns0())
		}
	}
	if r := ask(t, "tcp", at, "many.lab.", mdns.TypeA); r.Truncated || len(r.Answer) != len(many) {
		t.Errorf("by TCP: %d addresses, truncated %v", len(r.Answer), r.Truncated)
	}
}

// TestListensOnLoopbackOnly: other hosts can neither ask nor be flooded with answers.
func TestListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"0.0.0.0:53", "10.0.0.1:15053", "[::]:15053", "[2001:db8::1]:53"} {
		if _, err := New(Config{Logger: slog.New(slog.DiscardHandler), Table: &Table{}, Addresses: []netip.AddrPort{netip.MustParseAddrPort(at)}}); err == nil {
			t.Errorf("it would listen at %s", at)
		}
	}
	for _, at := range DefaultAddresses() {
		if !net.IP(at.Addr().AsSlice()).IsLoopback() {
			t.Errorf("it listens at %s", at)
		}
	}
}

func contextOf(t testing.TB) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(context.WithoutCancel(t.Context()))
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func loopback() []netip.AddrPort { return []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:0")} }

func mustAddr(t testing.TB, text string) netip.AddrPort {
	t.Helper()
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
