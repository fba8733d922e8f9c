package kv

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/manifest"
)

// MaxValueSize is how large a value Consul takes, in bytes, unless it was told
// otherwise (limits.kv_max_value_size).
const MaxValueSize = 512 << 10

// Config says what a Source reads.
type Config struct {
	// Logger is required.
	Logger *slog.Logger
	// Client says how Consul is reached. Its Logger may be nil.
	Client client.Config
	// Prefix is what the keys begin with, up to a slash, such as "fairlead/mesh".
	// Required; slashes around it count for nothing.
	Prefix string

	// Name is the name of the source; empty means "consul-kv".
	Name string
	// Namespaces are the only ones that objects may be in; empty means any. With
	// exactly one, it is also the namespace of objects that name none.
	Namespaces []string
	// UnixSockets lets objects name unix sockets: without it those are kept out,
	// because whoever may write to Consul need not be who runs the hosts.
	UnixSockets bool
	// Files lets them name files of the hosts' in the same way, and LocalAddresses have endpoints at
	// addresses that each host has for itself.
	Files, LocalAddresses bool
	// Domain is the suffix of short host names; empty means "cluster.local".
	Domain string
	// StateDir keeps the last good version of every key in StateDir/consul-kv/NAME;
	// empty means that nothing survives a restart.
	StateDir string
	// AwaitDecision makes the state directory wait for [Source.Decided]: for a receiver that
	// may hold removals.
	AwaitDecision bool
	// RereadEvery is the time between two readings of everything while the blocking
	// query tells of changes; 0 means 30 s. What is wrong, or held back by the
	// receiver, is looked at again after a sixth of that.
	RereadEvery time.Duration
	// MaxKeys bounds the manifests below the prefix; more make it unavailable. 0
	// means 50,000.
	MaxKeys int
	// MaxExpansion bounds what all objects of the source make after expansion; 0 means no bound.
	MaxExpansion int
	// Decode reads the values; nil means package manifest.
	Decode func(opts manifest.Options, path string, content []byte) lastgood.Decoded
}

func (c Config) withDefaults() (Config, error) {
	var errs []error
	if c.Logger == nil {
		errs = append(errs, errors.New("kv: Config.Logger is missing"))
	}
	prefix, err := cleanPrefix(c.Prefix)
	if err != nil {
		errs = append(errs, err)
	}
	c.Prefix = prefix
	if c.Decode == nil {
		c.Decode = lastgood.Manifests
	}
	if c.RereadEvery < 0 || c.MaxKeys < 0 || c.MaxExpansion < 0 {
		errs = append(errs, errors.New("kv: a limit is negative"))
	}
	c.Name = cmp.Or(c.Name, "consul-kv")
	c.RereadEvery = cmp.Or(c.RereadEvery, 30*time.Second)
	c.MaxKeys = cmp.Or(c.MaxKeys, 50_000)
	if c.Client.Logger == nil {
		c.Client.Logger = c.Logger
	}
	return c, errors.Join(errs...)
}

// options say how the values are read.
func (c *Config) options() manifest.Options {
	o := manifest.Options{Source: c.Name, Namespaces: c.Namespaces, NoUnixSockets: !c.UnixSockets, NoFiles: !c.Files, NoLocalAddresses: !c.LocalAddresses, Domain: c.Domain}
	if len(c.Namespaces) == 1 {
		o.Namespace = c.Namespaces[0]
	}
	return o
}

// root names the place in the state directory: the same prefix elsewhere in
// Consul is another place.
func (c *Config) root() string {
	return strings.Join([]string{c.Client.Datacenter, c.Client.Partition, c.Client.Namespace, c.Prefix}, "\x00")
}

// ParsePrefix reads the form PREFIX or PREFIX=NS,NS2 that the command line uses.
func ParsePrefix(s string) (prefix string, namespaces []string, err error) {
	prefix, namespaces, err = manifest.ParseBound(s, "PREFIX")
	if err != nil {
		return "", nil, err
	}
	prefix, err = cleanPrefix(prefix)
	return prefix, namespaces, err
}

// cleanPrefix takes the slashes off that a prefix begins or ends with. Without
// one at its end, Consul would also list its neighbours.
func cleanPrefix(s string) (string, error) {
	prefix := strings.Trim(s, "/")
	if prefix == "" {
		return "", fmt.Errorf("the prefix %q of the keys is empty: name one such as fairlead/mesh", s)
	}
	if err := CheckRel(prefix); err != nil {
		return "", fmt.Errorf("the prefix %q of the keys: %w", s, err)
	}
	return prefix, nil
}
