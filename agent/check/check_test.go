package check_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/agent/check"
	"github.com/fairlead/fairlead/internal/envoytest"
)

// well is a host on which nothing is wrong that the test can know of.
func well(t *testing.T) check.Input {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return check.Input{
		StateDir: dir, RunDir: dir, Envoy: envoytest.Binary(t), Environ: os.Environ(), Address: netip.MustParseAddr("127.0.0.1"),
		Ask: func(context.Context) (check.Agent, error) { return check.Agent{Server: "10.0.0.1:15012"}, nil }, Now: time.Now,
	}
}

// of are the findings of one check.
func of(found []check.Finding, name string) (out []check.Finding) {
	for _, f := range found {
		if f.Check == name {
			out = append(out, f)
		}
	}
	return out
}

// tlsServer answers like a control plane whose certificate nobody knows.
func tlsServer(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go serve(l)
	return l.Addr().String()
}

// serve reads from each connection until it ends.
func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			_ = c.SetDeadline(time.Now().Add(envoytest.Patience))
			_, _ = c.Read(make([]byte, 1024))
			_, _ = c.Write([]byte("no TLS\n"))
			_ = c.Close()
		}()
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestFaults breaks one thing of a host after the other: the check that is for it says so and what to
// do, and no other check changes its mind.
func TestFaults(t *testing.T) {
	t.Parallel()
	taken, mute := listen(t), listen(t)
	go serve(mute)
	free := listen(t)
	nobody := free.Addr().String()
	_ = free.Close()
	stopped := func(in *check.Input) {
		in.Ask = func(context.Context) (check.Agent, error) {
			return check.Agent{}, errors.New("nobody answers at admin.sock")
		}
	}
	for name, c := range map[string]struct {
		broken      func(*check.Input)
		check, says string
		state       check.State
	}{
		"agent stopped":    {stopped, "agent", "nobody answers", check.Fault},
		"agent not ready":  {func(in *check.Input) { in.Ask = says(check.Agent{NotReady: []string{"no identity yet"}}) }, "agent", "no identity yet", check.Fault},
		"agent has doubts": {func(in *check.Input) { in.Ask = says(check.Agent{Server: "s", Problems: []string{"no control plane"}}) }, "agent", "no control plane", check.Warning},
		"clock behind": {func(in *check.Input) {
			write(t, in.StateDir, "clock.json", `{"version":1,"proven":"`+time.Now().Add(time.Hour).Format(time.RFC3339)+`"}`)
		}, "clock", "before the time that the control plane has certified", check.Fault},
		"open state":         {func(in *check.Input) { _ = os.Chmod(in.StateDir, 0o755) }, "disk", "every user of the host", check.Fault},
		"no run directory":   {func(in *check.Input) { in.RunDir += "/gone" }, "disk", "is gone while the agent runs", check.Fault},
		"no state yet":       {func(in *check.Input) { stopped(in); in.StateDir += "/new" }, "disk", "does not exist", check.Warning},
		"not joined":         {func(*check.Input) {}, "identity", "has no join token", check.Fault},
		"token unreadable":   {func(in *check.Input) { in.TokenErr = os.ErrNotExist }, "identity", "cannot be read", check.Fault},
		"token damaged":      {func(in *check.Input) { in.Token = "flt1.AAAA" }, "identity", "token", check.Fault},
		"identity damaged":   {func(in *check.Input) { write(t, in.StateDir, "host.json", "{") }, "identity", "host.json", check.Unknown},
		"another address":    {func(in *check.Input) { in.Address = netip.MustParseAddr("192.0.2.1") }, "address", "no interface has 192.0.2.1", check.Fault},
		"server down":        {func(in *check.Input) { in.Servers = []string{nobody} }, "server", "refused", check.Fault},
		"server without TLS": {func(in *check.Input) { in.Servers = []string{mute.Addr().String()} }, "server", "does not speak", check.Fault},
		"server's name":      {func(in *check.Input) { in.Servers = []string{"no-such-host.invalid:15012"} }, "server", "no-such-host.invalid", check.Fault},
		"no server known":    {func(in *check.Input) { stopped(in) }, "server", "names the control plane", check.Unknown},
		"server up":          {func(in *check.Input) { in.Servers = []string{tlsServer(t)} }, "server", "for TLS", check.OK},
		"refused": {func(in *check.Input) {
			in.Ask = says(check.Agent{Refusal: "rejected by the control plane: not admitted: no workload has address 127.0.0.1"})
		}, "server", "no workload has address 127.0.0.1", check.Fault},
		"address of the agent": {func(in *check.Input) {
			in.Ask = says(check.Agent{Server: "10.0.0.1:15012", Address: netip.MustParseAddr("192.0.2.7")})
		}, "address", "no interface has 192.0.2.7", check.Fault},
		"no Envoy": {func(in *check.Input) { in.Envoy = "/no/envoy" }, "envoy", "cannot be run", check.Fault},
		"not as declared": {func(in *check.Input) {
			in.Capture, in.AskCapture = true, captures(check.Capture{Present: true, Wrong: []string{"expired: new connections go directly"}})
		}, "capture", "expired", check.Fault},
		"firewall": {func(in *check.Input) {
			in.Capture, in.AskCapture = true, captures(check.Capture{Present: true, Firewall: []string{"ufw drops what it does not accept"}})
		}, "firewall", "ufw drops", check.Warning},
		"captured without the agent": {func(in *check.Input) {
			in.Capture, in.AskCapture, in.Ask = true, captures(check.Capture{Present: true}), says(check.Agent{Server: "s", Capture: new(bool)})
		}, "capture", "the agent runs without --capture", check.Fault},
		"captured, other settings": {func(in *check.Input) {
			captured := true
			in.AskCapture, in.Ask = captures(check.Capture{Present: true}), says(check.Agent{Server: "s", Capture: &captured})
		}, "capture", "as declared", check.OK},
		"captured, settings unknown": {func(in *check.Input) { in.AskCapture = captures(check.Capture{Present: true}) }, "capture", "these settings are without --capture", check.Warning},
		"capture not seen": {func(in *check.Input) {
			in.Capture, in.AskCapture = true, func(context.Context) (check.Capture, error) { return check.Capture{}, os.ErrPermission }
		}, "capture", "what is captured", check.Unknown},
		"captures":          {func(in *check.Input) { in.Capture, in.AskCapture = true, captures(check.Capture{Present: true}) }, "capture", "as declared", check.OK},
		"another agent":     {func(in *check.Input) { in.Version, in.Ask = "v2", says(check.Agent{Version: "v1"}) }, "versions", "v1", check.Warning},
		"another Envoy":     {func(in *check.Input) { in.Version, in.Ask = "v1", says(check.Agent{Version: "v1", Envoy: "1.2.3"}) }, "versions", "1.2.3", check.Warning},
		"the same versions": {func(in *check.Input) { in.Version, in.Ask = "v1", says(check.Agent{Version: "v1"}) }, "versions", "v1", check.OK},
		"port taken":        {func(in *check.Input) { stopped(in); in.Ports = []netip.AddrPort{addrPort(t, taken)} }, "ports", addrPort(t, taken).String(), check.Fault},
		"usual port taken":  {func(in *check.Input) { stopped(in); in.Usual = []netip.AddrPort{addrPort(t, taken)} }, "ports", "the agent will take a free port", check.Warning},
		"ports free":        {func(in *check.Input) { stopped(in); in.Ports = []netip.AddrPort{netip.MustParseAddrPort(nobody)} }, "ports", "free", check.OK},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := check.Run(t.Context(), well(t))
			in := well(t)
			c.broken(&in)
			found := check.Run(t.Context(), in)
			seen := false
			for _, f := range of(found, c.check) {
				if f.State == c.state && strings.Contains(f.What, c.says) {
					seen = f.State == check.OK || f.Do != ""
				}
			}
			if !seen {
				t.Errorf("%s says %+v; want %s %q with what to do", c.check, of(found, c.check), c.state, c.says)
			}
			for _, other := range []string{"agent", "clock", "address", "envoy", "limits", "selinux", "dns"} {
				if a, b := of(before, other), of(found, other); other != c.check && len(a) > 0 && a[0].State == check.OK && (len(b) == 0 || b[0].State != check.OK) &&
					(other != "agent" || !strings.Contains(name, "port") && !strings.Contains(name, "yet") && !strings.Contains(name, "known")) {
					t.Errorf("%s said %+v, and says %+v", other, a, b)
				}
			}
			if c.state == check.Fault && check.Well(found) {
				t.Error("with a fault the host is well")
			}
		})
	}
}

