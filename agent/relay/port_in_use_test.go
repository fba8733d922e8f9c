package relay

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3" // for protojson

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/stream"
)

// TestListenerIsTriedAgainWhenItsPortIsFree: an application has the port of a listener when
// Envoy gets it, and leaves it later. Nobody changes any configuration.
func TestListenerIsTriedAgainWhenItsPortIsFree(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			server, shop := newServer(t), newShop(t)
			app, err := (&net.ListenConfig{}).Listen(context.WithoutCancel(t.Context()), "tcp", fmt.Sprintf("127.0.0.1:%d", shop.port))
			if err != nil {
				t.Fatal(err)
			}
			h := newHost(t, server.addr)
			r, _ := h.relay()
			server.set(generation(t, 1, shop.messages("one")))
			h.envoy(version)
			envoytest.Eventually(t, deadline, func() error {
				for _, x := range r.Status().Rejected {
					if x.Type == stream.ListenerType && stream.IsHostError(x.Type, x.Reason) {
						return nil
					}
				}
				return fmt.Errorf("no listener is rejected because of its address: %+v", r.Status().Rejected)
			})
			if err := app.Close(); err != nil {
				t.Fatal(err)
			}
			envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
			server.inStep(t, 1, fourTypes...)
			if left := r.Status().Rejected; len(left) > 0 {
				t.Errorf("still rejected: %+v", left)
			}
			if !strings.Contains(strings.Join(server.takeSent(), " "), "in") {
				t.Error("the listener was not sent again")
			}
		})
	}
}

// TestRestartedEnvoyServesAgain: an Envoy that starts again rejects its listener because of its host,
// while the control plane is away, and serves it as soon as it can, also after a restart of the relay.
func TestRestartedEnvoyServesAgain(t *testing.T) {
	t.Parallel()
	for _, version := range envoytest.Ends() {
		for _, fault := range []string{"port", "file"} {
			t.Run(version+"/"+fault, func(t *testing.T) {
				t.Parallel()
				server, shop, logs := newServer(t), newShop(t), filepath.Join(t.TempDir(), "logs")
				check := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				check(os.Mkdir(logs, 0o755))
				h := newHost(t, server.addr)
				_, stop := h.relay()
				messages := shop.messages("one")
				in, ok := messages["lds/in"].(*listenerv3.Listener)
				if !ok {
					t.Fatal("no listener")
				}
				in.AccessLog = parse(t, &listenerv3.Listener{}, `{"access_log":[{"name":"file","typed_config":{
				 "@type":"type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog","path":%q}}]}`, filepath.Join(logs, "access.log")).GetAccessLog()
				server.set(generation(t, 1, messages))
				e := h.envoy(version)
				envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
				server.inStep(t, 1, fourTypes...)
				e.Kill()
				stop()
				server.kill()

				end := func() { check(os.Mkdir(logs, 0o755)) }
				if fault == "port" {
					app, err := (&net.ListenConfig{}).Listen(context.WithoutCancel(t.Context()), "tcp", fmt.Sprintf("127.0.0.1:%d", shop.port))
					check(err)
					end = func() { check(app.Close()) }
				} else {
					check(os.RemoveAll(logs))
				}
				r, stop := h.relay()
				h.envoy(version)
				rejects := func() error {
					s := r.Status()
					if len(s.Rejected) != 1 || s.Rejected[0].Name != "in" || !stream.IsHostError(s.Rejected[0].Type, s.Rejected[0].Reason) || s.Envoy != bootstrap.EnvoyRejecting {
						return fmt.Errorf("%s, rejected: %+v", s.Envoy, s.Rejected)
					}
					return nil
				}
				envoytest.Eventually(t, deadline, rejects)
				stop()
				r, _ = h.relay()
				envoytest.Eventually(t, deadline, rejects)
				end()
				envoytest.Eventually(t, deadline, func() error { return shop.says("one") })
				envoytest.Eventually(t, deadline, func() error {
					if s := r.Status(); len(s.Rejected) != 0 || s.Envoy != bootstrap.EnvoyLive {
						return fmt.Errorf("%s, rejected: %+v", s.Envoy, s.Rejected)
					}
					return nil
				})
			})
		}
	}
}
