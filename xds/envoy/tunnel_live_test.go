package envoy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// TestTunnel has TCP go through an HTTP proxy, by CONNECT and by POST, to the host that the
// DestinationRule names.
func TestTunnel(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			fatalIf(t, err, "listening")
			t.Cleanup(func() { _ = l.Close() })
			asked := make(chan string, 8)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go tunnelProxy(c, asked)
				}
			}()
			var b strings.Builder
			ports := envoytest.FreePorts(t, 2)
			fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress:
  - {port: {number: %[1]d, name: tcp, protocol: TCP}, bind: %[3]s, hosts: ["./connect.shop.mesh"]}
  - {port: {number: %[2]d, name: tcp, protocol: TCP}, bind: %[3]s, hosts: ["./post.shop.mesh"]}
`, ports[0], ports[1], clientIP)
			methods := []string{http.MethodConnect, http.MethodPost}
			for i, method := range methods {
				fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.shop.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: tcp, protocol: TCP}]
  endpoints: [{address: 127.0.0.1, ports: {tcp: %[3]d}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: shop}
spec: {host: %[1]s.shop.mesh, trafficPolicy: {tunnel: {protocol: %[4]s, targetHost: db.example.com, targetPort: 5432}}}
`, strings.ToLower(method), ports[i], portOf(t, l), method)
			}
			f := &fixture{ca: newAuthority(t), version: version}
			e := f.start(t, snapshotOf(t, b.String(), ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
			for i, method := range methods {
				c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at(clientIP, ports[i]))
				fatalIf(t, err, "connecting")
				fatalIf(t, c.SetDeadline(time.Now().Add(envoytest.Patience)), "setting a deadline")
				_, err = io.WriteString(c, "hello\n")
				fatalIf(t, err, "writing")
				if got, err := bufio.NewReader(c).ReadString('\n'); err != nil || got != "hello\n" {
					t.Errorf("%s: got %q, %v", method, got, err)
				}
				_ = c.Close()
				select {
				case got := <-asked:
					if want := method + " db.example.com:5432"; got != want {
						t.Errorf("the proxy is asked for %q, want %q", got, want)
					}
				case <-time.After(envoytest.Patience):
					t.Errorf("%s: the proxy is not asked", method)
				}
			}
			e.NoRejections(t)
		})
	}
}

// tunnelProxy answers a request for a tunnel, and sends back what comes through it.
func tunnelProxy(c net.Conn, asked chan<- string) {
	defer c.Close()
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil {
		asked <- err.Error()
		return
	}
	asked <- req.Method + " " + req.Host
	if req.Method == http.MethodConnect {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(c, r)
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
	buf := make([]byte, 1024)
	for {
		n, err := req.Body.Read(buf)
		if n > 0 {
			_, _ = fmt.Fprintf(c, "%x\r\n%s\r\n", n, buf[:n])
		}
		if err != nil {
			return
		}
	}
}
