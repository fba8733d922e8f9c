package scenario

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
)

// Kind is a kind of change.
type Kind string

// The kinds.
const (
	Route    Kind = "route"    // a VirtualService is edited
	Endpoint Kind = "endpoint" // an endpoint is replaced
	Many     Kind = "many"     // a fifth of all services are edited
	// GatewayRoute is that a VirtualService of a Gateway is edited, which no sidecar has.
	GatewayRoute Kind = "gateway-route"
)

// subject is a server that is measured.
type subject interface {
	proc() *process
	// change makes a change; all that is new of it has the marker of its revision.
	change(ctx context.Context, kind Kind, revision int) (time.Time, error)
	// decided is the decision to push that a change led to.
	decided(ctx context.Context, change time.Time) (time.Time, error)
	// save keeps a profile of some seconds, 0 for the heap, if the server can
	// make one.
	save(ctx context.Context, seconds int, file string) error
	close(ctx context.Context) error
}

// marker is that of a revision of a kind.
func marker(s meshgen.Spec, kind Kind, revision int) string {
	if kind == Endpoint {
		return s.EndpointMarker(revision)
	}
	return s.RouteMarker(revision)
}

// ours is a control plane and the files that it reads.
type ours struct {
	cfg    ServerConfig
	server *Server
	spec   meshgen.Spec
	mesh   string
}

func (o *ours) proc() *process { return o.server.process }

func (o *ours) change(_ context.Context, kind Kind, revision int) (time.Time, error) {
	var c meshgen.Change
	var err error
	switch kind {
	case Route:
		c, err = o.spec.EditRoute(o.mesh, o.spec.EditedRoute(), revision)
	case Endpoint:
		c, err = o.spec.ReplaceEndpoint(o.mesh, o.spec.EditedHosts(), revision)
	case GatewayRoute:
		c, err = o.spec.EditGatewayRoute(o.mesh, revision)
	case Many:
		c, _, err = o.spec.EditMany(o.mesh, meshgen.Share, revision)
	}
	return c.At, err
}

func (o *ours) decided(ctx context.Context, change time.Time) (time.Time, error) {
	return o.server.decided(ctx, change)
}

func (o *ours) save(ctx context.Context, seconds int, file string) error {
	if seconds == 0 {
		return o.server.Save(ctx, "/debug/pprof/heap", file)
	}
	return o.server.Save(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds), file)
}

func (o *ours) close(ctx context.Context) error { return o.server.Stop(ctx) }

// scripted is a server that sends what lines of JSON say, and generates nothing.
type scripted struct {
	*process
	in    io.WriteCloser
	out   *bufio.Reader
	order func(kind Kind, revision int) any
}

// startScripted starts one, and waits until it serves.
func startScripted(ctx context.Context, dir, binary string, args []string, order func(kind Kind, revision int) any) (*scripted, error) {
	cmd := exec.CommandContext(ctx, binary, args...)
	in, out, err := pipes(cmd)
	if err != nil {
		return nil, err
	}
	p, err := start(cmd, filepath.Join(dir, "peer.log"))
	if err != nil {
		return nil, err
	}
	t := &scripted{process: p, in: in, out: out, order: order}
	if _, err := t.answer(); err != nil {
		return nil, errors.Join(err, t.close(ctx))
	}
	return t, nil
}

// pipes are the standard input and output of a command that is to be started.
func pipes(cmd *exec.Cmd) (io.WriteCloser, *bufio.Reader, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("starting %q: %w", cmd.Path, err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("starting %q: %w", cmd.Path, err)
	}
	return in, bufio.NewReader(out), nil
}

func (t *scripted) answer() (time.Time, error) {
	line, err := t.out.ReadBytes('\n')
	if err != nil {
		return time.Time{}, fmt.Errorf("hearing from %q: %w", t.cmd.Path, errors.Join(err, t.running()))
	}
	var a struct {
		At int64 `json:"at"`
	}
	if err := json.Unmarshal(line, &a); err != nil {
		return time.Time{}, fmt.Errorf("hearing from %q: %w", t.cmd.Path, err)
	}
	return time.Unix(0, a.At), nil
}

func (t *scripted) proc() *process { return t.process }

func (t *scripted) change(_ context.Context, kind Kind, revision int) (time.Time, error) {
	line, err := json.Marshal(t.order(kind, revision))
	if err != nil {
		return time.Time{}, fmt.Errorf("telling %q: %w", t.cmd.Path, err)
	}
	if _, err := t.in.Write(append(line, '\n')); err != nil {
		return time.Time{}, fmt.Errorf("telling %q: %w", t.cmd.Path, err)
	}
	return t.answer()
}

// decided is the time of the command: there is nothing to decide.
func (*scripted) decided(_ context.Context, change time.Time) (time.Time, error) { return change, nil }

func (*scripted) save(context.Context, int, string) error { return nil }

func (t *scripted) close(ctx context.Context) error {
	return errors.Join(t.in.Close(), t.stop(ctx, syscall.SIGKILL))
}

// startPeer starts a server of go-control-plane's caches, with a feed of which
// every revision is 0.
func startPeer(ctx context.Context, cfg CellConfig, address string) (*scripted, error) {
	last := map[Kind]int{}
	return startScripted(ctx, cfg.Dir, cfg.Binary, []string{"-address", address, "-cache", string(cfg.Subject), "-feed", cfg.Feed},
		func(kind Kind, revision int) any {
			from := last[kind]
			last[kind] = revision
			return map[string]string{"from": marker(cfg.Mesh, kind, from), "to": marker(cfg.Mesh, kind, revision)}
		})
}

// LimitCommand is the subcommand of this program that is the limit.
const LimitCommand = "limit"

// startLimit starts the server that fans messages out.
func startLimit(ctx context.Context, cfg CellConfig, address string) (*scripted, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	args := []string{LimitCommand, "-address", address, "-cold", strconv.Itoa(cfg.Sizes.Cold), "-tls=" + strconv.FormatBool(cfg.TLS)}
	return startScripted(ctx, cfg.Dir, self, args, func(kind Kind, revision int) any {
		sizes := map[Kind]int{Route: cfg.Sizes.Route, Endpoint: cfg.Sizes.Endpoint, Many: cfg.Sizes.Table}
		return LimitOrder{Marker: marker(cfg.Mesh, kind, revision), Size: sizes[kind]}
	})
}

// LimitOrder is a command for the limit.
type LimitOrder struct {
	Marker string `json:"marker"`
	Size   int    `json:"size"`
}
