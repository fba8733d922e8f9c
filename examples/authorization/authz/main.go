// Command authz is a small authorization server. Envoys ask it by HTTP whether a request may pass
// (Envoy's ext_authz): they send its method, its path and the headers that the provider in
// mesh-config.yaml names, without its body. Status 200 means yes; they answer the client with
// anything else.
//
//	authz --listen 127.0.0.15:9000 --allow alice
//
// It trusts the header x-user, because an example needs no password. A real server would check
// a session or a token.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairlead/fairlead/internal/portholder"
)

func main() {
	listen := flag.String("listen", "127.0.0.15:9000", "where to serve")
	allow := flag.String("allow", "alice", "users who may, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := serve(ctx, *listen, strings.Split(*allow, ","))
	stop()
	if err != nil {
		log.Fatalf("authz: %v", err)
	}
}

func serve(ctx context.Context, address string, allowed []string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return portholder.Explain(err, address)
	}
	server := &http.Server{Handler: decide(allowed), ReadHeaderTimeout: 5 * time.Second}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// decide answers the question of an Envoy.
func decide(allowed []string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		user := r.Header.Get("x-user")
		verdict := "may"
		if user == "" || !slices.Contains(allowed, user) {
			verdict = "may not"
			w.WriteHeader(http.StatusForbidden)
		}
		log.Printf("%q %s %s %s", user, verdict, r.Method, r.URL.Path)
		_, _ = fmt.Fprintf(w, "%q %s see this\n", user, verdict)
	}
}
