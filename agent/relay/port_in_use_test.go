package relay

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
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
