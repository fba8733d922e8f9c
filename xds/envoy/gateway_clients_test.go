package envoy_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// gatewayAnswer is what a client got. The status of gRPC, and of a connection that is not HTTP, is 0 if all is well.
type gatewayAnswer struct {
	status  int
	headers map[string]string // names in lower case
	body    string
	text    string // all of it
}

// ask runs the client of a case.
func (g *gatewayRun) ask(t *testing.T, c *gatewayCase) (gatewayAnswer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), envoytest.Patience)
	defer cancel()
	switch {
	case c.Curl != "":
		return g.curl(ctx, t, c)
	case c.OpenSSL != "":
		return g.openssl(ctx, t, c)
	case c.GRPC != "":
		return g.grpc(ctx, t, c)
	case c.TCP != "":
		return g.tcp(ctx, t, c)
	case c.HTTP3 != "":
		return g.http3(ctx, c)
	}
	t.Fatal("a case without a client")
	return gatewayAnswer{}, nil
}

// port is where a listener of the mesh is. An address that no listener has is one where nobody listens.
func (g *gatewayRun) port(c *gatewayCase, port string) int {
	return g.ports[net.JoinHostPort(via(c), port)]
}

func via(c *gatewayCase) string {
	if c.Via == "" {
		return "0.0.0.0"
	}
	return c.Via
}

// curl has each port of a URL lead to the listener of this port.
func (g *gatewayRun) curl(ctx context.Context, t *testing.T, c *gatewayCase) (gatewayAnswer, error) {
	t.Helper()
	args := []string{"-q", "-sS", "-i", "--noproxy", "*"}
	for _, address := range slices.Sorted(maps.Keys(g.ports)) {
		if host, port, err := net.SplitHostPort(address); err == nil && host == via(c) {
			args = append(args, "--connect-to", ":"+port+":"+serverIP+":"+strconv.Itoa(g.ports[address]))
		}
	}
	args = append(args, "--connect-to", "::"+serverIP+":1") // nobody listens there
	if c.Claims != nil {
		all := map[string]any{"iss": "test", "sub": "somebody", "exp": time.Now().Add(time.Hour).Unix()}
		maps.Copy(all, c.Claims)
		args = append(args, "-H", "authorization: Bearer "+g.ca.token(t, all))
	}
	return g.run(ctx, exec.CommandContext(ctx, "curl", append(args, words(t, c.Curl)...)...), "")
}

// openssl sends a request through a connection of TLS.
func (g *gatewayRun) openssl(ctx context.Context, t *testing.T, c *gatewayCase) (gatewayAnswer, error) {
	t.Helper()
	arguments, to := words(t, c.OpenSSL), "443"
	if c.To != "" {
		to = c.To
	}
	host := "no.name.test"
	if i := slices.Index(arguments, "-servername"); i >= 0 {
		host = arguments[i+1]
	} else {
		arguments = append(arguments, "-noservername")
	}
	args := append([]string{"s_client", "-quiet", "-connect", net.JoinHostPort(serverIP, strconv.Itoa(g.port(c, to)))}, arguments...)
	cmd := exec.CommandContext(ctx, "openssl", args...)
	if c.Send != "" || c.Fails != "" { // a request to who has refused the client could have its alert lost
		return g.run(ctx, cmd, c.Send)
	}
	return g.response(cmd, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
}

// response does not wait for the end of the connection, which a gateway delays by a second.
func (g *gatewayRun) response(cmd *exec.Cmd, request string) (gatewayAnswer, error) {
	cmd.Dir, cmd.Stdin = g.dir, strings.NewReader(request)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return gatewayAnswer{}, err
	}
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	resp, err := http.ReadResponse(bufio.NewReader(out), nil)
	if err != nil {
		return gatewayAnswer{}, fmt.Errorf("reading the response: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := httputil.DumpResponse(resp, true)
	return parseAnswer(string(text)), err
}

func (g *gatewayRun) run(ctx context.Context, cmd *exec.Cmd, stdin string) (gatewayAnswer, error) {
	cmd.Dir, cmd.Stdin = g.dir, strings.NewReader(stdin)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil && len(out) == 0 {
		err = errors.New("the answer is empty")
	}
	if err != nil {
		return gatewayAnswer{text: string(out) + stderr.String()}, fmt.Errorf("%w: %s", err, stderr.String())
	}
	return parseAnswer(string(out)), ctx.Err()
}

// parseAnswer reads an HTTP response, or text that is none.
func parseAnswer(text string) gatewayAnswer {
	a := gatewayAnswer{headers: map[string]string{}, text: text, body: text}
	for strings.HasPrefix(a.body, "HTTP/") {
		head, rest, _ := strings.Cut(a.body, "\r\n\r\n")
		lines := strings.Split(head, "\r\n")
		if fields := strings.Fields(lines[0]); len(fields) > 1 {
			a.status, _ = strconv.Atoi(fields[1])
		}
		for _, line := range lines[1:] {
			name, value, _ := strings.Cut(line, ": ")
			a.headers[strings.ToLower(name)] = value
		}
		a.body = rest
	}
	return a
}

// grpc makes one call. Its arguments are the authority, and then headers.
func (g *gatewayRun) grpc(ctx context.Context, t *testing.T, c *gatewayCase) (gatewayAnswer, error) {
	t.Helper()
	arguments := words(t, c.GRPC)
	authority, to, _ := strings.Cut(arguments[0], ":")
	how := insecure.NewCredentials()
	if c.To == "tls" {
		how = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true, ServerName: authority})
	}
	conn, err := grpc.NewClient("passthrough:///"+net.JoinHostPort(serverIP, strconv.Itoa(g.port(c, to))),
		grpc.WithTransportCredentials(how), grpc.WithAuthority(authority), grpc.WithNoProxy())
	if err != nil {
		return gatewayAnswer{}, err
	}
	defer func() { _ = conn.Close() }()
	sent := metadata.MD{}
	for _, header := range arguments[1:] {
		name, value, _ := strings.Cut(header, ": ")
		sent.Append(name, value)
	}
	var header metadata.MD
	_, err = healthpb.NewHealthClient(conn).Check(metadata.NewOutgoingContext(ctx, sent), &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	if ctx.Err() != nil {
		return gatewayAnswer{}, ctx.Err()
	}
	a := gatewayAnswer{status: int(status.Code(err)), headers: map[string]string{}, text: fmt.Sprint(header, err)}
	for name, values := range header {
		a.headers[name] = strings.Join(values, ",")
	}
	a.body = strings.ReplaceAll(a.headers["x-saw"], "|", "\n")
	return a, nil
}

// tcp sends bytes, and reads until the other side ends.
func (g *gatewayRun) tcp(ctx context.Context, t *testing.T, c *gatewayCase) (gatewayAnswer, error) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(serverIP, strconv.Itoa(g.port(c, c.TCP))))
	if err != nil {
		return gatewayAnswer{}, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(envoytest.Patience))
	if _, err := io.WriteString(conn, c.Send); err != nil {
		return gatewayAnswer{}, err
	}
	out, err := io.ReadAll(conn)
	if err == nil && len(out) == 0 {
		err = errors.New("the answer is empty")
	}
	return parseAnswer(string(out)), err
}

