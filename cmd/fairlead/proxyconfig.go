package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/proxyconfig"
	"github.com/fairlead/fairlead/internal/loglevel"
)

// dumpFormat is Envoy's own form, which -f reads.
const dumpFormat = "dump"

// maxDump limits what is read of a file.
const maxDump = 1 << 30

type proxyConfigFlags struct {
	output, hostRun, file string
	levels                levelFlags
	filters               map[string]*string
}

func newProxyConfig() *cobra.Command {
	f := proxyConfigFlags{filters: map[string]*string{}}
	cmd := &cobra.Command{
		Use:     "proxy-config TYPE [PROXY]",
		Aliases: []string{"pc"},
		Short:   "Show the configuration of a proxy",
		Long: `Shows the configuration of a proxy, with the columns of istioctl. TYPE is one of:

` + typeHelp() + `
Choose where it comes from in one of three ways:
  PROXY                  what the server has sent: a host, NAME.NAMESPACE or a node id
  --agent-run-dir DIR    on the proxy's host: what its Envoy runs, and its health of endpoints
  -f FILE                a config_dump of Envoy; - is standard input

FROM is the line of YAML from which a resource was made; the server knows it. Route tables have
all their virtual hosts, also those that travel by VHDS. Private keys are never shown.

The type log can also change Envoy's log levels, with --level and --reset, on the proxy's host and
until Envoy restarts. Log lines of the levels debug and trace have headers of requests, such as tokens.`,
		Example: "  fairlead proxy-config clusters orders-1 --fqdn payments.shop.internal\n  fairlead proxy-config routes orders-1 --name 8080 -o yaml\n" +
			"  fairlead proxy-config secrets --agent-run-dir /run/fairlead-agent\n" +
			"  fairlead proxy-config all --agent-run-dir /run/fairlead-agent -o dump >dump.json\n  fairlead proxy-config listeners -f dump.json\n" +
			"  fairlead proxy-config log --agent-run-dir /run/fairlead-agent --level rbac:debug,jwt:debug",
		Args: wantArgs(2),
	}
	ask := adminFlag(cmd)
	completion(cmd, ask, false, typeNames, proxyNames)
	flags := cmd.Flags()
	flags.StringVar(&f.hostRun, "agent-run-dir", "", "runtime directory of an agent on this machine, whose Envoy is asked")
	flags.StringVarP(&f.file, "file", "f", "", "read a config_dump of Envoy instead; - is standard input")
	formats := append(proxyconfig.Formats(), dumpFormat)
	flags.StringVarP(&f.output, "output", "o", formats[0], "output format: short, json or yaml; dump is Envoy's config_dump, with --agent-run-dir")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	f.levels.add(cmd, "trace, debug, info, warning, error, critical or off; for log, with --agent-run-dir", "those that the agent starts Envoy with")
	for _, name := range proxyconfig.Filters() {
		f.filters[name] = flags.String(name, "", "show only what has this "+name+"; for "+strings.Join(proxyconfig.WithFilter(name), ", "))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if f.output == "text" { // as other commands call it
			f.output = formats[0]
		}
		if !slices.Contains(formats, f.output) {
			return fmt.Errorf("--output %q: choose %s", f.output, strings.Join(formats, ", "))
		}
		return f.run(cmd, args, ask())
	}
	return cmd
}

// typeHelp lists the types, with their aliases.
func typeHelp() string {
	var b strings.Builder
	for _, t := range proxyconfig.Types() {
		_, _ = fmt.Fprintf(&b, "  %-14s %s\n", t.Name, strings.Join(t.Aliases, ", "))
	}
	return b.String()
}

