package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/bench/fleet/internal/meshgen"
	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

const usage = "fleet table|cell|restart|join|stalled|churn|consul|mesh|feed [flags]; fleet cell -h"

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "cell":
		return cell(ctx, args[1:], out)
	case "table":
		return measure(ctx, args[1:], out)
	case "restart":
		return restart(ctx, args[1:], out)
	case "join":
		return runJoin(ctx, args[1:], out)
	case "stalled":
		return runStalled(ctx, args[1:], out)
	case "churn":
		return churn(ctx, args[1:], out)
	case "consul":
		return consul(ctx, args[1:], out)
	case "feed":
		return feed(ctx, args[1:])
	case "mesh":
		return mesh(args[1:])
	case scenario.LimitCommand:
		return fanOut(ctx, args[1:], os.Stdin, out)
	case scenario.FleetCommand:
		return scenario.ServeFleet(ctx, os.Stdin, out)
	default:
		return errors.New(usage)
	}
}

// meshFlags are the size of a mesh.
func meshFlags(f *flag.FlagSet) *meshgen.Spec {
	s := &meshgen.Spec{}
	f.IntVar(&s.Services, "services", 1000, "services of the mesh")
	f.IntVar(&s.Endpoints, "endpoints", 10, "endpoints of a service")
	f.IntVar(&s.Proxies, "proxies", 1000, "proxies of the fleet")
	f.IntVar(&s.Rules, "rules", meshgen.DefaultRules, "how many of a hundred services have a VirtualService and a DestinationRule")
	f.BoolVar(&s.OwnSidecars, "own-sidecars", false, "give every proxy a Sidecar of its own")
	f.BoolVar(&s.Capture, "capture", false, "have all proxies capture packets, and services get their addresses from the control plane")
	f.IntVar(&s.Gateways, "gateways", 0, "Gateways of the mesh, each with a VirtualService")
	f.IntVar(&s.GatewayProxies, "gateway-proxies", 0, "gateway proxies beside the fleet, which have all Gateways; the other figures of a cell are of the fleet without them")
	return s
}

func mesh(args []string) error {
	f := flag.NewFlagSet("mesh", flag.ContinueOnError)
	spec := meshFlags(f)
	dir := f.String("dir", "", "where it is written")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *dir == "" {
		return errors.New("mesh: -dir is missing")
	}
	return spec.Write(*dir)
}

func feed(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("feed", flag.ContinueOnError)
	spec := meshFlags(f)
	binary := f.String("fairlead", "bin/fairlead", "the program of the control plane")
	dir := f.String("dir", "", "for the mesh and logs")
	out := f.String("out", "", "the file of resources that is written")
	if err := f.Parse(args); err != nil {
		return err
	}
	return scenario.WriteFeed(ctx, scenario.CellConfig{Binary: *binary, Dir: *dir, Mesh: *spec}, *out)
}

// cellFlags are those of everything that runs one cell.
func cellFlags(name string) (f *flag.FlagSet, parse func(args []string) (scenario.CellConfig, func(), error)) {
	f = flag.NewFlagSet(name, flag.ContinueOnError)
	spec := meshFlags(f)
	cfg := scenario.CellConfig{}
	f.StringVar(&cfg.Binary, "fairlead", "bin/fairlead", "the program of the control plane, or of linear and snapshot")
	f.StringVar(&cfg.Dir, "dir", "", "for the mesh, logs and profiles; empty means a temporary one, which is removed")
	minor := f.Uint("envoy", 40, "the release of Envoy that the fleet is of, 1.N; before 38 without VHDS")
	f.IntVar(&cfg.PerConn, "per-conn", 1, "streams of a connection; without TLS more, if there would be more than a thousand connections")
	f.BoolVar(&cfg.TLS, "tls", false, "TLS 1.3 with certificates of the control plane")
	return f, func(args []string) (scenario.CellConfig, func(), error) {
		if err := f.Parse(args); err != nil {
			return cfg, nil, err
		}
		cfg.Mesh, cfg.Minor, cfg.Args = *spec, uint32(*minor), f.Args()
		clean := func() {}
		if cfg.Dir == "" {
			dir, err := os.MkdirTemp("", "fleet")
			if err != nil {
				return cfg, nil, err
			}
			cfg.Dir, clean = dir, func() { _ = os.RemoveAll(dir) }
		}
		return cfg, clean, os.MkdirAll(cfg.Dir, 0o750)
	}
}