// words splits arguments as a shell does, with quotes.
func words(t *testing.T, text string) []string {
	t.Helper()
	var out []string
	var word strings.Builder
	var quote rune
	in := false
	for _, r := range text {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, in = r, true
		case quote == 0 && r == ' ':
			if in {
				out = append(out, word.String())
				word.Reset()
			}
			in = false
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if quote != 0 {
		t.Fatalf("%s: a quote does not end", text)
	}
	if in {
		out = append(out, word.String())
	}
	return out
}

// gatewayService is a program behind a gateway. It answers with what it saw.
type gatewayService struct {
	name string
	port int

	mu   sync.Mutex // guards seen
	seen []string
}

func newGatewayService(t *testing.T, ca *authority, name, kind string) *gatewayService {
	t.Helper()
	s := &gatewayService{name: name}
	if kind == "tcp" {
		s.port = accept(t, func(c net.Conn) {
			line := make([]byte, 64)
			n, _ := c.Read(line)
			_, _ = fmt.Fprintf(c, "%s: %s", name, line[:n])
		})
		return s
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	fatalIf(t, err, "listening")
	s.port = portOf(t, l)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Handler: s, Protocols: &protocols, ReadHeaderTimeout: envoytest.Patience}
	t.Cleanup(func() { _ = server.Close() })
	switch kind {
	case "http":
	case "https":
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, ClientAuth: tls.RequestClientCert,
			Certificates: []tls.Certificate{ca.serverCertificate(t, name, "*.example.com")},
		})
	case "mesh":
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool(),
			Certificates: []tls.Certificate{ca.pair(t, "spiffe://cluster.local/ns/shop/sa/"+name)},
		})
	default:
		t.Fatalf("service %q is of no kind: %q", name, kind)
	}
	go func() { _ = server.Serve(l) }()
	return s
}

// ServeHTTP answers with the request, line by line. Requests say how: x-fail has the first attempts fail, and
// x-slow has the answer wait until the client goes away.
func (s *gatewayService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	lines := []string{r.Method + " " + r.RequestURI, "protocol: " + r.Proto, "host: " + r.Host}
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		lines = append(lines, strings.ToLower(name)+": "+strings.Join(r.Header[name], ","))
	}
	if r.TLS != nil {
		who := "nobody"
		if list := r.TLS.PeerCertificates; len(list) > 0 {
			who = list[0].URIs[0].String()
		}
		lines = append(lines, "client: "+who, "sni: "+r.TLS.ServerName)
	}
	s.mu.Lock()
	s.seen = append(s.seen, lines[0]+" "+r.Host)
	s.mu.Unlock()
	w.Header().Set("X-From", s.name)
	w.Header().Set("X-Inner", "secret")
	attempt, _ := strconv.Atoi(r.Header.Get("X-Envoy-Attempt-Count"))
	failing, _ := strconv.Atoi(r.Header.Get("X-Fail"))
	switch {
	case r.Header.Get("X-Slow") != "":
		<-r.Context().Done()
	case failing > 0 && attempt <= failing:
		w.WriteHeader(http.StatusServiceUnavailable)
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"):
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.Header().Set("X-Saw", strings.Join(lines, "|"))
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write(make([]byte, 5))
		w.Header().Set("Grpc-Status", "0")
	default:
		_, _ = io.WriteString(w, strings.Join(lines, "\n")+"\n")
	}
}

// hasSeen says whether a request came, as METHOD PATH HOST.
func (s *gatewayService) hasSeen(request string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.seen, request) {
		return fmt.Errorf("%s did not see %q, but %q", s.name, request, s.seen)
	}
	return nil
}