func says(a check.Agent) func(context.Context) (check.Agent, error) {
	return func(context.Context) (check.Agent, error) { return a, nil }
}

func captures(c check.Capture) func(context.Context) (check.Capture, error) {
	return func(context.Context) (check.Capture, error) { return c, nil }
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(dir+"/"+name, []byte(content), 0o600); err != nil {
		t.Error(err)
	}
}

func addrPort(t *testing.T, l net.Listener) netip.AddrPort {
	t.Helper()
	return netip.MustParseAddrPort(l.Addr().String())
}

// TestNameservers has nameservers that answer, and some that do not: to be named in resolv.conf is not
// to be well.
func TestNameservers(t *testing.T) {
	t.Parallel()
	up, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = up.Close() })
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := up.ReadFrom(b)
			if err != nil {
				return
			}
			b[2] |= 0x80
			_, _ = up.WriteTo(b[:n], from)
		}
	}()
	in := well(t)
	in.DNSPort = netip.MustParseAddrPort(up.LocalAddr().String()).Port()
	in.ResolvConf = in.StateDir + "/resolv.conf"
	for content, want := range map[string][]check.State{
		"nameserver 127.0.0.1\n":                          {check.OK},
		"nameserver 127.0.0.2\n":                          {check.Warning},
		"nameserver 127.0.0.2\nnameserver 127.0.0.1\n":    {check.Warning, check.OK},
		"nameserver 127.0.0.2\nnameserver no-address..\n": {check.Warning, check.Warning},
		"search lab\n":                                    {check.Warning},
	} {
		write(t, in.StateDir, "resolv.conf", content)
		var got []check.State
		for _, f := range of(check.Run(t.Context(), in), "dns") {
			got = append(got, f.State)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", content, got, want)
		}
	}
}
