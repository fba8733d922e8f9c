// Command fairlead is the one binary of the service mesh: the control plane, the
// agent that runs beside an application, and the tools that check, show and
// change a mesh.
//
// This package is flags, signals and exit codes, one file a subcommand; what the
// subcommands do is in the packages that they compose.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/internal/safetext"
)

// Set by the linker (see the Makefile).
var (
	version = "unknown"
	commit  = "unknown" //nolint:gochecknoglobals // the linker writes it
)

// Exit codes of every subcommand.
const (
	exitInvalid = 1 // the answer is no: a document is invalid, a proxy refuses
	exitFailed  = 2 // there is no answer: the command could not run
	exitUnknown = 3 // it is done, and a server on this machine did not say with which result
)

// errInvalid ends a command with [exitInvalid]; everything was said already.
var errInvalid = errors.New("invalid")

// errUnknown ends a command with [exitUnknown]; everything was said already.
var errUnknown = errors.New("unknown")

func main() {
	os.Exit(runWith(context.Background(), os.Stdin, os.Args[1:], os.Stdout, os.Stderr))
}

// untilSignal gives a command that runs for long a context that Ctrl-C and
// SIGTERM end. The others leave signals alone, which end them at once: one that
// waits for its standard input could not be stopped otherwise.
func untilSignal(cmd *cobra.Command) (stop context.CancelFunc) {
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	cmd.SetContext(ctx)
	return stop
}

// run is runWith for commands that read no standard input.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	return runWith(ctx, strings.NewReader(""), args, stdout, stderr)
}

// runWith is main with everything it touches as an argument.
func runWith(ctx context.Context, stdin io.Reader, args []string, stdout, stderr io.Writer) int {
	cmd := newRoot() //nolint:contextcheck // commands get their context from ExecuteContext
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := checkCommand(cmd, args)
	if err == nil {
		err = cmd.ExecuteContext(ctx)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInvalid):
		return exitInvalid
	case errors.Is(err, errUnknown):
		return exitUnknown
	case errors.Is(err, context.Canceled):
		_, _ = fmt.Fprintln(stderr, "fairlead: interrupted")
		return exitFailed
	default:
		lines := strings.Split(explain(err), "\n")
		for i := range lines { // an answer of somebody else may be in it
			lines[i] = safetext.Sanitize(lines[i], 8192)
		}
		_, _ = fmt.Fprintln(stderr, "fairlead: "+strings.Join(lines, "\n"))
		return exitFailed
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "fairlead",
		Short: "A service mesh for virtual machines and bare metal, with Istio's API",
		Long: `Fairlead is a service mesh control plane. It reads Istio YAML from directories, computes the
configuration of every Envoy, and gives each host its configuration and its identity.

Start "fairlead server --config-dir DIR" on one machine. For each host, create a join token with
"fairlead token create", and start "fairlead agent --token-file FILE" there.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.ArbitraryArgs, // checkCommand judges them
		Version:       buildInfo().String(),
	}
	root.SetVersionTemplate("{{.Version}}")
	root.SetFlagErrorFunc(unknownFlag)
	root.PersistentFlags().String("settings", "", "YAML file with settings, one key for each flag; flags and FAIRLEAD_… variables override it")
	root.PersistentFlags().String("log-level", "info", "log level: debug, info, warn or error")
	root.PersistentFlags().String("log-format", "text", "log format: text or json")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Name() == cobra.ShellCompRequestCmd || cmd.Name() == cobra.ShellCompNoDescRequestCmd {
			return nil // it has no flags, and an error would be taken for a completion
		}
		return applySettings(cmd, os.Environ())
	}
	root.AddCommand(
		newServer(), newAgent(), newCapture(), newToken(), newHost(), newRelease(), newClock(), newLogLevel(), newProxyStatus(), newProxyConfig(), newAddresses(), newAuthz(),
		newValidate(), newAnalyze(), newApply(), newConfig(), newConsul(), newRender(), newVersion(),
	)
	addOwnCommands(root)
	return root
}

// addOwnCommands adds the commands that the library would add later: help and completion.
func addOwnCommands(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help":
			checkHelpTopic(c)
		case "completion":
			for _, shell := range c.Commands() {
				shell.Example = "  " + shell.CommandPath() + " --help   # how to load it"
			}
		}
	}
}
