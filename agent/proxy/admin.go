package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/agent/peercred"
	"github.com/fairlead/fairlead/internal/portholder"
)

// maxAnswer bounds what is read from an admin interface: a config_dump of a
// very large mesh has tens of megabytes.
const maxAnswer = 256 << 20

// ErrNoAdminSocket means that there is no file of Envoy's admin socket: Envoy has not made it yet,
// or somebody has removed it.
var ErrNoAdminSocket = errors.New("Envoy's admin socket does not exist")

// Admin is a client of one Envoy's admin interface.
type Admin struct {
	client    *http.Client
	network   string
	addresses []string
}

// NewAdmin is a client of the admin interface at the first of the addresses that accepts a
// connection. The network is "unix" or "tcp".
func NewAdmin(network string, addresses ...string) *Admin {
	a := &Admin{network: network, addresses: addresses}
	a.client = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx) },
		// An idle connection to an Envoy that has exited is useless.
		DisableKeepAlives: true,
	}}
	return a
}

// dial connects to the first address that accepts a connection.
func (a *Admin) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	errs := make([]error, 0, len(a.addresses)+1)
	absent := 0
	for _, at := range a.addresses {
		conn, err := d.DialContext(ctx, a.network, at)
		if err == nil {
			return conn, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			absent++
		}
		errs = append(errs, err)
	}
	if absent == len(a.addresses) {
		errs = append(errs, ErrNoAdminSocket)
	}
	return nil, errors.Join(errs...)
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

// StateError is the answer of an Envoy that is not live.
type StateError struct {
	// State is in Envoy's words: PRE_INITIALIZING, INITIALIZING or DRAINING.
	State string
}

func (e *StateError) Error() string { return "Envoy is " + e.State }

// Ready is nil once Envoy is live: it has its configuration and takes traffic.
func (a *Admin) Ready(ctx context.Context) error {
	res, err := a.request(ctx, http.MethodGet, "/ready")
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	const longest = 64
	b, err := io.ReadAll(io.LimitReader(res.Body, longest))
	switch {
	case err != nil:
		return fmt.Errorf("reading \"/ready\" of Envoy's admin interface: %w", err)
	case res.StatusCode == http.StatusServiceUnavailable:
		return &StateError{State: strings.TrimSpace(string(b))}
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("GET \"/ready\" of Envoy's admin interface: %s: %q", res.Status, b)
	}
	return nil
}

// errNotIts means that another process answers at the address of an Envoy's admin interface.
var errNotIts = errors.New("the admin interface is not this process's")

// isOf checks that the admin interface is that of a process. An Envoy of an earlier agent may have had
// another address, and an Envoy of somebody else may have that of the next start.
func (a *Admin) isOf(ctx context.Context, h *handle) error {
	if a.network == "tcp" {
		for _, address := range a.addresses {
			at, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("looking for Envoy's admin interface: %w", err)
			}
			if err := a.listens(at, h); err != nil {
				return err
			}
		}
		return nil
	}
	conn, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	switch pid, err := peercred.Process(conn); {
	case err != nil:
		return fmt.Errorf("looking for Envoy's admin interface: %w", err)
	case pid != h.pid:
		return fmt.Errorf("%w: process %d listens", errNotIts, pid)
	}
	return nil
}

// listens checks that a process has an address, and no other one. Where the processes of other users are
// not visible, as for root in a container without CAP_SYS_PTRACE, the user of the socket decides.
func (*Admin) listens(at netip.AddrPort, h *handle) error {
	ids, users := portholder.Listeners(at)
	switch {
	case len(users) == 0:
		return fmt.Errorf("%w: nothing listens at %s", errNotIts, at)
	case len(ids) > 0 && slices.ContainsFunc(ids, func(id int) bool { return id != h.proc }):
		return fmt.Errorf("%w: at %s, processes %v listen", errNotIts, at, ids)
	case len(ids) > 0:
		return nil
	}
	user, err := h.user()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(users, func(u uint32) bool { return u != user }) {
		return fmt.Errorf("%w: at %s, processes of the users %v listen, and Envoy is of user %d", errNotIts, at, users, user)
	}
	return nil
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

// request asks; close the body of the answer.
func (a *Admin) request(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking Envoy's admin interface: %w", err)
	}
	return res, nil
}

func (a *Admin) do(ctx context.Context, method, path string) ([]byte, error) {
	res, err := a.request(ctx, method, path)
	if err != nil {
		return nil, err
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

// within calls ask with a timeout of askTime, so that an Envoy that hangs does not block the agent.
func within(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	return ask(ctx)
}

// Open begins to read a path, without a limit of its size. Close the answer.
func (a *Admin) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	res, err := a.request(ctx, http.MethodGet, path)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close()
		return nil, fmt.Errorf("GET %q of Envoy's admin interface: %s", path, res.Status)
	}
	return res.Body, nil
}