func write(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func cell(ctx context.Context, args []string, out io.Writer) error {
	f, parse := cellFlags("cell")
	var more scenario.CellConfig
	f.StringVar((*string)(&more.Subject), "subject", "", "instead of our control plane: linear, snapshot or limit")
	f.StringVar(&more.Feed, "feed", "", "a file of resources, by fleet feed, that linear and snapshot serve")
	f.IntVar(&more.Sizes.Cold, "limit-cold", 2_500_000, "bytes that the limit sends at first")
	f.IntVar(&more.Sizes.Route, "limit-route", 560_000, "bytes that it sends for a route")
	f.IntVar(&more.Sizes.Table, "limit-many", 560_000, "bytes that it sends for many changes")
	f.IntVar(&more.Sizes.Endpoint, "limit-endpoint", 1_200, "bytes that it sends for an endpoint")
	f.IntVar(&more.Routes, "routes", 6, "how many VirtualServices are edited, one after the other")
	f.IntVar(&more.Endpoints, "replacements", 6, "how many endpoints are replaced, one after the other")
	f.IntVar(&more.Many, "checkouts", 0, "how often a fifth of all services is edited at once")
	f.IntVar(&more.GatewayRoutes, "gateway-routes", 6, "how many VirtualServices of a Gateway are edited, if there are any")
	f.DurationVar(&more.Idle, "idle", 15*time.Second, "how long nothing happens before memory is read")
	f.BoolVar(&more.Profile, "profile", false, "make CPU and heap profiles of the server, in -dir")
	cfg, clean, err := parse(args)
	if err != nil {
		return err
	}
	defer clean()
	cfg.Subject, cfg.Feed, cfg.Sizes, cfg.Idle, cfg.Profile = more.Subject, more.Feed, more.Sizes, more.Idle, more.Profile
	cfg.Routes, cfg.Endpoints, cfg.Many, cfg.GatewayRoutes = more.Routes, more.Endpoints, more.Many, more.GatewayRoutes
	res, err := scenario.RunCell(ctx, cfg)
	if err != nil {
		return err
	}
	return write(out, res)
}

func restart(ctx context.Context, args []string, out io.Writer) error {
	f, parse := cellFlags("restart")
	times := f.Int("times", 3, "how often the server is killed and started again")
	profile := f.Bool("profile", false, "make restart.pprof, a CPU profile of the server, in -dir")
	cfg, clean, err := parse(args)
	if err != nil {
		return err
	}
	cfg.Profile = *profile
	defer clean()
	res, err := scenario.RunRestart(ctx, cfg, *times)
	if err != nil {
		return err
	}
	return write(out, res)
}

func runJoin(ctx context.Context, args []string, out io.Writer) error {
	_, parse := cellFlags("join")
	cfg, clean, err := parse(args)
	if err != nil {
		return err
	}
	defer clean()
	res, err := scenario.RunJoin(ctx, cfg)
	if err != nil {
		return err
	}
	return write(out, res)
}

func runStalled(ctx context.Context, args []string, out io.Writer) error {
	f, parse := cellFlags("stalled")
	edits := f.Int("edits", 20, "how many VirtualServices are edited before, and again while a tenth reads nothing")
	cfg, clean, err := parse(args)
	if err != nil {
		return err
	}
	defer clean()
	res, err := scenario.RunStalledReaders(ctx, cfg, *edits)
	if err != nil {
		return err
	}
	return write(out, res)
}

func churn(ctx context.Context, args []string, out io.Writer) error {
	f, parse := cellFlags("churn")
	d := f.Duration("for", 5*time.Minute, "how long")
	cfg, clean, err := parse(args)
	if err != nil {
		return err
	}
	defer clean()
	res, err := scenario.RunChurn(ctx, cfg, *d)
	if err != nil {
		return err
	}
	return write(out, res)
}
