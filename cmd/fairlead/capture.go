package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/agent/capture/beat"
	"github.com/fairlead/fairlead/agent/capture/keeper"
	"github.com/fairlead/fairlead/internal/safetext"
	"github.com/fairlead/fairlead/pki/durable"
)

// captureFlags are those of several commands of capture.
type captureFlags struct{ file, stateDir, runDir string }

func newCapture() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "capture",
		Short: "Bring the connections of unmodified programs to Envoy",
		Long: `Capture redirects TCP connections to the Envoy of this host, by one table of nf_tables (inet fairlead): the
connections of declared users to the virtual addresses of services, and the connections from
elsewhere to declared ports. Nothing is captured unless you declare and apply it.

The ports of sshd, of the control plane, of Consul, and of Envoy and the agent are never captured. The
agent of the host has to run with --capture.`,
		Args: noArgs,
	}
	cmd.AddCommand(newCapturePlan(), newCaptureApply(), newCaptureConfirm(), newCaptureRemove(), newCaptureRun(), newCaptureStatus())
	return cmd
}

func (f *captureFlags) bindFile(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "capture-file", "/etc/fairlead/capture.yaml", "YAML file that says what is captured")
}

func (f *captureFlags) bindState(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.stateDir, "capture-dir", "/var/lib/fairlead-capture", "directory with the settings of capture that were applied and confirmed")
}

// prepared is a table that may be applied, and what people should know of it.
type prepared struct {
	saved    capture.Saved
	table    *capture.Ruleset
	findings capture.Findings
}

// prepare reads the settings and looks at the host. What is wrong with the settings is printed.
func (f *captureFlags) prepare(cmd *cobra.Command) (*prepared, error) {
	content, err := durable.ReadTrusted(f.file, capture.MaxFile)
	if err != nil {
		return nil, fmt.Errorf("reading the settings of capture: %w", err)
	}
	invalid := func(err error) error {
		for line := range strings.Lines(err.Error()) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), safetext.Sanitize(strings.TrimSuffix(line, "\n"), 1024))
		}
		return errInvalid
	}
	s, err := capture.Parse(f.file, content, lookUpUser)
	if err != nil {
		return nil, invalid(err)
	}
	p := &prepared{saved: capture.Saved{Settings: *s, Facts: capture.FindFacts(os.Getenv("SSH_CONNECTION"))}}
	if p.table, err = capture.Build(s, &p.saved.Facts); err != nil {
		return nil, invalid(fmt.Errorf("%s: %w", f.file, err))
	}
	p.findings, err = capture.Kernel{}.Inspect(p.table)
	if err != nil {
		if !errors.Is(err, os.ErrPermission) {
			return nil, err
		}
		p.findings.Remarks = append(p.findings.Remarks, "the tables of this host were not compared: only root can read them")
	}
	if what := needsService(s); what != "" {
		var service keeper.Status
		if err := beat.Ask(cmd.Context(), filepath.Join(f.runDir, captureSocket), &service); err != nil && !errors.Is(err, fs.ErrPermission) {
			p.findings.Remarks = append(p.findings.Remarks, what+" are captured while the service runs, and it does not: systemctl start fairlead-capture")
		}
	}
	for i := range s.Workloads {
		w := &s.Workloads[i]
		for _, port := range []uint16{w.OutboundPort, w.InboundPort} {
			if !listens(cmd.Context(), port) {
				p.findings.Remarks = append(p.findings.Remarks, fmt.Sprintf("nobody listens at port %d, the Envoy's of workload %s: "+
					"captured connections are refused until it does (the agent needs --capture)", port, w.Name))
			}
		}
	}
	return p, nil
}

// needsService says what of settings is captured while the service runs; empty if nothing depends on
// that.
func needsService(s *capture.Settings) string {
	switch {
	case s.Mode == capture.Open:
		return "mode open: connections"
	case slices.ContainsFunc(s.Workloads, func(w capture.Workload) bool { return w.DNSPort != 0 }):
		return "dns-port: DNS queries"
	default:
		return ""
	}
}

