package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/pki/svid"
)

// join makes a host of the mesh, as an agent would.
func (r *running) join(name string, workloads ...string) (*svid.Client, *svid.Identity) {
	r.t.Helper()
	var out Token
	if err := r.client.Do(r.t.Context(), http.MethodPost, "/v1/tokens", TokenRequest{Host: name, Workloads: workloads}, &out); err != nil {
		r.t.Fatal(err)
	}
	token, err := svid.ParseJoinToken(out.Token)
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := svid.NewClient(svid.ClientConfig{Servers: token.Servers})
	if err != nil {
		r.t.Fatal(err)
	}
	key, err := svid.NewKey()
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := c.Join(r.t.Context(), token, key)
	if err != nil {
		r.t.Fatal(err)
	}
	return c, id
}

// dial opens a connection with a host's certificate, and leaves it open.
func (r *running) dial(id *svid.Identity, from string) *tls.Conn {
	r.t.Helper()
	d := tls.Dialer{
		NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: envoytest.Attempt},
		Config:    svid.ClientTLS(func() *svid.Identity { return id }),
	}
	conn, err := d.DialContext(r.t.Context(), "tcp", r.listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	out, ok := conn.(*tls.Conn)
	if !ok {
		r.t.Fatalf("dialled a %T", conn)
	}
	// The server has seen the certificate when it sends its settings.
	if err := out.SetReadDeadline(time.Now().Add(envoytest.Patience)); err != nil {
		r.t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		r.t.Logf("the server closed a connection of %s: %v", from, err)
	}
	return out
}

func (r *running) host(name string) Host {
	r.t.Helper()
	var hosts []Host
	if err := r.client.Do(r.t.Context(), http.MethodGet, "/v1/hosts", nil, &hosts); err != nil {
		r.t.Fatal(err)
	}
	for _, h := range hosts {
		if h.Name == name {
			return h
		}
	}
	r.t.Fatalf("no host %q", name)
	return Host{}
}

func (r *running) metric(name string) (float64, error) {
	families, err := r.metrics.Gather()
	if err != nil {
		return 0, err
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue(), nil
		}
	}
	return 0, fmt.Errorf("no metric %q", name)
}

// A key that two hold is told of in the status, the log and a metric; with the
// setting both are refused, and their connections end.
func TestTwoHoldersOfAKey(t *testing.T) {
	t.Parallel()
	for _, refuse := range []bool{false, true} {
		t.Run(fmt.Sprintf("refuse=%v", refuse), func(t *testing.T) {
			t.Parallel()
			cfg := config(t, treeOf(t, map[string]string{"mesh.yaml": rule("shop", "a")}))
			cfg.RefuseSharedHostKeys = refuse
			r := start(t, cfg)
			c, old := r.join("web-1", "shop/web")
			r.dial(old, "127.0.0.1") // the host's stream
			renew := func(id *svid.Identity) *svid.Identity {
				t.Helper()
				next, err := c.Renew(t.Context(), id)
				if err != nil {
					t.Fatal(err)
				}
				return next
			}
			mine := renew(old)
			r.dial(mine, "127.0.0.1")
			if h := r.host("web-1"); h.Returns != 0 || h.Fork != nil || h.Fault != "" {
				t.Errorf("one host by itself: %+v", h)
			}

			theirs := r.dial(old, "127.0.0.2")
			if h := r.host("web-1"); h.Returns != 1 || h.Fork != nil || h.Fault != "" {
				t.Errorf("one return: %+v", h)
			}
			copied := renew(old) // heals a host, and lets a copy go on
			r.dial(copied, "127.0.0.2")
			r.dial(mine, "127.0.0.1")
			h := r.host("web-1")
			if h.Fork == nil || !strings.Contains(h.Fault, "127.0.0.2") || !strings.Contains(h.Fault, "--replace") {
				t.Errorf("two holders: %+v", h)
			}
			if n, err := r.metric("fairlead_shared_host_keys"); n != 1 || err != nil {
				t.Errorf("fairlead_shared_host_keys is %v, %v", n, err)
			}
			if s := r.out.String(); !strings.Contains(s, "host key is in use in two places") {
				t.Error("the log does not have it")
			}
			for _, id := range []*svid.Identity{mine, copied} {
				_, err := c.Renew(t.Context(), id)
				if refuse != errors.Is(err, svid.ErrRefused) {
					t.Errorf("refuse %v: renewing gives %v", refuse, err)
				}
			}
			if refuse {
				ended := make(chan error, 1)
				go func() {
					_ = theirs.SetReadDeadline(time.Now().Add(envoytest.Patience))
					for {
						if _, err := theirs.Read(make([]byte, 100)); err != nil {
							ended <- err
							return
						}
					}
				}()
				if err := <-ended; errors.Is(err, context.DeadlineExceeded) || strings.Contains(err.Error(), "timeout") {
					t.Errorf("the connection of a refused host stays open: %v", err)
				}
			}

			// Joined anew, all is well.
			if err := r.client.Do(t.Context(), http.MethodDelete, "/v1/hosts/web-1", nil, nil); err != nil {
				t.Fatal(err)
			}
			c, fresh := r.join("web-1", "shop/web")
			if _, err := c.Renew(t.Context(), fresh); err != nil {
				t.Error(err)
			}
			if h := r.host("web-1"); h.Fork != nil || h.Fault != "" || h.Returns != 0 {
				t.Errorf("joined anew: %+v", h)
			}
		})
	}
}
