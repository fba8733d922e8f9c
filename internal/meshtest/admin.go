package meshtest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// Admin asks a process of the mesh by its admin.sock: "server", or a host's name.
func (m *Mesh) Admin(process, path string) (string, error) {
	return ask(m.tb.Context(), filepath.Join(m.RunDir(process), "admin.sock"), path)
}

// EnvoyAdmin asks a host's Envoy itself.
func (m *Mesh) EnvoyAdmin(host, path string) (string, error) {
	socket, err := m.EnvoyAdminSocket(host)
	if err != nil {
		return "", err
	}
	return ask(m.tb.Context(), socket, path)
}

// EnvoyAdminSocket is the path of the admin socket of a host's Envoy. Its name is
// one that nobody can guess, and it is the only one in its directory.
func (m *Mesh) EnvoyAdminSocket(host string) (string, error) {
	list, err := filepath.Glob(filepath.Join(m.RunDir(host), "envoy", "*"))
	if err != nil {
		return "", err
	}
	if len(list) != 1 {
		return "", fmt.Errorf("%s has the admin sockets %q of Envoy, want one", host, list)
	}
	return list[0], nil
}

func ask(ctx context.Context, socket, path string) (string, error) {
	var d net.Dialer
	c := &http.Client{Timeout: envoytest.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", socket) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://unix"+path, http.NoBody)
	if err != nil {
		return "", err
	}
	res, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, res.Status, b)
	}
	return string(b), err
}
