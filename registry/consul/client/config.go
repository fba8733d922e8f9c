package client

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"
)

// Config is what a Client needs.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Address is http(s)://HOST:PORT, HOST:PORT (by http), or unix:///path.
	// Required.
	Address string
	// TokenFile has the ACL token; it is read again when it changes. Empty means
	// none: then the anonymous token counts.
	TokenFile string
	// CAFile has the authorities of the server's certificate; empty means those
	// of the system. CertFile and KeyFile are the client's certificate, both or
	// none. They are read again when they change. ServerName is what the server's
	// certificate must be for; empty means the host of Address.
	CAFile, CertFile, KeyFile, ServerName string
	// Datacenter, Namespace and Partition are sent with every query that does
	// not name its own; empty means those of the agent and of the token.
	Datacenter, Namespace, Partition string
	// Stale, if positive, lets any server answer as long as it heard from the
	// leader no longer ago than that. 0 means the leader answers.
	Stale time.Duration
	// MaxConnections bounds the connections; 0 means 64.
	MaxConnections int
}

// defaultConnections stays well below the 200 connections that a server grants
// to a client (limits.http_max_conns_per_client).
const defaultConnections = 64

// target is where the server is.
type target struct {
	scheme  string // http or https
	host    string
	address string // host:port
	socket  string // path of a unix socket, or empty
	prefix  string // path before that of every request, or empty
}

func (c Config) withDefaults() (Config, target, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("consul: client.Config.Logger is missing"))
	}
	t, err := parseAddress(c.Address)
	if err != nil {
		errs = append(errs, err)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("consul: a client's certificate needs its key, and a key its certificate"))
	}
	if err == nil && t.scheme != "https" && (c.CertFile != "" || c.CAFile != "" || c.ServerName != "") {
		errs = append(errs, fmt.Errorf("consul: TLS is configured, but the address %q is not https://", c.Address))
	}
	if c.Stale < 0 || c.MaxConnections < 0 {
		errs = append(errs, errors.New("consul: a limit is negative"))
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = defaultConnections
	}
	return c, t, errors.Join(errs...)
}

func parseAddress(s string) (target, error) {
	bad := func(why string) (target, error) {
		return target{}, fmt.Errorf("consul: address %q: %s (want http://HOST:PORT, https://HOST:PORT or unix:///PATH)", s, why)
	}
	if s == "" {
		return bad("it is empty")
	}
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		if !strings.HasPrefix(path, "/") {
			return bad("the path of the socket is not absolute")
		}
		return target{scheme: "http", host: "localhost", address: "localhost:80", socket: path}, nil
	}
	if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return bad("it is not an address")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("unknown scheme " + u.Scheme)
	case u.Hostname() == "":
		return bad("it has no host")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return bad("it has more than scheme, host, port and path")
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "8500", "https": "8501"}[u.Scheme]
	}
	return target{scheme: u.Scheme, host: u.Hostname(), address: net.JoinHostPort(u.Hostname(), port), prefix: strings.TrimSuffix(u.Path, "/")}, nil
}
