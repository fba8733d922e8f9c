package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// consulVariable is what becomes of a variable.
type consulVariable struct {
	flag string
	tls  bool // counts for https alone
	// reason says what to do instead, where there is no flag; unless is a flag
	// beside which the variable does not matter.
	reason, unless string
}

// consulVariables maps the variables that Consul's own tools read to our flags
// (api/api.go of Consul). Where there is none the variable is refused.
func consulVariables() map[string]consulVariable {
	return map[string]consulVariable{
		"CONSUL_HTTP_TOKEN_FILE": {flag: "consul-token-file"},
		"CONSUL_CACERT":          {flag: "consul-ca-file", tls: true},
		"CONSUL_CLIENT_CERT":     {flag: "consul-cert-file", tls: true},
		"CONSUL_CLIENT_KEY":      {flag: "consul-key-file", tls: true},
		"CONSUL_TLS_SERVER_NAME": {flag: "consul-tls-server-name", tls: true},
		"CONSUL_NAMESPACE":       {flag: "consul-namespace"},
		"CONSUL_PARTITION":       {flag: "consul-partition"},
		"CONSUL_HTTP_TOKEN": {unless: "consul-token-file", reason: "a token is read from a file, where it can be replaced while the process runs: " +
			"write it to one that only this user can read and name that with --consul-token-file, or unset the variable"},
		"CONSUL_HTTP_AUTH":       {reason: "there is no basic authentication here: reach Consul without, or unset the variable"},
		"CONSUL_HTTP_SSL":        {reason: "write https:// in --consul-address and unset the variable"},
		"CONSUL_HTTP_SSL_VERIFY": {reason: "Consul's certificate is always verified: name its authority with --consul-ca-file, or --consul-tls-server-name, and unset the variable"},
		"CONSUL_CAPATH":          {unless: "consul-ca-file", reason: "name a file with --consul-ca-file, and unset the variable"},
	}
}

// applyConsulVariables reads the variables of Consul's own tools where a command
// was told where Consul is, below all else. CONSUL_HTTP_ADDR is not read: it is
// set on many hosts, and nobody's mesh should change for that.
func applyConsulVariables(cmd *cobra.Command, environ []string) error {
	flags := cmd.Flags()
	address := flags.Lookup("consul-address")
	if address == nil || address.Value.String() == "" {
		return nil
	}
	https := strings.HasPrefix(address.Value.String(), "https://")
	var errs []error
	for _, kv := range environ {
		key, value, _ := strings.Cut(kv, "=")
		v, listed := consulVariables()[key]
		if !listed || value == "" {
			continue
		}
		if f := flags.Lookup(v.flag); f != nil {
			if !f.Changed && (!v.tls || https) {
				errs = append(errs, setFlag(flags, f, []string{value}))
			}
			continue
		}
		if f := flags.Lookup(v.unless); v.reason != "" && (f == nil || !f.Changed) && !harmless(key, value, https) {
			errs = append(errs, fmt.Errorf("environment variable %s: %s", key, v.reason))
		}
	}
	return errors.Join(errs...)
}

// harmless reports whether a variable asks for what is done anyway.
func harmless(key, value string, https bool) bool {
	on := strings.EqualFold(value, "true") || value == "1"
	switch key {
	case "CONSUL_HTTP_SSL":
		return on == https
	case "CONSUL_HTTP_SSL_VERIFY":
		return on || !https
	default:
		return false
	}
}
