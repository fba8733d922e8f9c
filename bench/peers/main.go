package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	_ "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
}

// store is one kind of cache.
type store interface {
	cache.Cache
	// change replaces one resource of a type, of which all are given.
	change(typeURL, name string, all map[string]types.Resource) error
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("peers", flag.ContinueOnError)
	address := f.String("address", "", "where xDS is served")
	kind := f.String("cache", "linear", "linear or snapshot")
	feed := f.String("feed", "", "a file of delta responses, each behind its length: the resources")
	if err := f.Parse(args); err != nil {
		return err
	}
	resources, err := read(*feed)
	if err != nil {
		return err
	}
	var s store
	switch *kind {
	case "linear":
		s = newLinear(resources)
	case "snapshot":
		s, err = newSnapshot(ctx, resources)
	default:
		err = fmt.Errorf("-cache %q: linear or snapshot", *kind)
	}
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", *address)
	if err != nil {
		return err
	}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, server.NewServer(ctx, s, nil))
	failed := make(chan error, 1)
	go func() { failed <- g.Serve(l) }()
	obeyed := make(chan error, 1)
	go func() { obeyed <- obey(os.Stdin, os.Stdout, s, resources) }()
	defer g.Stop()
	select {
	case err := <-failed:
		return err
	case err := <-obeyed:
		return err
	}
}

// read gives the resources of a file, by type and name.
func read(path string) (map[string]map[string]types.Resource, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	out := map[string]map[string]types.Resource{}
	for {
		m := &discovery.DeltaDiscoveryResponse{}
		err := protodelim.UnmarshalOptions{MaxSize: 1 << 30}.UnmarshalFrom(in, m)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading %q: %w", path, err)
		}
		for _, r := range m.GetResources() {
			body, err := r.GetResource().UnmarshalNew()
			if err != nil {
				return nil, fmt.Errorf("reading %q of %q: %w", r.GetName(), path, err)
			}
			if out[m.GetTypeUrl()] == nil {
				out[m.GetTypeUrl()] = map[string]types.Resource{}
			}
			out[m.GetTypeUrl()][r.GetName()] = body
		}
	}
}

// order is to replace, in the one resource that has it, some bytes by others of
// the same length.
type order struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// encoded is the resources as bytes, so that to find one costs next to nothing.
type encoded map[string]map[string][]byte

func encode(resources map[string]map[string]types.Resource) (encoded, error) {
	out := encoded{}
	for typeURL, all := range resources {
		out[typeURL] = map[string][]byte{}
		for name, r := range all {
			b, err := proto.Marshal(r)
			if err != nil {
				return nil, err
			}
			out[typeURL][name] = b
		}
	}
	return out, nil
}

// obey answers first that it is there.
func obey(in io.Reader, out io.Writer, s store, resources map[string]map[string]types.Resource) error {
	known, err := encode(resources)
	if err != nil {
		return err
	}
	e := json.NewEncoder(out)
	if err := e.Encode(map[string]int64{"at": time.Now().UnixNano()}); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		typeURL, name, err := known.edit(o)
		if err != nil {
			return err
		}
		changed := resources[typeURL][name].ProtoReflect().New().Interface()
		if err := proto.Unmarshal(known[typeURL][name], changed); err != nil {
			return err
		}
		resources[typeURL][name] = changed
		at := time.Now()
		if err := s.change(typeURL, name, resources[typeURL]); err != nil {
			return err
		}
		if err := e.Encode(map[string]int64{"at": at.UnixNano()}); err != nil {
			return err
		}
	}
	return nil
}

func (known encoded) edit(o order) (typeURL, name string, err error) {
	if len(o.From) != len(o.To) {
		return "", "", fmt.Errorf("%q and %q differ in length", o.From, o.To)
	}
	for typeURL, all := range known {
		for name, b := range all {
			if i := bytes.LastIndex(b, []byte(o.From)); i >= 0 {
				copy(b[i:], o.To)
				return typeURL, name, nil
			}
		}
	}
	return "", "", fmt.Errorf("no resource has %q", o.From)
}
