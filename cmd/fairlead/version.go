package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// testedEnvoys are the releases the test suite runs; a test compares them with
// the pinned ones.
func testedEnvoys() []string { return []string{"1.40.0", "1.39.3", "1.38.3", "1.37.0", "1.36.2"} }

// minimumEnvoy is the oldest release that is served.
const minimumEnvoy = "1.36"

type versionInfo struct {
	Version      string   `json:"version"`
	Commit       string   `json:"commit"`
	Go           string   `json:"go"`
	EnvoysTested []string `json:"envoys_tested"`
	EnvoyMinimum string   `json:"envoy_minimum"`
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this binary and the Envoys that it was tested with",
		Example: "  fairlead version\n  fairlead version -o json",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := buildInfo()
			if output == "json" {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			}
			_, err := fmt.Fprint(cmd.OutOrStdout(), v)
			return err
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func buildInfo() versionInfo {
	v := versionInfo{Version: version, Commit: commit, Go: runtime.Version(), EnvoysTested: testedEnvoys(), EnvoyMinimum: minimumEnvoy}
	if b, ok := debug.ReadBuildInfo(); ok && v.Version == "unknown" && b.Main.Version != "" {
		v.Version = b.Main.Version
	}
	return v
}

// String is what people read.
func (v versionInfo) String() string {
	return fmt.Sprintf("fairlead %s\ncommit   %s\ngo       %s\nenvoy    tested with %s; %s or newer is served\n",
		v.Version, v.Commit, v.Go, strings.Join(v.EnvoysTested, ", "), v.EnvoyMinimum)
}
