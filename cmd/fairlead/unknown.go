package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// checkCommand refuses arguments that name no command. The library itself shows the help
// of a group, such as "fairlead token", for whatever is written behind it.
func checkCommand(root *cobra.Command, args []string) error {
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		return nil // a shell asks for completions
	}
	cmd, rest, err := root.Find(args)
	if err != nil || !cmd.HasSubCommands() || cmd.Runnable() {
		return nil //nolint:nilerr // the library says the same
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if err := cmd.ParseFlags(rest); err != nil || cmd.Flags().NArg() == 0 {
		return nil //nolint:nilerr // the library says the same
	}
	return unknownCommand(cmd, cmd.Flags().Arg(0))
}

// unknownCommand says which command is near.
func unknownCommand(parent *cobra.Command, name string) error {
	return fmt.Errorf("%s has no command %q%s; see %s --help", parent.CommandPath(), name, didYouMean(name, commandNames(parent)), parent.CommandPath())
}

// commandNames are the commands of a group, with their aliases.
func commandNames(parent *cobra.Command) []string {
	var names []string
	for _, c := range parent.Commands() {
		if !c.Hidden {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}
	return names
}

// unknownFlag says which flag of the command is near, or which command has the flag.
func unknownFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok || unknown.GetSpecifiedShortnames() != "" {
		return err
	}
	name := unknown.GetSpecifiedName()
	near := didYouMean(name, flagNames(cmd.Flags()))
	if near == "" {
		near = "; see " + cmd.CommandPath() + " --help"
	}
	return fmt.Errorf("%w%s", err, near)
}

// checkHelpTopic makes "fairlead help NAME" an error for a name that is no command.
func checkHelpTopic(help *cobra.Command) {
	show := help.Run
	help.Run = nil
	help.Example = "  fairlead help token create"
	help.RunE = func(cmd *cobra.Command, args []string) error {
		target, rest, err := cmd.Root().Find(args)
		switch {
		case err != nil:
			return unknownCommand(cmd.Root(), args[0])
		case len(rest) > 0:
			return unknownCommand(target, rest[0])
		}
		show(cmd, args)
		return nil
	}
}

// allFlagNames are the flags of all commands, for which an environment may have variables.
func allFlagNames(cmd *cobra.Command) []string {
	names := slices.Concat(flagNames(cmd.Flags()), flagNames(cmd.PersistentFlags()))
	for _, c := range cmd.Commands() {
		names = append(names, allFlagNames(c)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// nearest is the known name that somebody probably meant, or empty: the one that differs in the
// fewest letters, or the only one that begins so.
func nearest(name string, known []string) string {
	best, distance := "", min(3, len(name))
	for _, k := range known {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	if best != "" || len(name) < 3 {
		return best
	}
	for _, k := range known {
		if !strings.HasPrefix(k, name) {
			continue
		}
		if best != "" {
			return "" // several
		}
		best = k
	}
	return best
}

// didYouMean is ": did you mean X?" where a name is near, else empty.
func didYouMean(name string, known []string) string {
	if best := nearest(name, known); best != "" {
		return fmt.Sprintf(": did you mean %q?", best)
	}
	return ""
}
