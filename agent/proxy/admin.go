package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds what is read from an admin interface: a config_dump of a
// very large mesh has tens of megabytes.
const maxAnswer = 256 << 20

// ErrNoAdminSocket means that there is no file of Envoy's admin socket: Envoy has not made it yet,
// or somebody has removed it.
var ErrNoAdminSocket = errors.New("Envoy's admin socket does not exist")

// Admin is a client of one Envoy's admin interface.
type Admin struct {
	client *http.Client
}

// NewAdmin is a client of the admin interface at the first of the addresses that accepts a
// connection. The network is "unix" or "tcp".
func NewAdmin(network string, addresses ...string) *Admin {
	var d net.Dialer
	return &Admin{client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			errs := make([]error, 0, len(addresses)+1)
			absent := 0
			for _, at := range addresses {
				conn, err := d.DialContext(ctx, network, at)
				if err == nil {
					return conn, nil
				}
				if errors.Is(err, fs.ErrNotExist) {
					absent++
				}
				errs = append(errs, err)
			}
			if absent == len(addresses) {
				errs = append(errs, ErrNoAdminSocket)
			}
			return nil, errors.Join(errs...)
		},
		// An idle connection to an Envoy that has exited is useless.
		DisableKeepAlives: true,
	}}}
}

// Get fetches a path, "/ready".
func (a *Admin) Get(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodGet, path)
}

// Post asks for what may change something, "/quitquitquit".
func (a *Admin) Post(ctx context.Context, path string) ([]byte, error) {
	return a.do(ctx, http.MethodPost, path)
}

// command asks for a change that has no answer.
func (a *Admin) command(ctx context.Context, path string) error {
	_, err := a.Post(ctx, path)
	return err
}

// Ready is nil once Envoy is live: it has its configuration and takes traffic.
func (a *Admin) Ready(ctx context.Context) error {
	_, err := a.do(ctx, http.MethodGet, "/ready")
	return err
}

// Connections counts the open downstream connections.
func (a *Admin) Connections(ctx context.Context) (int, error) {
	b, err := a.do(ctx, http.MethodGet, "/stats?filter=downstream_cx_active")
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(string(b)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		// The numbers of each worker are in the sum already.
		if !ok || !strings.HasPrefix(name, "listener.") || strings.HasPrefix(name, "listener.admin.") ||
			strings.Contains(name, ".worker_") || strings.Contains(name, ".http.") {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("reading the stat %q: %w", name, err)
		}
		total += n
	}
	return total, nil
}

func (a *Admin) do(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %q of Envoy's admin interface: %w", path, err)
	case len(b) > maxAnswer:
		return nil, fmt.Errorf("reading %q of Envoy's admin interface: more than %d bytes", path, maxAnswer)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s %q of Envoy's admin interface: %s: %.200q", method, path, res.Status, b)
	}
	return b, nil
}

// within calls ask with a timeout, so that an Envoy that hangs does not block the agent.
func within(ctx context.Context, d time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return ask(ctx)
}

// Open begins to read a path, without a limit of its size. Close the answer.
func (a *Admin) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return nil, fmt.Errorf("GET %q of Envoy's admin interface: %s", path, res.Status)
	}
	return res.Body, nil
}
