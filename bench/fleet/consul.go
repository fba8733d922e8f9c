package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/catalog"
	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
)

// consulBinary is where `make tools` puts Consul.
const consulBinary = ".tools/consul-1.20.1/consul"

// full is the catalog of the report.
func full() catalog.Spec { return catalog.Spec{Services: 5000, Instances: 20, Nodes: 2000} }

// consul measures one catalog by hand.
func consul(ctx context.Context, args []string, out io.Writer) error {
	f := flag.NewFlagSet("consul", flag.ContinueOnError)
	cfg := scenario.CatalogConfig{Spec: full()}
	f.StringVar(&cfg.Binary, "fairlead", "bin/fairlead", "the program of the control plane")
	f.StringVar(&cfg.Consul, "consul", consulBinary, "the program of Consul")
	f.StringVar(&cfg.Dir, "dir", "", "for logs and profiles; empty means a temporary one, which is removed")
	f.IntVar(&cfg.Spec.Services, "services", cfg.Spec.Services, "services of the catalog")
	f.IntVar(&cfg.Spec.Instances, "instances", cfg.Spec.Instances, "instances of a service")
	f.IntVar(&cfg.Spec.Nodes, "nodes", cfg.Spec.Nodes, "nodes that they are on")
	f.IntVar(&cfg.Proxies, "proxies", 10, "proxies of the fleet")
	f.IntVar(&cfg.Starts, "starts", 2, "how often the control plane is started with nothing on disk, the last time through the proxy that counts")
	f.IntVar(&cfg.Flips, "flips", 100, "how often a check is made to fail, and to pass again")
	f.IntVar(&cfg.Added, "added", 3, "how often an instance is registered, and deregistered")
	f.DurationVar(&cfg.Flap, "flap", 20*time.Second, "for how long one check changes every second")
	f.DurationVar(&cfg.Idle, "idle", 40*time.Second, "how long nothing happens")
	f.BoolVar(&cfg.Profile, "profile", false, "make CPU profiles of the control plane, in -dir")
	ways := f.String("ways", "http,https", "how Consul is asked; empty only fills it")
	if err := f.Parse(args); err != nil {
		return err
	}
	cfg.Args = f.Args()
	for way := range strings.SplitSeq(*ways, ",") {
		switch way {
		case "http", "https":
			cfg.Secure = append(cfg.Secure, way == "https")
		case "":
		default:
			return errors.New("consul: -ways: write http, https or both, with a comma")
		}
	}
	if cfg.Dir == "" {
		dir, err := os.MkdirTemp("", "fleet")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		cfg.Dir = dir
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return err
	}
	res, err := scenario.RunCatalog(ctx, cfg)
	if err != nil {
		return err
	}
	return write(out, res)
}
