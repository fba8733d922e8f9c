package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gopkg.in/yaml.v3"
)

const envPrefix = "FAIRLEAD_FLAG_"

// applySettings gives every flag that the command line leaves unset its value
// from the environment (FAIRLEAD_FLAG_CONFIG_DIR for --config-dir), else from
// the settings file. Names that mean nothing are errors: a misspelt setting that
// is silently ignored is found out at the worst time.
func applySettings(cmd *cobra.Command, environ []string) error {
	flags := cmd.Flags()
	fromEnv := map[string]bool{}
	var errs []error
	for _, kv := range oursFirst(environ) {
		key, value, _ := strings.Cut(kv, "=")
		name, ours := strings.CutPrefix(key, envPrefix)
		if !ours {
			errs = append(errs, refuseIstioVariable(cmd, key, value), refuseUnprefixed(cmd, key))
			continue
		}
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		f := flags.Lookup(name)
		if f == nil {
			if !knownElsewhere(cmd.Root(), name) {
				errs = append(errs, unknownVariable(cmd, key, name))
			}
			continue
		}
		if f.Changed {
			continue
		}
		fromEnv[name] = true
		if err := setFlag(flags, f, strings.Split(value, ";")); err != nil {
			errs = append(errs, fmt.Errorf("environment variable %s: %w", key, err))
		}
	}
	if path := flags.Lookup("settings").Value.String(); path != "" {
		errs = append(errs, applySettingsFile(cmd, path, fromEnv))
	}
	errs = append(errs, applyConsulVariables(cmd, environ))
	return errors.Join(errs...)
}

// unknownVariable names the variable that was probably meant. It may be one of another
// command: one environment serves several.
func unknownVariable(cmd *cobra.Command, key, name string) error {
	near := nearest(name, flagNames(cmd.Flags()))
	if near == "" {
		near = nearest(name, allFlagNames(cmd.Root()))
	}
	if near != "" {
		near = ": did you mean " + envPrefix + strings.ToUpper(strings.ReplaceAll(near, "-", "_")) + "?"
	}
	return fmt.Errorf("environment variable %s: there is no flag --%s%s", key, name, near)
}

// ownPrefix is how all variables of ours begin.
const ownPrefix = "FAIRLEAD_"

// refuseUnprefixed refuses a variable that was meant for a flag and lacks FLAG_, or that part is
// misspelt: FAIRLEAD_STATE_DIR. Variables that look like no flag of the command are somebody
// else's, as FAIRLEAD_ENVOY and FAIRLEAD_CONSUL are the tests'.
func refuseUnprefixed(cmd *cobra.Command, key string) error {
	name, ours := strings.CutPrefix(key, ownPrefix)
	if !ours || key == "FAIRLEAD_ENVOY" || key == "FAIRLEAD_CONSUL" || key == "FAIRLEAD_VERSION" {
		return nil
	}
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	names := flagNames(cmd.Flags())
	near := ""
	switch {
	case slices.Contains(names, name):
		near = name
	default:
		for _, n := range names { // a flag of several words is no accident
			if strings.Contains(n, "-") && (strings.HasSuffix(name, "-"+n) || editDistance(name, n) == 1) && len(n) > len(near) {
				near = n
			}
		}
	}
	if near == "" {
		return nil
	}
	return fmt.Errorf("environment variable %s: it would be ignored: did you mean %s? Variables for flags begin with %s", key,
		envPrefix+strings.ToUpper(strings.ReplaceAll(near, "-", "_")), envPrefix)
}

// oursFirst puts FAIRLEAD_FLAG_… before istiod's variables, over which they win.
func oursFirst(environ []string) []string {
	var ours, others []string
	for _, kv := range environ {
		if strings.HasPrefix(kv, envPrefix) {
			ours = append(ours, kv)
		} else {
			others = append(others, kv)
		}
	}
	return slices.Concat(ours, others)
}

func applySettingsFile(cmd *cobra.Command, path string, fromEnv map[string]bool) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("reading the settings: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(content, &doc); err != nil {
		return fmt.Errorf("reading the settings %q: %w", path, err)
	}
	if doc.Kind == 0 {
		return nil
	}
	top := doc.Content[0]
	if top.Kind != yaml.MappingNode {
		return fmt.Errorf("%s:%d:%d: settings are keys and values, one a flag, such as \"state-dir: /var/lib/fairlead\"", path, top.Line, top.Column)
	}
	flags := cmd.Flags()
	seen := map[string]bool{}
	var errs []error
	for i := 0; i < len(top.Content); i += 2 {
		k, v := top.Content[i], top.Content[i+1]
		at := fmt.Sprintf("%s:%d:%d", path, k.Line, k.Column)
		f := flags.Lookup(k.Value)
		switch {
		case seen[k.Value]:
			errs = append(errs, fmt.Errorf("%s: %q is set twice", at, k.Value))
		case k.Value == "settings":
			errs = append(errs, fmt.Errorf("%s: a settings file cannot name another one: remove it", at))
		case f == nil && !knownElsewhere(cmd.Root(), k.Value):
			errs = append(errs, unknownSetting(cmd, at, k.Value))
		case f == nil || f.Changed && !fromEnv[k.Value] || fromEnv[k.Value]:
			// Another subcommand's, or something stronger has set it.
		default:
			values, err := scalars(v)
			if err == nil {
				err = setFlag(flags, f, values)
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("%s:%d:%d: %s: %w", path, v.Line, v.Column, k.Value, err))
			}
		}
		seen[k.Value] = true
	}
	return errors.Join(errs...)
}

// unknownSetting names the key that was probably meant. It may be one of another command.
func unknownSetting(cmd *cobra.Command, at, name string) error {
	near := didYouMean(name, flagNames(cmd.Flags()))
	if near == "" {
		near = didYouMean(name, allFlagNames(cmd.Root()))
	}
	return fmt.Errorf("%s: there is no setting %q%s", at, name, near)
}

func scalars(n *yaml.Node) ([]string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		var out []string
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode {
				return nil, errors.New("a list here holds plain values only")
			}
			out = append(out, c.Value)
		}
		return out, nil
	default:
		return nil, errors.New("the value must be a plain value or a list of them")
	}
}

func setFlag(flags *pflag.FlagSet, f *pflag.Flag, values []string) error {
	if _, list := f.Value.(pflag.SliceValue); !list && len(values) != 1 {
		return fmt.Errorf("--%s takes one value, not %d", f.Name, len(values))
	}
	for _, v := range values {
		if err := flags.Set(f.Name, v); err != nil {
			return err
		}
	}
	return nil
}

// knownElsewhere reports whether some other subcommand has the flag, so that
// server and agent can share a settings file and an environment.
func knownElsewhere(cmd *cobra.Command, name string) bool {
	if cmd.Flags().Lookup(name) != nil || cmd.PersistentFlags().Lookup(name) != nil {
		return true
	}
	return slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return knownElsewhere(c, name) })
}

func flagNames(flags *pflag.FlagSet) []string {
	var names []string
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// editDistance is Levenshtein's.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j]+1, row[j+1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
