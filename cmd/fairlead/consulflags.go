package main

import (
	"errors"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/fairlead/fairlead/registry/consul/client"
)

// consulFlags are the flags of every command that reaches Consul.
type consulFlags struct{ client.Config }

// add adds the flags. What differs between commands, such as which datacenters
// and how stale an answer may be, is theirs.
func (f *consulFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.Address, "consul-address", "", "address of Consul's API: HOST:PORT, http://…, https://… or unix:///PATH")
	fl.StringVar(&f.TokenFile, "consul-token-file", "", "file with Consul's ACL token, read again when it changes; empty means the anonymous token")
	fl.StringVar(&f.CAFile, "consul-ca-file", "", "file of CA certificates for Consul's certificate; empty means those of the system")
	fl.StringVar(&f.CertFile, "consul-cert-file", "", "file of the client certificate for Consul; needs --consul-key-file")
	fl.StringVar(&f.KeyFile, "consul-key-file", "", "file of the private key of --consul-cert-file")
	fl.StringVar(&f.ServerName, "consul-tls-server-name", "", "server name that Consul's certificate must have; empty means the host of --consul-address")
	fl.StringVar(&f.Namespace, "consul-namespace", "", "namespace of Consul Enterprise; empty means that of the token")
	fl.StringVar(&f.Partition, "consul-partition", "", "admin partition of Consul Enterprise; empty means that of the Consul agent")
}

// config is what package client needs.
func (f *consulFlags) config(log *slog.Logger) (client.Config, error) {
	if f.Address == "" {
		return client.Config{}, errors.New("--consul-address is required: the address of Consul")
	}
	if (f.CertFile == "") != (f.KeyFile == "") {
		return client.Config{}, errors.New("--consul-cert-file and --consul-key-file go together: name both")
	}
	c := f.Config
	c.Logger = log
	return c, nil
}