func (f *proxyConfigFlags) run(cmd *cobra.Command, args []string, client *admin.Client) error {
	t, err := proxyconfig.Find(args[0])
	if err != nil {
		return err
	}
	filters := map[string]string{}
	for name, value := range f.filters {
		if *value != "" {
			filters[name] = *value
		}
	}
	if err := t.Check(filters); err != nil {
		return err
	}
	levels, err := f.levels.read()
	if err != nil {
		return err
	}
	var entries []proxyconfig.Entry
	switch {
	case f.levels.given() && (t.Name != proxyconfig.Log || f.hostRun == ""):
		return errors.New("--level and --reset change Envoy's log levels: choose the type log, and --agent-run-dir on the proxy's host")
	case f.file != "" && f.hostRun != "", (f.file != "" || f.hostRun != "") && len(args) > 1:
		return errors.New("PROXY, --agent-run-dir and -f exclude each other: choose one")
	case f.output == dumpFormat && f.hostRun == "":
		return errors.New("-o dump needs --agent-run-dir: only the proxy's host has Envoy's config_dump")
	case f.output == dumpFormat:
		return f.copyDump(cmd, &t, filters)
	case f.hostRun != "":
		if f.levels.given() {
			if err := setEnvoyLevels(cmd.Context(), admin.NewClient(f.hostRun+"/admin.sock"), levels, f.levels.reset); err != nil {
				return err
			}
		}
		entries, err = askAgent(cmd.Context(), admin.NewClient(f.hostRun+"/admin.sock"), &t)
	case f.file != "":
		entries, err = readDump(cmd.InOrStdin(), f.file, &t)
	case len(args) < 2:
		return errors.New("PROXY is required: `fairlead proxy-status` lists them")
	default:
		entries, err = askServer(cmd.Context(), client, args[1], &t)
	}
	if err != nil {
		return err
	}
	return t.Write(cmd.OutOrStdout(), f.output, filters, entries)
}

// copyDump writes Envoy's config_dump as it is, with secrets masked by the agent.
func (f *proxyConfigFlags) copyDump(cmd *cobra.Command, t *proxyconfig.Type, filters map[string]string) error {
	if t.Name != proxyconfig.All || len(filters) > 0 {
		return errors.New("-o dump is the whole config_dump: choose the type all, and no filter")
	}
	raw, err := agentDump(cmd.Context(), admin.NewClient(f.hostRun+"/admin.sock"))
	if err == nil {
		_, err = cmd.OutOrStdout().Write(raw)
	}
	return err
}

// askServer asks what a server has sent.
func askServer(ctx context.Context, client *admin.Client, proxy string, t *proxyconfig.Type) ([]proxyconfig.Entry, error) {
	if _, err := proxyconfig.FindServed(t.Name); err != nil {
		return nil, err
	}
	var all []proxyconfig.Entry
	for _, name := range t.Needs() {
		var some []proxyconfig.Entry
		if err := client.Do(ctx, http.MethodGet, "/v1/config/"+url.PathEscape(proxy)+"?type="+url.QueryEscape(name), nil, &some); err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func agentDump(ctx context.Context, client *admin.Client) (raw []byte, err error) {
	err = client.Do(ctx, http.MethodGet, "/v1/config_dump", nil, &raw)
	return raw, err
}

// askAgent asks what the Envoy of an agent runs.
func askAgent(ctx context.Context, client *admin.Client, t *proxyconfig.Type) ([]proxyconfig.Entry, error) {
	var raw []byte
	if t.Name == proxyconfig.Log {
		if err := client.Do(ctx, http.MethodGet, "/v1/logging", nil, &raw); err != nil {
			return nil, err
		}
		levels, err := proxyconfig.Loggers(raw)
		return []proxyconfig.Entry{levels}, err
	}
	raw, err := agentDump(ctx, client)
	if err != nil {
		return nil, err
	}
	entries, err := proxyconfig.Read(raw)
	if err != nil || t.Name != proxyconfig.Endpoint {
		return entries, err
	}
	if err := client.Do(ctx, http.MethodGet, "/v1/clusters", nil, &raw); err != nil {
		return nil, err
	}
	return entries, proxyconfig.AddHealth(entries, raw)
}

// setEnvoyLevels changes log levels of the Envoy of an agent.
func setEnvoyLevels(ctx context.Context, client *admin.Client, levels []loglevel.Component, reset bool) error {
	change := agent.LogChange{Reset: reset}
	for _, l := range levels {
		change.Levels = append(change.Levels, agent.LoggerLevel{Logger: l.Name, Level: l.Level})
	}
	return client.Do(ctx, http.MethodPost, "/v1/logging", change, nil)
}

// readDump reads a config_dump from a file, or from standard input.
func readDump(stdin io.Reader, file string, t *proxyconfig.Type) ([]proxyconfig.Entry, error) {
	if t.Name == proxyconfig.Log {
		return nil, errors.New("a config_dump has no log levels: ask on the proxy's host with --agent-run-dir")
	}
	from := stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer opened.Close()
		from = opened
	}
	raw, err := io.ReadAll(io.LimitReader(from, maxDump+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s: %w", file, err)
	case len(raw) > maxDump:
		return nil, fmt.Errorf("reading %s: it has more than %d bytes", file, maxDump)
	}
	entries, err := proxyconfig.Read(raw)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	return entries, nil
}
