package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/internal/portholder"
	"github.com/fairlead/fairlead/pki/durable"
)

// maxLog is the size from which a log that nobody bounds is renamed when Envoy starts.
const maxLog = 16 << 20

// The arguments by which [IsEnvoy] recognizes an Envoy.
const (
	bootstrapArg = "-c"
	restartArg   = "--disable-hot-restart"
)

// IsEnvoy reports whether a process is an Envoy that an agent started, this one or another. It
// is false for a process that cannot be inspected.
func IsEnvoy(pid int) bool {
	_, ok := startedWith(pid)
	return ok
}

// LogArgs are the arguments for a log level. At the levels info and warning, Envoy's log has no
// warnings of the component "misc": Envoy writes one for each route table with max_grpc_timeout,
// which is deprecated. Istio sets this field and level, too: the field's successor,
// max_stream_duration, disables the timeout of the route and ends streams with another status.
func LogArgs(level string) []string {
	args := []string{"--log-level", level}
	switch level {
	case "info", "warning", "warn":
		args = append(args, "--component-log-level", "misc:error")
	}
	return args
}

// LogLevels are the log levels in arguments of Envoy: that of all components, and
// NAME:LEVEL,… of single ones. Without arguments Envoy's own default, info, counts.
func LogLevels(args []string) (all, components string) {
	all = "info"
	for i := 0; i+1 < len(args); i++ {
		switch args[i] {
		case "--log-level", "-l":
			all = args[i+1]
		case "--component-log-level":
			components = args[i+1]
		}
	}
	if all == "warn" { // the admin interface does not know this name
		all = "warning"
	}
	return all, components
}

// start starts a new Envoy and records it.
func (p *Process) start(ctx context.Context) (*handle, error) {
	if err := CheckFree(ctx, p.c.Listens); err != nil {
		return nil, err
	}
	if err := p.renew(ctx); err != nil {
		return nil, err
	}
	if err := p.restoreBootstrap(); err != nil {
		return nil, err
	}
	if !p.c.LogBounded {
		if err := setLogAside(p.c.LogFile); err != nil {
			return nil, err
		}
	}
	out, err := openLog(p.c.LogFile)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	args := append([]string{bootstrapArg, p.c.BootstrapPath, restartArg}, p.launch.Args...)
	cmd := exec.Command(p.c.Binary, args...) //nolint:gosec,noctx // the operator's Envoy, which outlives our contexts
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Dir, cmd.Env = "/", p.launch.Env
	// A session of its own: Ctrl-C in our terminal and SIGHUP do not reach it, and it
	// does not end with us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: p.c.Credential}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting Envoy %q: %w", p.c.Binary, err)
	}
	h, err := p.record(ctx, cmd.Process.Pid)
	if err != nil {
		return nil, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	h.child = cmd
	p.log.InfoContext(ctx, "Envoy started", "pid", h.pid, "path", p.c.Binary, "log_path", p.c.LogFile)
	p.set(h, Status{PID: h.pid, Since: time.Now()})
	return h, nil
}

// renew writes the bootstrap of the next Envoy, if that is another one. The addresses that it binds
// are the same.
func (p *Process) renew(ctx context.Context) error {
	if p.c.Renew == nil {
		return nil
	}
	next, err := p.c.Renew(ctx)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("starting Envoy: %w", ctx.Err())
	case err != nil:
		p.log.ErrorContext(ctx, "making Envoy's bootstrap failed; starting it with the one used last", "err", err)
		return nil
	case next.Fingerprint == p.launch.Fingerprint:
		if next.Env != nil {
			p.launch.Env = next.Env
		}
		return nil
	}
	if err := durable.WriteFile(durable.OS{}, p.c.BootstrapPath, next.Bootstrap, 0o600); err != nil {
		if _, missing := os.Lstat(p.c.BootstrapPath); missing != nil { //nolint:gosec // a path of our own configuration
			return fmt.Errorf("writing Envoy's bootstrap: %w", err)
		}
		p.log.ErrorContext(ctx, "writing Envoy's bootstrap failed; starting it with the one used last", "err", err)
		return nil
	}
	if next.Env == nil {
		next.Env = p.c.Env
	}
	p.launch = next
	return nil
}

// restoreBootstrap writes the bootstrap again if somebody removed it, as cleaners of temporary
// files do.
func (p *Process) restoreBootstrap() error {
	_, err := os.Lstat(p.c.BootstrapPath) //nolint:gosec // a path of our own configuration
	if p.launch.Bootstrap == nil || !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	p.log.Warn("Envoy's bootstrap was removed; written again. Exclude the run directory from cleaners of temporary files", "path", p.c.BootstrapPath)
	return durable.WriteFile(durable.OS{}, p.c.BootstrapPath, p.launch.Bootstrap, 0o600)
}

func (p *Process) record(ctx context.Context, pid int) (*handle, error) {
	h, err := openHandle(pid)
	if err != nil {
		return nil, err
	}
	r, err := newRecord(h, p.c.Binary, p.launch.Fingerprint)
	switch write := func() error { return r.save(p.c.StateFile) }; {
	case err != nil:
	case p.c.Save != nil:
		p.c.Save(ctx, write)
	default:
		err = write()
	}
	if err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// CheckFree reports every address that another process listens on. Envoy would not: it binds
// with SO_REUSEPORT, and both would share the connections.
func CheckFree(ctx context.Context, listens []netip.AddrPort) error {
	var errs []error
	for _, at := range listens {
		var lc net.ListenConfig
		l, err := lc.Listen(ctx, "tcp", at.String())
		if err != nil {
			errs = append(errs, fmt.Errorf("Envoy cannot listen at %s: %w", at, portholder.Explain(err, at.String())))
			continue
		}
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// setLogAside renames a log that is large; one old log is kept.
func setLogAside(path string) error {
	if fi, err := os.Stat(path); err == nil && fi.Size() > maxLog { //nolint:gosec // a path of our own configuration
		if err := os.Rename(path, path+".old"); err != nil { //nolint:gosec // a path of our own configuration
			return fmt.Errorf("making room for Envoy's log: %w", err)
		}
	}
	return nil
}

func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) //nolint:gosec // the operator's choice
	if err != nil {
		return nil, fmt.Errorf("opening Envoy's log: %w", err)
	}
	return f, nil
}

// lastLogLine is the last error of Envoy's log, or its last line.
func lastLogLine(path string) string {
	f, err := os.Open(path) //nolint:gosec // the operator's choice
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	const tail = 4096
	if fi, err := f.Stat(); err == nil && fi.Size() > tail {
		if _, err := f.Seek(-tail, io.SeekEnd); err != nil {
			return ""
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, tail))
	if err != nil {
		return ""
	}
	var last, worst string
	for line := range bytes.Lines(b) {
		s := strings.TrimSpace(string(line))
		if s == "" || strings.Contains(s, "[misc]") && strings.Contains(s, "deprecated") {
			continue // a warning about a field is no reason to exit
		}
		last = s
		if strings.Contains(s, "[critical]") || strings.Contains(s, "[error]") {
			worst = s
		}
	}
	if worst != "" {
		last = worst
	}
	const most = 400
	if len(last) > most {
		last = last[:most]
	}
	return last
}
