package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/fairlead/fairlead/bench/fleet/internal/limit"
	"github.com/fairlead/fairlead/bench/fleet/internal/scenario"
)

// fanOut is the process of the limit, until its input ends.
func fanOut(ctx context.Context, args []string, in io.Reader, out io.Writer) error {
	f := flag.NewFlagSet(scenario.LimitCommand, flag.ContinueOnError)
	address := f.String("address", "", "where it serves")
	cold := f.Int("cold", 0, "bytes that every stream is sent at first")
	secure := f.Bool("tls", false, "serve TLS 1.3, and want a certificate of clients")
	if err := f.Parse(args); err != nil {
		return err
	}
	s, err := limit.New(*cold)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", *address)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	var opts []grpc.ServerOption
	if *secure {
		cert, err := scenario.SelfSigned()
		if err != nil {
			return err
		}
		opts = append(opts, grpc.Creds(credentials.NewTLS(&tls.Config{
			Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
		})))
	}
	server := s.GRPC(opts...)
	var g errgroup.Group
	g.Go(func() error { return server.Serve(l) })
	g.Go(func() error {
		defer server.Stop()
		return obey(s, in, json.NewEncoder(out))
	})
	return g.Wait()
}

func obey(s *limit.Server, in io.Reader, out *json.Encoder) error {
	type answer struct {
		At int64 `json:"at"`
	}
	if err := out.Encode(answer{time.Now().UnixNano()}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var o scenario.LimitOrder
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		at, err := s.Push(o.Marker, o.Size)
		if err != nil {
			return err
		}
		if err := out.Encode(answer{at.UnixNano()}); err != nil {
			return err
		}
	}
	return lines.Err()
}