// lookUpUser returns the number of a user.
func lookUpUser(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, errors.New("there is no such user on this host")
	}
	id, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(id), err
}

// listens reports whether something accepts connections at a port of this host.
func listens(ctx context.Context, port uint16) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func (p *prepared) writeFindings(w io.Writer, mark string) {
	for _, r := range p.findings.Remarks {
		_, _ = fmt.Fprintf(w, "%snote: %s\n", mark, safetext.Sanitize(r, 2048))
	}
	for _, r := range p.findings.Refused {
		_, _ = fmt.Fprintf(w, "%srefused: %s\n", mark, safetext.Sanitize(r, 2048))
	}
}

func newCapturePlan() *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print the table that apply would load, and what stands in its way",
		Long: `Reads the settings, looks at this host, and prints the table as nft lists it. It changes nothing. Without
root it cannot compare the table with those of Docker or a firewall, and says so.

Exit code 0: it can be applied; 1: the settings are wrong, or another table redirects a captured port;
2: could not run.`,
		Example: "  fairlead capture plan\n  fairlead capture plan --capture-file capture.yaml",
		Args:    noArgs,
	}
	f.bindFile(cmd)
	f.bindRun(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		p, err := f.prepare(cmd)
		if err != nil {
			return err
		}
		w := cmd.OutOrStdout()
		ports := make([]string, len(p.saved.Facts.SSHPorts))
		for i, port := range p.saved.Facts.SSHPorts {
			ports[i] = strconv.Itoa(int(port))
		}
		_, _ = fmt.Fprintf(w, "# never captured, as ports of sshd on this host: %s\n", strings.Join(ports, ", "))
		for _, r := range p.table.Ranges() {
			_, _ = fmt.Fprintf(w, "# route: %s to lo\n", r)
		}
		_, _ = fmt.Fprintln(w, "# address: ::6/128 of lo")
		p.writeFindings(w, "# ")
		_, _ = fmt.Fprint(w, p.table)
		if len(p.findings.Refused) > 0 {
			return errInvalid
		}
		return nil
	}
	return cmd
}

func newCaptureApply() *cobra.Command {
	var f captureFlags
	var within time.Duration
	var keep bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Load the table for a minute, until it is confirmed",
		Long: `Loads the table in one transaction. Connections that exist go on. If nobody runs "fairlead capture
confirm" in time, the kernel itself stops capturing new connections, so that a mistake cannot lock you
out of the host. If a table was confirmed before and fairlead-capture.service runs, that one comes back
then; without the service nothing is captured.

With --keep the table is confirmed at once.

If the table cannot be loaded, the one before stays.

Exit code 0: loaded; 1: the settings are wrong, or another table redirects a captured port; 2: could not
run.`,
		Example: "  fairlead capture apply && fairlead capture confirm\n  fairlead capture apply --confirm-within 5m",
		Args:    noArgs,
	}
	f.bindFile(cmd)
	f.bindRun(cmd)
	f.bindState(cmd)
	cmd.Flags().DurationVar(&within, "confirm-within", time.Minute, "how long new connections are captured until they have to be confirmed, from 1s to 24h")
	cmd.Flags().BoolVar(&keep, "keep", false, "confirm at once; for settings that were tried on another host: nothing undoes a mistake then")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		const longest = 24 * time.Hour
		if within < time.Second || within > longest {
			return fmt.Errorf("--confirm-within %s: write a time from 1s to 24h", within)
		}
		p, err := f.prepare(cmd)
		if err != nil {
			return err
		}
		p.writeFindings(cmd.ErrOrStderr(), "")
		if len(p.findings.Refused) > 0 {
			return errInvalid
		}
		unlock, err := f.lock(cmd.Context())
		if err != nil {
			return err
		}
		defer unlock()
		if err := p.apply(cmd, f.stateDir, within); err != nil {
			return err
		}
		if keep {
			return f.confirm(cmd)
		}
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "applied. Open a second session to this host, and check your service; then run `fairlead capture confirm`.\n"+
			"Without it new connections go directly again in %s.\n", within)
		return nil
	}
	return cmd
}

