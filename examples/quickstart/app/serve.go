package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/structpb"
)

// answer is what every service says.
type answer struct {
	Name string `json:"name"`
	// Caller is the SPIFFE ID of the peer as our Envoy proved it, empty where
	// the call came in plaintext.
	Caller string `json:"caller"`
	// Next is the answer of the next service, or null.
	Next *answer `json:"next,omitempty"`
}

// callerOf reads the URI of the last element of x-forwarded-client-cert, which
// the local Envoy appended.
func callerOf(xfcc string) string {
	last := xfcc[strings.LastIndex(xfcc, ",")+1:]
	for part := range strings.SplitSeq(last, ";") {
		if uri, ok := strings.CutPrefix(part, "URI="); ok {
			return uri
		}
	}
	return ""
}

func serveHTTP(ctx context.Context, l net.Listener, name string, ask next) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		a := answer{Name: name, Caller: callerOf(r.Header.Get("X-Forwarded-Client-Cert"))}
		if ask != nil {
			n, err := ask(r.Context(), r.URL.Path)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			a.Next = n
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a)
	})
	// An Envoy opens connections that may wait for their first request for long: one
	// that is closed just as it comes costs that request.
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// stockMethod is the one method of the gRPC service, with well-known types, so
// that an example needs no generated code.
const stockMethod = "/shop.Inventory/Stock"

func serveGRPC(ctx context.Context, l net.Listener, name string) error {
	s := grpc.NewServer()
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "shop.Inventory",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Stock",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				if err := decode(&structpb.Struct{}); err != nil {
					return nil, err
				}
				md, _ := metadata.FromIncomingContext(ctx)
				caller := callerOf(strings.Join(md.Get("x-forwarded-client-cert"), ","))
				return structpb.NewStruct(map[string]any{"name": name, "caller": caller})
			},
		}},
	}, nil)
	grpc_health_v1.RegisterHealthServer(s, health.NewServer())
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	return s.Serve(l)
}

// serveTCP answers each line with the service's name and that line.
func serveTCP(ctx context.Context, l net.Listener, name string) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() {
			defer c.Close()
			lines := bufio.NewScanner(c)
			for lines.Scan() {
				if _, err := fmt.Fprintf(c, "%s: %s\n", name, lines.Text()); err != nil {
					return
				}
			}
		}()
	}
}
