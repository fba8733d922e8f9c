package scenario

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// ServerConfig says how a control plane is run.
type ServerConfig struct {
	// Binary is the program, Dir a directory for state and logs, Mesh that of the
	// manifests.
	Binary, Dir, Mesh string
	// Plaintext and TLS are the addresses where xDS is served.
	Plaintext, TLS string
	// Args are further arguments.
	Args []string
}

// Server is the process of a control plane.
type Server struct {
	*process
	cfg   ServerConfig
	admin *http.Client
	// Start is how long it took until it was ready.
	Start time.Duration
}

// StartServer starts a control plane and waits until it serves.
func StartServer(ctx context.Context, cfg ServerConfig) (*Server, error) {
	run := filepath.Join(cfg.Dir, "run")
	args := []string{
		"server", "--config-dir", cfg.Mesh, "--state-dir", filepath.Join(cfg.Dir, "state"), "--run-dir", run,
		"--xds-address", cfg.TLS, "--http-address", "", "--xds-plaintext-address", cfg.Plaintext,
	}
	begin := time.Now()
	cmd := exec.CommandContext(ctx, cfg.Binary, append(args, cfg.Args...)...)
	p, err := start(cmd, filepath.Join(cfg.Dir, "server.log"))
	if err != nil {
		return nil, err
	}
	s := &Server{process: p, cfg: cfg}
	s.admin = &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(run, "admin.sock"))
		},
	}}
	for {
		err := s.running()
		if err == nil {
			_, err = s.Ask(ctx, "/readyz")
			if err == nil {
				break
			}
		} else {
			return nil, err
		}
		if time.Since(begin) > patience {
			return nil, errors.Join(err, s.stop(ctx, syscall.SIGKILL))
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return nil, errors.Join(err, s.stop(ctx, syscall.SIGKILL))
		}
	}
	s.Start = time.Since(begin)
	return s, nil
}

// Ask asks at the admin socket.
func (s *Server) Ask(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://admin"+path, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("asking for %q: %w", path, err)
	}
	res, err := s.admin.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking for %q: %w", path, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("asking for %q: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking for %q: %s: %.200s", path, res.Status, body)
	}
	return body, nil
}

// push is what the control plane says of one snapshot.
type push struct {
	Generation uint64    `json:"generation"`
	Started    time.Time `json:"started"`
}

// decided is when the first snapshot after a moment was announced to the
// streams.
func (s *Server) decided(ctx context.Context, after time.Time) (time.Time, error) {
	body, err := s.Ask(ctx, "/debug/pushes")
	if err != nil {
		return time.Time{}, err
	}
	var list []push
	if err := json.Unmarshal(body, &list); err != nil {
		return time.Time{}, fmt.Errorf("reading the pushes: %w", err)
	}
	for _, p := range list {
		if p.Started.After(after) {
			return p.Started, nil
		}
	}
	return time.Time{}, fmt.Errorf("no push after %s is listed", after)
}

// Save keeps what the admin socket answers in a file, such as a profile.
func (s *Server) Save(ctx context.Context, path, file string) error {
	body, err := s.Ask(ctx, path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, body, 0o600); err != nil {
		return fmt.Errorf("keeping %q: %w", path, err)
	}
	return nil
}

// Stop ends the process.
func (s *Server) Stop(ctx context.Context) error { return s.stop(ctx, syscall.SIGTERM) }

// freePort is a port of loopback that nobody listens on now.
func freePort(ctx context.Context) (string, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("looking for a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().String(), nil
}