// apply loads the table, and what belongs to it.
func (p *prepared) apply(cmd *cobra.Command, stateDir string, within time.Duration) error {
	k := capture.Kernel{}
	before, err := k.State()
	if err != nil {
		return err
	}
	if err := capture.SavePending(stateDir, &p.saved); err != nil {
		return err
	}
	network, err := k.Prepare(p.table)
	if err == nil {
		err = k.Apply(p.table.With(within).Alive(func(port uint16) time.Duration { return before.Alive[port] }))
	}
	if err != nil {
		if !before.Present {
			err = errors.Join(err, k.Withdraw())
		}
		return err
	}
	for _, s := range network.Skipped {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "note: %s\n", safetext.Sanitize(s, 1024))
	}
	return nil
}

// lockPatience is how long a command waits for another one, or for the service, which has the lock
// for some milliseconds.
const lockPatience = 5 * time.Second

// lock has the commands that change something run one at a time, and not while the service
// changes something.
func (f *captureFlags) lock(ctx context.Context) (func(), error) {
	if err := durable.MakeDir(f.stateDir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := durable.Lock(filepath.Join(f.stateDir, "lock"))
		if err == nil {
			return func() { _ = l.Close() }, nil
		}
		if !errors.Is(err, durable.ErrLocked) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("another command changes the capture of this host: %w", err)
		case <-tick.C:
		}
	}
}

func newCaptureConfirm() *cobra.Command {
	var f captureFlags
	cmd := &cobra.Command{
		Use:   "confirm",
		Short: "Keep the table that was applied",
		Long: `Ends the time limit of "fairlead capture apply", and saves the settings that were applied.

Exit code 0: confirmed; 1: there is nothing to confirm, or the time is over; 2: could not run.`,
		Example: "  fairlead capture confirm",
		Args:    noArgs,
	}
	f.bindState(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		unlock, err := f.lock(cmd.Context())
		if err != nil {
			return err
		}
		defer unlock()
		return f.confirm(cmd)
	}
	return cmd
}

// confirm keeps what is applied. The lock is held.
func (f *captureFlags) confirm(cmd *cobra.Command) error {
	_, err := capture.LoadPending(f.stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "nothing to confirm: run `fairlead capture apply` first; what is not confirmed in time is undone")
		return errInvalid
	}
	if err != nil {
		return err
	}
	err = capture.Kernel{}.Confirm(func() error { return capture.SaveConfirmed(f.stateDir) })
	if errors.Is(err, capture.ErrExpired) || errors.Is(err, capture.ErrNoTable) {
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%v: run `fairlead capture apply` again\n", err)
		return errInvalid
	}
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintln(cmd.OutOrStdout(), "confirmed")
	return nil
}

func newCaptureRemove() *cobra.Command {
	var f captureFlags
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Stop capturing, without cutting connections off",
		Long: `Lets new connections go directly at once, waits until no captured connection is left, and then removes the
table, the routes and the saved settings. Connections that are still open after --wait are cut off. If you
interrupt it, new connections go directly, and those that were captured go on; run it again later.

Exit code 0: removed, or there was nothing; 2: could not run.`,
		Example: "  fairlead capture remove\n  fairlead capture remove --wait 10m",
		Args:    noArgs,
	}
	f.bindState(cmd)
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait for captured connections to end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkNotNegative(cmd, "wait"); err != nil {
			return err
		}
		defer untilSignal(cmd)()
		unlock, err := f.lock(cmd.Context())
		if err != nil {
			return err
		}
		defer unlock()
		envoys, err := capture.Retire(f.stateDir) // the service lets it go
		if err != nil {
			return err
		}
		k := capture.Kernel{}
		cut, err := k.Remove(cmd.Context(), envoys, wait)
		if err != nil {
			return err
		}
		if err := errors.Join(k.Withdraw(), capture.Forget(f.stateDir)); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(cmd.OutOrStdout(), "removed; %d captured connections were still open\n", cut)
		return nil
	}
	return cmd
}
