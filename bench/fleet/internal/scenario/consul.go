package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/catalog"
)

// consul is the process of a Consul server at its default limits, filled.
type consul struct {
	*process
	http, https string // URLs
	writer      *catalog.Writer
}

// startConsul starts a server that keeps everything in memory.
func startConsul(ctx context.Context, binary, dir string, spec catalog.Spec, certs pair) (*consul, error) {
	ports := make([]string, 5)
	for i := range ports {
		address, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		u := url.URL{Host: address}
		ports[i] = u.Port()
	}
	args := []string{
		"agent", "-dev", "-bind", "127.0.0.1", "-client", "127.0.0.1", "-log-level", "warn", "-http-port", ports[0], "-https-port", ports[1],
		"-server-port", ports[2], "-serf-lan-port", ports[3], "-serf-wan-port", ports[4], "-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1",
		"-hcl", fmt.Sprintf("tls { https { cert_file = %q, key_file = %q } }", certs.cert, certs.key),
	}
	p, err := start(exec.CommandContext(ctx, binary, args...), filepath.Join(dir, "consul.log"))
	if err != nil {
		return nil, err
	}
	c := &consul{process: p, http: "http://127.0.0.1:" + ports[0], https: "https://127.0.0.1:" + ports[1]}
	c.writer = &catalog.Writer{Spec: spec, URL: c.http, Client: &http.Client{Timeout: patience}}
	return c, errors.Join(c.elected(ctx), p.running())
}

// elected waits until the server takes writes.
func (c *consul) elected(ctx context.Context) error {
	for begin := time.Now(); ; {
		err := c.writer.Ready(ctx)
		if err == nil {
			return nil
		}
		if time.Since(begin) > patience || c.running() != nil {
			return errors.Join(err, c.stop(ctx, syscall.SIGKILL))
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

func (c *consul) close(ctx context.Context) error { return c.stop(ctx, syscall.SIGKILL) }
