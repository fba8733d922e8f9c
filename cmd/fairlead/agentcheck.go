package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead/fairlead/agent"
	"github.com/fairlead/fairlead/agent/capture"
	"github.com/fairlead/fairlead/agent/check"
	"github.com/fairlead/fairlead/agent/proxy"
	"github.com/fairlead/fairlead/cmd/fairlead/internal/admin"
	"github.com/fairlead/fairlead/internal/wallclock"
)

// agentProblems is what a running agent knows to be wrong.
type agentProblems struct {
	Server   string   `json:"server"`
	Refusal  string   `json:"refusal,omitempty"`
	Address  string   `json:"address,omitempty"`
	NotReady []string `json:"not_ready"`
	Remarks  []string `json:"remarks"`
	Version  string   `json:"version"`
	Envoy    string   `json:"envoy"`
	Capture  *bool    `json:"capture,omitempty"`
}

// connectedServer is the control plane of an agent, or empty.
func connectedServer(s agent.Status) string {
	if s.Relay == nil {
		return ""
	}
	return s.Relay.Upstream.Server
}

// refusalOf is what the control plane said last that does not let the host in, or empty.
func refusalOf(s agent.Status) string {
	if s.Relay == nil || s.Relay.Upstream.Server != "" || !s.Relay.Upstream.Rejected {
		return ""
	}
	return s.Relay.Upstream.LastError
}

// addressOf is the address in the node id, TYPE~ADDRESS~NAME~DOMAIN, of an agent, or empty.
func addressOf(s agent.Status) string {
	if parts := strings.Split(s.Node, "~"); len(parts) == 4 {
		return parts[1]
	}
	return ""
}

func newAgentCheck() *cobra.Command {
	var f agentFlags
	var c captureFlags
	var output string
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Say what is wrong on this host, and what to do",
		Long: `Checks this host: the running agent, the clock, disks, the host's certificate or join token, its
address, connections to the control plane, names, Envoy, versions, ports, limits, SELinux, packet capture, and
what a firewall does to captured connections. It changes nothing, and works whether the agent runs or not.

Give it the settings of the agent (--settings), and run it as root or as the agent's user. What it cannot
find out it calls unknown.

Only root can see what is captured. fairlead capture status and plan say more.

Exit code 0: nothing is broken; 1: something is, and the line says what to do; 2: could not run.`,
		Example: "  fairlead agent check --settings /etc/fairlead/agent.yaml\n  fairlead agent check -o json",
		Args:    noArgs,
	}
	f.bind(cmd)
	c.bindState(cmd)
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		in, err := f.checkInput()
		if err != nil {
			return err
		}
		c.runDir = filepath.Dir(f.cfg.CaptureSocket)
		in.AskCapture = c.check
		found := check.Run(cmd.Context(), in)
		if err := writeFindings(cmd.OutOrStdout(), found, output); err != nil {
			return err
		}
		if !check.Well(found) {
			return errInvalid
		}
		return nil
	}
	return cmd
}

// checkInput is what the checks need to know of the settings. Unlike the agent it waits for nothing,
// and takes what is missing as something to report.
func (f *agentFlags) checkInput() (check.Input, error) {
	c := &f.cfg
	in := check.Input{
		StateDir: c.StateDir, RunDir: c.RunDir, Token: c.Token, Servers: c.Servers, Envoy: c.Envoy, Capture: c.Capture, Now: wallclock.Now, Version: version,
		Environ: proxy.Environment(os.Environ(), append(proxy.UsualEnvironment(), c.EnvoyEnv...)),
	}
	if f.tokenFile != "" && f.tokenFile != "-" {
		b, err := os.ReadFile(f.tokenFile)
		in.Token, in.TokenErr = strings.TrimSpace(string(b)), err
	}
	known, address, err := agent.Known(c.StateDir)
	if errors.Is(err, fs.ErrPermission) {
		return in, err
	} // all else is reported by the check of the identity, which is in the same directory
	if len(in.Servers) == 0 {
		in.Servers = known
	}
	if address = cmp.Or(f.address, address); address != "" {
		if in.Address, err = netip.ParseAddr(address); err != nil {
			return in, fmt.Errorf("--address %q: write this host's IP address", address)
		}
	}
	f.checkPorts(&in)
	client := admin.NewClient(filepath.Join(c.RunDir, "admin.sock"))
	in.Ask = func(ctx context.Context) (check.Agent, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		var p agentProblems
		err := client.Do(ctx, http.MethodGet, "/v1/problems", nil, &p)
		address, _ := netip.ParseAddr(p.Address) // none of an older agent
		return check.Agent{Server: p.Server, Refusal: p.Refusal, Address: address, NotReady: p.NotReady, Problems: p.Remarks, Version: p.Version, Envoy: p.Envoy, Capture: p.Capture}, err
	}
	return in, nil
}

// checkPorts adds where Envoy and the agent listen by their settings, but for the ports of capture.
func (f *agentFlags) checkPorts(in *check.Input) {
	c := &f.cfg
	for usual, chosen := range map[uint16]int{agent.DefaultStatsPort: c.StatsPort, agent.DefaultHealthPort: c.HealthPort} {
		switch {
		case !in.Address.IsValid() || chosen < 0:
		case chosen == 0:
			in.Usual = append(in.Usual, netip.AddrPortFrom(in.Address, usual))
		default:
			in.Ports = append(in.Ports, netip.AddrPortFrom(in.Address, uint16(chosen)))
		}
	}
	texts := []string{f.adminAddress}
	if f.httpAddress != usualAgentHTTP {
		texts = append(texts, f.httpAddress)
	} else if at, err := netip.ParseAddrPort(f.httpAddress); err == nil {
		in.Usual = append(in.Usual, at)
	}
	if c.DNS {
		texts = append(texts, f.dnsAddresses...)
	}
	for _, text := range texts {
		if at, err := netip.ParseAddrPort(text); err == nil { // the agent says what is wrong with one that is none
			in.Ports = append(in.Ports, at)
		}
	}
	if c.HTTPProxyPort != 0 {
		in.Ports = append(in.Ports, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), c.HTTPProxyPort))
	}
	slices.SortFunc(in.Usual, netip.AddrPort.Compare)
}

// check is what is known of packet capture on this host.
func (f *captureFlags) check(ctx context.Context) (check.Capture, error) {
	st, err := f.status(ctx)
	if err != nil {
		return check.Capture{}, err
	}
	out := check.Capture{Present: st.Present && !st.Draining, Wrong: st.Wrong}
	confirmed, err := capture.LoadConfirmed(f.stateDir)
	if err != nil {
		return out, nil //nolint:nilerr // the status has said so
	}
	table, err := capture.Build(&confirmed.Settings, &confirmed.Facts)
	if err != nil {
		out.Wrong = append(out.Wrong, err.Error())
		return out, nil
	}
	found, err := capture.Kernel{}.Inspect(table)
	if err != nil {
		return out, err
	}
	out.Wrong, out.Firewall = append(out.Wrong, found.Refused...), found.Remarks
	return out, nil
}

func writeFindings(w io.Writer, found []check.Finding, output string) error {
	if output == "json" {
		return json.NewEncoder(w).Encode(found)
	}
	return table(w, "CHECK\tSTATE\tWHAT", func(w io.Writer) {
		for _, x := range found {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", x.Check, x.State, strings.ReplaceAll(x.What, "\n", "; "))
			if x.Do != "" {
				_, _ = fmt.Fprintf(w, "\t\t-> %s\n", x.Do)
			}
		}
	})
}
