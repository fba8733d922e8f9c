package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commands are all commands and groups.
func commands(root *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{root}
	for _, c := range root.Commands() {
		out = append(out, commands(c)...)
	}
	return out
}

// TestUnknownCommandsAreErrors misspells every command of every group, and the group's own name
// for help.
func TestUnknownCommandsAreErrors(t *testing.T) {
	t.Parallel()
	for _, c := range commands(newRoot()) {
		if !c.HasSubCommands() {
			continue
		}
		path := strings.Fields(c.CommandPath())[1:]
		for _, name := range commandNames(c) {
			if len(name) < 4 {
				continue
			}
			misspelt := name[:2] + name[3:] // a letter is missing
			if slices.Contains(commandNames(c), misspelt) {
				continue
			}
			for _, args := range [][]string{append(slices.Clone(path), misspelt), append(append([]string{"help"}, path...), misspelt)} {
				code, out, errs := cli(t, args...)
				if code != exitFailed || out != "" || !strings.Contains(errs, `"`+misspelt+`"`) || !strings.Contains(errs, `did you mean "`+name+`"?`) {
					t.Errorf("%q: %d, %q %q: want code %d and %q to be named", args, code, out, errs, exitFailed, name)
				}
			}
		}
		if code, _, errs := cli(t, append(path, "xyzzy")...); code != exitFailed || !strings.Contains(errs, c.CommandPath()+" --help") || strings.Contains(errs, "mean") {
			t.Errorf("%s xyzzy: %d %q", c.CommandPath(), code, errs)
		}
		if c.Runnable() {
			continue
		}
		if code, out, errs := cli(t, path...); code != 0 || !strings.Contains(out, "Usage:") {
			t.Errorf("%s: %d %s", c.CommandPath(), code, errs)
		}
	}
}

// TestUnknownVariablesAreErrors misspells variables of every command at every command: of its own
// flags, and of another command's.
func TestUnknownVariablesAreErrors(t *testing.T) {
	t.Parallel()
	all := allFlagNames(newRoot())
	if len(all) < 100 || !slices.Contains(all, "config-dir") || !slices.Contains(all, "token-file") || !slices.Contains(all, "log-level") {
		t.Fatalf("flags of all commands: %v", all)
	}
	for _, c := range commands(newRoot()) {
		if !c.Runnable() || c.Hidden {
			continue
		}
		c.InheritedFlags() // merges the flags of its parents
		for _, flag := range []string{"config-dir", "token-file", "log-level", "unauthenticated-timeout"} {
			right := envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
			wrong := right[:len(right)-2] + right[len(right)-1:]
			err := applySettings(c, []string{wrong + "=x"})
			if err == nil || !strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), "did you mean "+right+"?") {
				t.Errorf("%s with %s: %v; want %s to be named", c.CommandPath(), wrong, err, right)
			}
		}
		if err := applySettings(c, []string{envPrefix + "XYZZY=x"}); err == nil || strings.Contains(err.Error(), "mean") {
			t.Errorf("%s with a variable like no other: %v", c.CommandPath(), err)
		}
		for p := c; p != nil; p = p.Parent() {
			if p.PersistentPreRunE != nil && p.HasParent() || p.PersistentPreRun != nil {
				t.Errorf("%s does not read the environment as the others do", c.CommandPath())
			}
		}
	}
}

// TestUnknownFlagsNameTheNearOne misspells a flag of every command.
func TestUnknownFlagsNameTheNearOne(t *testing.T) {
	t.Parallel()
	for _, c := range commands(newRoot()) {
		if !c.Runnable() {
			continue
		}
		args := slices.Concat(strings.Fields(c.CommandPath())[1:], []string{"--log-levl", "x"})
		if code, _, errs := cli(t, args...); code != exitFailed || !strings.Contains(errs, `did you mean "log-level"?`) {
			t.Errorf("%q: %d %s", args, code, errs)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	_, want, _ := cli(t, "version")
	if code, out, errs := cli(t, "--version"); code != 0 || out != want || !strings.Contains(out, "fairlead ") {
		t.Errorf("--version: %d %q %s, want %q", code, out, errs, want)
	}
}

// TestAliases: people know istioctl's short names.
func TestAliases(t *testing.T) {
	t.Parallel()
	for short, long := range map[string]string{"ps": "proxy-status", "pc": "proxy-config"} {
		c, _, err := newRoot().Find([]string{short})
		if err != nil || c.Name() != long {
			t.Errorf("%s: %v", short, err)
		}
	}
}

// TestShellsAreAnswered: the library has commands of its own for shells.
func TestShellsAreAnswered(t *testing.T) {
	t.Parallel()
	for _, request := range []string{cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd} {
		if code, out, errs := cli(t, request, "token", "cr"); code != 0 || !strings.HasPrefix(out, "create") {
			t.Errorf("%s: %d %s%s", request, code, out, errs)
		}
	}
}
