package main

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/agent/check"
)

// TestCheckKnowsEveryPort gives each flag of the agent that chooses a port another one: the check of
// a host looks at it.
func TestCheckKnowsEveryPort(t *testing.T) {
	t.Parallel()
	other := map[string]string{
		"capture-port": "only names a workload to the capture service",
	}
	var names []string
	var f agentFlags
	cmd := &cobra.Command{}
	f.bind(cmd)
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if strings.HasSuffix(flag.Name, "-port") || strings.HasPrefix(strings.TrimPrefix(flag.Usage, "address: "), "IP:PORT") {
			names = append(names, flag.Name)
		}
	})
	if len(names) < 7 {
		t.Fatalf("found the flags %v only", names)
	}
	for _, name := range names {
		if other[name] != "" {
			continue
		}
		const port = 20123
		var f agentFlags
		cmd := &cobra.Command{}
		f.bind(cmd)
		value := strconv.Itoa(port)
		if !strings.HasSuffix(name, "-port") {
			value = "127.0.0.1:" + value
		}
		for flag, v := range map[string]string{name: value, "state-dir": t.TempDir(), "address": "127.0.0.1", "dns": "true"} {
			if err := cmd.Flags().Set(flag, v); err != nil {
				t.Fatal(err)
			}
		}
		in, err := f.checkInput()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(in.Ports, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)) {
			t.Errorf("with --%s %s the check looks at %v", name, value, in.Ports)
		}
	}
}

// TestCheckOfUsualPorts: nobody has to have the ports that the agent replaces by free ones.
func TestCheckOfUsualPorts(t *testing.T) {
	t.Parallel()
	usual := func(args ...string) check.Input {
		var f agentFlags
		cmd := &cobra.Command{}
		f.bind(cmd)
		if err := cmd.ParseFlags(append([]string{"--state-dir", t.TempDir(), "--address", "127.0.0.1"}, args...)); err != nil {
			t.Fatal(err)
		}
		in, err := f.checkInput()
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	if in := usual(); !slices.Equal(in.Usual, []netip.AddrPort{at(15020), at(15021), at(15090)}) || len(in.Ports) > 0 {
		t.Errorf("usual %v, needed %v", in.Usual, in.Ports)
	}
	if in := usual("--stats-port", "-1", "--health-port", "-1", "--http-address", ""); len(in.Usual)+len(in.Ports) > 0 {
		t.Errorf("switched off: usual %v, needed %v", in.Usual, in.Ports)
	}
}
