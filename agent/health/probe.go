package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
)

// Istio's defaults.
const (
	defaultTimeout = time.Second
	defaultPeriod  = 10 * time.Second
)

// Probe says how to probe an application. Exactly one of HTTP and TCP is set.
type Probe struct {
	// InitialDelay is the time from the agent's start to the first probe of the application.
	InitialDelay time.Duration
	// Timeout limits one probe; zero means 1 s.
	Timeout time.Duration
	// Period is the time from one probe of the application to the next; zero means 10 s.
	Period time.Duration
	// SuccessThreshold and FailureThreshold are how many equal results in a row change the
	// health; zero means 1.
	SuccessThreshold, FailureThreshold int

	HTTP *HTTPGet
	TCP  *TCPSocket
}

// HTTPGet succeeds if the status is at least 200 and below 400.
type HTTPGet struct {
	// Host is the host name or address to connect to; empty means 127.0.0.1.
	Host string
	Port int
	// Path is "/" if empty; Scheme is http or https, http if empty. The
	// application's certificate is not verified: this is its own host.
	Path, Scheme string
	// Headers are sent along; one named Host is the request's authority.
	Headers []Header
}

// newClient opens a new connection for each probe: an application that accepts none is
// unhealthy.
func newClient() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as kubelet and Istio do: it is this host
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Header is a header of a request.
type Header struct{ Name, Value string }

// TCPSocket succeeds if a connection opens.
type TCPSocket struct {
	// Host is the host name or address to connect to; empty means 127.0.0.1.
	Host string
	Port int
}

// FromIstio reads a probe as ProxyConfig and WorkloadGroup write it.
func FromIstio(r *networkingv1alpha3.ReadinessProbe) (*Probe, error) {
	p := &Probe{
		InitialDelay:     time.Duration(r.GetInitialDelaySeconds()) * time.Second,
		Timeout:          time.Duration(r.GetTimeoutSeconds()) * time.Second,
		Period:           time.Duration(r.GetPeriodSeconds()) * time.Second,
		SuccessThreshold: int(r.GetSuccessThreshold()),
		FailureThreshold: int(r.GetFailureThreshold()),
	}
	switch m := r.GetHealthCheckMethod().(type) {
	case *networkingv1alpha3.ReadinessProbe_HttpGet:
		g := &HTTPGet{Host: m.HttpGet.GetHost(), Port: int(m.HttpGet.GetPort()), Path: m.HttpGet.GetPath(), Scheme: m.HttpGet.GetScheme()}
		for _, h := range m.HttpGet.GetHttpHeaders() {
			g.Headers = append(g.Headers, Header{Name: h.GetName(), Value: h.GetValue()})
		}
		p.HTTP = g
	case *networkingv1alpha3.ReadinessProbe_TcpSocket:
		p.TCP = &TCPSocket{Host: m.TcpSocket.GetHost(), Port: int(m.TcpSocket.GetPort())}
	case nil:
		return nil, errors.New("readiness probe: one of httpGet and tcpSocket is needed")
	default:
		return nil, errors.New("readiness probe: only httpGet and tcpSocket are supported")
	}
	return p, p.complete()
}

// complete fills in defaults and checks the result.
func (p *Probe) complete() error {
	for _, d := range []struct {
		name  string
		value *time.Duration
		unset time.Duration
	}{{"timeoutSeconds", &p.Timeout, defaultTimeout}, {"periodSeconds", &p.Period, defaultPeriod}, {"initialDelaySeconds", &p.InitialDelay, 0}} {
		if *d.value < 0 {
			return fmt.Errorf("readiness probe: %s must not be negative", d.name)
		}
		if *d.value == 0 {
			*d.value = d.unset
		}
	}
	if p.SuccessThreshold < 0 || p.FailureThreshold < 0 {
		return errors.New("readiness probe: thresholds must not be negative")
	}
	p.SuccessThreshold, p.FailureThreshold = max(p.SuccessThreshold, 1), max(p.FailureThreshold, 1)
	var port int
	switch {
	case (p.HTTP == nil) == (p.TCP == nil):
		return errors.New("readiness probe: exactly one of httpGet and tcpSocket is needed")
	case p.HTTP != nil:
		port = p.HTTP.Port
		p.HTTP.Scheme = strings.ToLower(p.HTTP.Scheme)
		if p.HTTP.Scheme == "" {
			p.HTTP.Scheme = "http"
		}
		if p.HTTP.Scheme != "http" && p.HTTP.Scheme != "https" {
			return fmt.Errorf("readiness probe: scheme %q is neither http nor https", p.HTTP.Scheme)
		}
	default:
		port = p.TCP.Port
	}
	const maxPort = 65535
	if port < 1 || port > maxPort {
		return fmt.Errorf("readiness probe: port %d is not within 1 and %d", port, maxPort)
	}
	return nil
}

// target is the address that the probe connects to.
func (p *Probe) target() (host string, port int) {
	if p.TCP != nil {
		return p.TCP.Host, p.TCP.Port
	}
	return p.HTTP.Host, p.HTTP.Port
}

// ask is nil if the application is healthy.
func (p *Probe) ask(ctx context.Context, client *http.Client) error {
	ctx, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if p.TCP != nil {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", hostPort(p.TCP.Host, p.TCP.Port))
		if err != nil {
			return fmt.Errorf("connecting to the application: %w", err)
		}
		_ = conn.Close()
		return nil
	}
	return p.HTTP.ask(ctx, client)
}

func (g *HTTPGet) ask(ctx context.Context, client *http.Client) error {
	path := g.Path
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	u, err := url.Parse(g.Scheme + "://" + hostPort(g.Host, g.Port) + path)
	if err != nil {
		return fmt.Errorf("asking the application: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("asking the application: %w", err)
	}
	for _, h := range g.Headers {
		if strings.EqualFold(h.Name, "host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking the application: %w", err)
	}
	const enough = 4096
	_, _ = io.CopyN(io.Discard, res.Body, enough)
	_ = res.Body.Close()
	if res.StatusCode < http.StatusOK || res.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("asking the application: GET %s answers %s", u.Redacted(), res.Status)
	}
	return nil
}

func hostPort(host string, port int) string {
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}
