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

// TestProxyProtocol has a DestinationRule with proxyProtocol: what the server reads first is the
// PROXY protocol with the client's address, in the version that the rule asks for, and then the
// request.
func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			listen := envoytest.FreePorts(t, 1)[0]
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			fatalIf(t, err, "listening")
			t.Cleanup(func() { _ = l.Close() })
			begins := make(chan string, 8)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go answerAfterPreface(c, begins)
				}
			}()
			var b strings.Builder
			fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: web, namespace: shop}
spec:
  workloadSelector: {labels: {app: web}}
  egress: [{port: {number: %d, name: http, protocol: HTTP}, bind: %s, hosts: ["./*"]}]
`, listen, clientIP)
			for _, v := range []string{"V1", "V2"} {
				fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: shop}
spec:
  hosts: [%[1]s.shop.mesh]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: %[2]d, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %[3]d}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: shop}
spec: {host: %[1]s.shop.mesh, trafficPolicy: {proxyProtocol: {version: %[4]s}}}
`, strings.ToLower(v), listen, portOf(t, l), v)
			}
			f := &fixture{ca: newAuthority(t), version: version}
			e := f.start(t, snapshotOf(t, b.String(), ""), proxyFile{Namespace: "shop", ServiceAccount: "web", IP: clientIP, Interception: "NONE", Labels: map[string]string{"app": "web"}})
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: envoytest.Patience}
			for host, want := range map[string]string{"v1": "PROXY TCP4 127.0.0.1 " + clientIP, "v2": "\r\n\r\n\x00\r\nQUIT\n!\x11"} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(clientIP, listen), nil)
				fatalIf(t, err, "making a request")
				req.Host = host + ".shop.mesh"
				res, err := client.Do(req)
				fatalIf(t, err, "asking %s", host)
				_ = res.Body.Close()
				if res.StatusCode != http.StatusOK {
					t.Errorf("%s: status %d", host, res.StatusCode)
				}
				select {
				case got := <-begins:
					if !strings.HasPrefix(got, want) {
						t.Errorf("%s: the connection begins with %q, want %q", host, got, want)
					}
				case <-time.After(envoytest.Patience):
					t.Errorf("%s: no connection", host)
				}
			}
			e.NoRejections(t)
		})
	}
}

// answerAfterPreface reads the PROXY protocol of a connection, and answers the request behind it.
func answerAfterPreface(c net.Conn, begins chan<- string) {
	defer c.Close()
	r := bufio.NewReader(c)
	head, err := r.Peek(16)
	if err != nil {
		return
	}
	preface := string(head)
	switch {
	case strings.HasPrefix(preface, "PROXY "):
		preface, err = r.ReadString('\n')
	case strings.HasPrefix(preface, "\r\n\r\n\x00"):
		all := make([]byte, 16+int(head[14])<<8+int(head[15]))
		_, err = io.ReadFull(r, all)
		preface = string(all)
	}
	if err != nil {
		return
	}
	if _, err := http.ReadRequest(r); err != nil {
		preface = "no request: " + err.Error()
	}
	begins <- preface
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
}
