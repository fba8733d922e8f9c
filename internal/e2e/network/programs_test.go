package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// twoAtOnePort are two services of TCP that have the same port.
const twoAtOnePort = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: one, namespace: shop}
spec: {hosts: [one.shop.internal], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 5432, name: tcp, protocol: TCP, targetPort: 7001}], endpoints: [{address: 10.99.0.10}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: two, namespace: shop}
spec: {hosts: [two.shop.internal], location: MESH_EXTERNAL, resolution: STATIC, ports: [{number: 5432, name: tcp, protocol: TCP, targetPort: 7002}], endpoints: [{address: 10.99.0.10}]}
`

// TestProgramsWithoutCapture: on a host without capture, whose workload has no Sidecar, programs call
// services with their own ports: by an HTTP proxy, and by addresses of the loopback interface. The
// service hears that the workload calls. Nobody else reaches the listeners.
func TestProgramsWithoutCapture(t *testing.T) {
	l := newLAN(t, 1)
	l.webAgent = []string{"--http-proxy-port", "15080", "--loopback-addresses"}
	l.Write("tcp.yaml", twoAtOnePort)
	l.start()
	_, app := l.Binaries()
	l.run("one", "orders-0", app, "--name", "one", "--protocol", "tcp", "--listen", address(10)+":7001")
	l.run("two", "orders-0", app, "--name", "two", "--protocol", "tcp", "--listen", address(10)+":7002")

	lines, err := l.CLI("addresses", "--etc-hosts", "loopback", "--run-dir", l.RunDir("server"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]string{}
	for line := range strings.Lines(lines) {
		at, host, _ := strings.Cut(strings.TrimSpace(line), " ")
		known[host] = at
	}
	fromWeb := l.dialer("web")
	byName := func(ctx context.Context, network, target string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(target)
		if err != nil {
			return nil, err
		}
		if known[host] == "" {
			return nil, fmt.Errorf("%s is not in /etc/hosts:\n%s", host, lines)
		}
		return fromWeb(ctx, network, net.JoinHostPort(known[host], port))
	}
	proxy, err := url.Parse("http://127.0.0.1:15080")
	if err != nil {
		t.Fatal(err)
	}
	for name, tr := range map[string]*http.Transport{
		"HTTP proxy": {Proxy: http.ProxyURL(proxy), DialContext: fromWeb},
		"/etc/hosts": {DialContext: byName},
	} {
		t.Cleanup(tr.CloseIdleConnections)
		client := &http.Client{Transport: tr, Timeout: envoytest.Patience}
		l.Server.Eventually(envoytest.Patience, func() error {
			answer, err := get(t.Context(), client, "http://orders.shop.internal:9080/")
			if err == nil && (!strings.Contains(answer, "orders-0") || !strings.Contains(answer, "sa/web")) {
				err = fmt.Errorf("by %s, %q answers, not orders-0 to web", name, answer)
			}
			return err
		})
	}
	for _, name := range []string{"one", "two"} {
		l.Server.Eventually(envoytest.Patience, func() error {
			got, err := echoed(t.Context(), byName, name+".shop.internal:5432")
			if err == nil && got != name+": hello" {
				err = fmt.Errorf("at the address of %s, %q answers", name, got)
			}
			return err
		})
	}
	fromOrders := l.dialer("orders-0")
	for _, at := range []string{address(5) + ":15080", address(5) + ":9080", address(5) + ":5432"} {
		if c, err := fromOrders(t.Context(), "tcp", at); err == nil {
			_ = c.Close()
			t.Errorf("another host is connected to %s", at)
		}
	}
}

// TestAgentCheck asks a host what is wrong with it: nothing, then that its server is away, and then that
// its agent is gone.
func TestAgentCheck(t *testing.T) {
	l := newLAN(t, 1)
	l.start()
	fairlead, _ := l.Binaries()
	check := func() (string, int) {
		cmd := exec.CommandContext(t.Context(), "ip", "netns", "exec", l.in("web"), fairlead, "agent", "check", "--state-dir", l.StateDir("web"),
			"--run-dir", l.RunDir("web"), "--envoy", envoytest.Binary(t), "-o", "json")
		out, err := cmd.Output()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	if out, code := check(); code != 0 || strings.Contains(out, `"fault"`) || !strings.Contains(out, "connected to "+address(1)) || !strings.Contains(out, `"`+address(5)+`"`) {
		t.Errorf("a host that is well: %d: %s", code, out)
	}
	l.Server.Stop()
	l.agents["web"].Eventually(envoytest.Patience, func() error {
		out, code := check()
		if code == 0 || !strings.Contains(out, "no control plane is connected") || !strings.Contains(out, "connecting to the control plane") {
			return fmt.Errorf("without a server: %d: %s", code, out)
		}
		return nil
	})
	l.agents["web"].Kill()
	if out, code := check(); code != 1 || !strings.Contains(out, "is the process running") {
		t.Errorf("without an agent: %d: %s", code, out)
	}
}

func get(ctx context.Context, client *http.Client, address string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", res.Status, body)
	}
	return string(body), err
}

// echoed is what a service of TCP answers to a line.
func echoed(ctx context.Context, dial func(context.Context, string, string) (net.Conn, error), address string) (string, error) {
	c, err := dial(ctx, "tcp", address)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(envoytest.Attempt)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}
