package dns

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	mdns "github.com/miekg/dns"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// dnsmasq finds the program of the system, or of the project's tools.
func dnsmasq(t *testing.T) string {
	t.Helper()
	own := filepath.Join(envoytest.ModuleRoot(t), ".tools", "dnsmasq-2.90", "dnsmasq")
	if _, err := os.Stat(own); err == nil {
		return own
	}
	path, err := exec.LookPath("dnsmasq")
	if err != nil {
		envoytest.Missing(t, "dnsmasq is not installed: tools/dnsmasq/install.py")
	}
	return path
}

// dropIn is the first example of a section of docs/dns.md.
func dropIn(t *testing.T, section string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(envoytest.ModuleRoot(t), "docs", "dns.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "\n## "+section+"\n")
	_, rest, found := strings.Cut(rest, "```\n")
	text, _, closed := strings.Cut(rest, "```\n")
	if !ok || !found || !closed {
		t.Fatalf("docs/dns.md has no example for %s", section)
	}
	return text
}

// TestDnsmasq runs a real dnsmasq with the drop-in of docs/dns.md: it sends names of the mesh to the
// agent, and no others. If the agent's nameserver is that dnsmasq, a name that nobody knows does not
// become many queries.
func TestDnsmasq(t *testing.T) {
	t.Parallel()
	program := dnsmasq(t)
	u := newUpstream(t, world)
	s, at := startHasty(t, shop(t), u.at)
	hash := func(address string) string { return strings.Replace(address, ":", "#", 1) }
	udp, tcp, err := listenBoth(t.Context(), loopback()[0])
	if err != nil {
		t.Fatal(err)
	}
	stub := udp.LocalAddr().String()
	_, port, _ := net.SplitHostPort(stub)
	_, _ = udp.Close(), tcp.Close()
	conf := filepath.Join(t.TempDir(), "dnsmasq.conf")
	text := strings.ReplaceAll(dropIn(t, "dnsmasq"), "127.0.0.1#15053", hash(at)) +
		"no-resolv\nno-hosts\nserver=" + hash(u.at) + "\nlisten-address=127.0.0.1\nbind-interfaces\nport=" + port + "\ncache-size=0\npid-file=\nuser=\n"
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--keep-in-foreground", "--log-facility=-", "--conf-file="+conf)
	var log strings.Builder
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	await(t, "dnsmasq", func() bool {
		c, err := net.Dial("tcp", stub)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	for _, c := range []struct {
		name string
		typ  uint16
		want string
	}{
		{"api.lab.", mdns.TypeA, "NOERROR; A 240.240.0.1"},
		{"api.lab.", mdns.TypeAAAA, "NOERROR; AAAA 2001:2::1"},
		{"a.wild.lab.", mdns.TypeA, "NOERROR; A 240.240.0.2"},
		{"_http._tcp.api.lab.", mdns.TypeSRV, "NOERROR; SRV 1 1 80 api.lab."},
		{"1.0.240.240.in-addr.arpa.", mdns.TypePTR, "NOERROR; PTR api.lab."},
		{"www.example.", mdns.TypeA, "NOERROR; A 192.0.2.1"},
		{"no.such.lab.", mdns.TypeA, "NXDOMAIN"},
	} {
		before := s.Status().Queries
		for _, network := range []string{"udp", "tcp"} {
			if got := said(ask(t, network, stub, c.name, c.typ)); got != c.want {
				t.Errorf("%s %s: %s, want %s", network, c.name, got, c.want)
			}
		}
		if asked := s.Status().Queries > before; asked != (c.name != "www.example.") {
			t.Errorf("the agent was asked for %s: %v", c.name, asked)
		}
	}
	s.forward.use(t, []string{stub})
	before := s.Status().Queries
	if got := said(ask(t, "udp", at, "no.such.lab.", mdns.TypeA)); got != "SERVFAIL" {
		t.Errorf("in a loop of one domain: %s", got)
	}
	const most = 20
	if n := s.Status().Queries - before; n > most {
		t.Errorf("one query became %d", n)
	}
	if got := said(ask(t, "udp", at, "www.example.", mdns.TypeA)); got != "NOERROR; A 192.0.2.1" {
		t.Errorf("another domain: %s", got)
	}
}
