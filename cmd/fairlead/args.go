package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

// noArgs refuses what is no flag.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if cmd.HasSubCommands() {
		return unknownCommand(cmd, args[0])
	}
	return fmt.Errorf("unexpected argument %q: %s takes flags only; see %s --help", args[0], cmd.CommandPath(), cmd.CommandPath())
}

// wantArgs takes at least one argument and no more than most, 0 meaning any
// number, and says what is missing by the command's own line of usage.
func wantArgs(most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 0:
			return fmt.Errorf("missing argument; usage: %s", cmd.UseLine())
		case most > 0 && len(args) > most:
			return fmt.Errorf("unexpected argument %q; usage: %s", args[most], cmd.UseLine())
		default:
			return nil
		}
	}
}

// checkNotNegative refuses flags of a command that are a time below zero.
func checkNotNegative(cmd *cobra.Command, names ...string) error {
	var errs []error
	for _, name := range names {
		d, err := cmd.Flags().GetDuration(name)
		if err == nil && d < 0 {
			err = fmt.Errorf("--%s %s: a time below zero: write one such as %s", name, d, 5*time.Second)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
