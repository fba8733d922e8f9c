// Command app is the small service of the examples and of the tests: it answers
// who it is and who called, and asks the next service if it has one.
//
//	app --name web --listen 127.0.0.1:18080 --next http://127.0.0.11:9080 --next-host orders.shop.internal
//
// It knows nothing of the mesh. Protocols: http, grpc, tcp.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/fairlead/fairlead/internal/portholder"
)

type options struct {
	name     string
	listen   string
	protocol string
	next     string
	nextHost string
}

func main() {
	var o options
	flag.StringVar(&o.name, "name", "app", "what this service calls itself")
	flag.StringVar(&o.listen, "listen", "127.0.0.1:0", "where to serve")
	flag.StringVar(&o.protocol, "protocol", "http", "http, grpc or tcp")
	flag.StringVar(&o.next, "next", "", "the next service, http://ADDRESS or grpc://ADDRESS; empty for none")
	flag.StringVar(&o.nextHost, "next-host", "", "the host name to ask the next service by")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, o)
	stop()
	if err != nil {
		log.Fatalf("app %s: %v", o.name, err)
	}
}

func serve(ctx context.Context, o options) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", o.listen)
	if err != nil {
		return portholder.Explain(err, o.listen)
	}
	ask, err := newNext(o.next, o.nextHost)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	switch o.protocol {
	case "http":
		return serveHTTP(ctx, l, o.name, ask)
	case "grpc":
		return serveGRPC(ctx, l, o.name)
	case "tcp":
		return serveTCP(ctx, l, o.name)
	default:
		return fmt.Errorf("protocol %q: choose http, grpc or tcp", o.protocol)
	}
}
