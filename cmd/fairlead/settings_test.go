package main

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// command is a root with one subcommand that has a few flags.
func command(t *testing.T, name string) *cobra.Command {
	t.Helper()
	root := &cobra.Command{Use: "fairlead"}
	root.PersistentFlags().String("settings", "", "")
	sub := &cobra.Command{Use: name, Run: func(*cobra.Command, []string) {}}
	sub.Flags().String("state-dir", "default", "")
	sub.Flags().StringArray("config-dir", nil, "")
	sub.Flags().Duration("debounce-after", 0, "")
	other := &cobra.Command{Use: "agent", Run: func(*cobra.Command, []string) {}}
	other.Flags().String("token-file", "", "")
	root.AddCommand(sub, other)
	sub.InheritedFlags()
	return sub
}

func TestSettings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		args, env []string
		file      string
		want      string // of state-dir and config-dir
		err       string // part of the error
	}{
		"default":                        {want: "default []"},
		"file":                           {file: "state-dir: a\nconfig-dir: [b, c]\n", want: "a [b,c]"},
		"environment_over_file":          {file: "state-dir: a\n", env: []string{"FAIRLEAD_FLAG_STATE_DIR=b"}, want: "b []"},
		"flag_over_all":                  {file: "state-dir: a\n", env: []string{"FAIRLEAD_FLAG_STATE_DIR=b"}, args: []string{"--state-dir=c"}, want: "c []"},
		"list_in_environment":            {env: []string{"FAIRLEAD_FLAG_CONFIG_DIR=a;b=ns"}, want: "default [a,b=ns]"},
		"unknown_key":                    {file: "state-dri: a\n", err: `settings.yaml:1:1: there is no setting "state-dri": did you mean "state-dir"?`},
		"unknown_variable":               {env: []string{"FAIRLEAD_FLAG_STATE_DRI=b"}, err: `there is no flag --state-dri: did you mean FAIRLEAD_FLAG_STATE_DIR?`},
		"without_flag":                   {env: []string{"FAIRLEAD_STATE_DIR=b"}, err: `FAIRLEAD_STATE_DIR: it would be ignored: did you mean FAIRLEAD_FLAG_STATE_DIR?`},
		"without_flag_misspelt":          {env: []string{"FAIRLEAD_STATE_DIRS=b"}, err: `did you mean FAIRLEAD_FLAG_STATE_DIR?`},
		"flag_misspelt":                  {env: []string{"FAIRLEAD_FLAGS_STATE_DIR=b"}, err: `did you mean FAIRLEAD_FLAG_STATE_DIR?`},
		"with_the_command":               {env: []string{"FAIRLEAD_SERVER_STATE_DIR=b"}, err: `did you mean FAIRLEAD_FLAG_STATE_DIR?`},
		"without_flag_of_another":        {env: []string{"FAIRLEAD_TOKEN_FILE=b"}, want: "default []"},
		"of_somebody_else":               {env: []string{"STATE_DIRECTORY=b", "FAIRLEAD_SERVICE_HOST=10.0.0.1", "FAIRLEAD_PORT=tcp://x", "FAIRLEAD_STATE=x", "FAIRLEAD_DIR=x", "FAIRLEAD_ENVOY=x"}, want: "default []"},
		"twice":                          {file: "state-dir: a\nstate-dir: b\n", err: `settings.yaml:2:1: "state-dir" is set twice`},
		"bad_value":                      {file: "debounce-after: soon\n", err: "settings.yaml:1:17: debounce-after: "},
		"two_for_one":                    {file: "state-dir: [a, b]\n", err: "--state-dir takes one value, not 2"},
		"nested":                         {file: "state-dir: {a: b}\n", err: "a plain value or a list"},
		"of_another_command":             {file: "token-file: x\n", want: "default []"},
		"not_a_mapping":                  {file: "- a\n", err: "settings are keys and values"},
		"names_another":                  {file: "settings: x\n", err: "cannot name another one"},
		"istio_variable":                 {env: []string{"PILOT_DEBOUNCE_AFTER=1s"}, want: "default []"},
		"istio_variable_without_meaning": {env: []string{"PILOT_PUSH_THROTTLE=10"}, err: "PILOT_PUSH_THROTTLE: a push does not wait"},
		"istio_variable_unknown":         {env: []string{"PILOT_XYZ=10"}, err: "PILOT_XYZ: it has no meaning here"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := command(t, "server")
			args := c.args
			if c.file != "" {
				path := filepath.Join(t.TempDir(), "settings.yaml")
				if err := os.WriteFile(path, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--settings="+path)
			}
			if err := cmd.ParseFlags(args); err != nil {
				t.Fatal(err)
			}
			err := applySettings(cmd, c.env)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("error %v, want one with %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			dirs, err := cmd.Flags().GetStringArray("config-dir")
			if err != nil {
				t.Fatal(err)
			}
			if got := cmd.Flag("state-dir").Value.String() + " [" + strings.Join(dirs, ",") + "]"; got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestSettingsOfBoth gives a setting by our variable and by istiod's: ours
// counts, in whatever order they come.
func TestSettingsOfBoth(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{
		{"PILOT_DEBOUNCE_AFTER=1s", "FAIRLEAD_FLAG_DEBOUNCE_AFTER=2s"},
		{"FAIRLEAD_FLAG_DEBOUNCE_AFTER=2s", "PILOT_DEBOUNCE_AFTER=1s"},
	} {
		cmd := command(t, "server")
		if err := applySettings(cmd, env); err != nil {
			t.Fatal(err)
		}
		if got := cmd.Flag("debounce-after").Value.String(); got != "2s" {
			t.Errorf("%v: got %s", env, got)
		}
	}
}

// TestOurOtherVariables: no variable that the project itself reads for something else is taken
// for a misspelt flag, by any command.
func TestOurOtherVariables(t *testing.T) {
	t.Parallel()
	used := regexp.MustCompile(`"(FAIRLEAD_[A-Z0-9_]+)["=]|\$\{?(FAIRLEAD_[A-Z0-9_]+)`)
	found := map[string]bool{}
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == ".git" || d.Name() == "testdata"):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go" && filepath.Ext(path) != ".sh" && d.Name() != "Makefile":
			return nil
		case d.Name() == "settings.go" || d.Name() == "settings_test.go":
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range used.FindAllStringSubmatch(string(content), -1) {
			if name := cmp.Or(m[1], m[2]); !strings.HasPrefix(name, envPrefix) {
				found[name] = true
			}
		}
		return nil
	})
	if err != nil || len(found) < 10 {
		t.Fatalf("%d variables found, %v: this test looks for them in the wrong way", len(found), err)
	}
	for _, cmd := range commands(newRoot()) {
		for name := range found {
			if err := refuseUnprefixed(cmd, name); err != nil {
				t.Errorf("%s: %v", cmd.CommandPath(), err)
			}
		}
	}
}
