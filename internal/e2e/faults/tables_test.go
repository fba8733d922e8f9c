package faults

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
)

// link stands between an agent and the control plane, and counts.
type link struct {
	addr     string
	down, up atomic.Int64 // bytes, with TLS
}

func newLink(t *testing.T, to string) *link {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { _ = l.Close() })
	w := &link{addr: l.Addr().String()}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(c, to)
		}
	}()
	return w
}

func (w *link) carry(c net.Conn, to string) {
	defer func() { _ = c.Close() }()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer func() { _ = s.Close() }()
	go func() {
		_, _ = io.Copy(counter{s, &w.up}, c)
		_ = s.Close()
	}()
	_, _ = io.Copy(counter{c, &w.down}, s)
}

type counter struct {
	io.Writer
	n *atomic.Int64
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// weights are the lines with the shares of orders' versions.
func weights(v1 int) string {
	return fmt.Sprintf("subset: v1}\n      weight: %d\n    - destination: {host: orders.shop.internal, subset: v2}\n      weight: %d\n", v1, 100-v1)
}

// TestRouteEditsByVirtualHost shows what an edit of a route costs the network
// where a host sees many services, whatever its Envoy, and that no request fails
// by it, nor by services that come and go; and that host, agent and control plane
// can restart in between.
func TestRouteEditsByVirtualHost(t *testing.T) {
	for _, version := range envoytest.Ends() {
		t.Run(version, func(t *testing.T) {
			s := newShop(t)
			s.Edit("web.yaml", `["./orders.shop.internal"]`, `["./*"]`)
			names := s.writeMany(0)
			wire := newLink(t, s.XDS())
			i := slices.IndexFunc(s.hosts, func(h meshtest.Host) bool { return h.Name == "web" })
			s.hosts[i].Agent = append(s.hosts[i].Agent, "--server", wire.addr, "--envoy", envoytest.BinaryVersion(t, version))
			s.start()
			s.awaitWeight(90)
			v1 := 90
			down, up := wire.down.Load(), wire.up.Load()
			const rounds, edits = 2, 10
			for range rounds {
				load := s.client.StartLoad(t, s.url, 100)
				load.Wait(t, 50)
				for range edits {
					next := 40 + (v1+7)%50
					s.Edit("orders.yaml", weights(v1), weights(next))
					v1 = next
					s.awaitWeight(v1)
				}
				unharmed(t, load)
			}
			down, up = (wire.down.Load()-down)/(rounds*edits), (wire.up.Load()-up)/(rounds*edits)
			t.Logf("an edit of a route among %d services: %d bytes down, %d up", len(names)+1, down, up)
			if down+up > 1024 {
				t.Errorf("an edit of a route costs %d bytes down and %d up", down, up)
			}
			load := s.client.StartLoad(t, s.url, 100)
			load.Wait(t, 50)
			gone := names[len(names)-3:] // not of those that share a directory
			for _, name := range gone {
				check(t, os.Remove(filepath.Join(s.ConfigDir, strings.TrimSuffix(name, ".shop.internal")+".yaml")))
			}
			for _, name := range gone {
				s.awaitCluster("web", "outbound|9080||"+name, false)
			}
			names = s.writeMany(1)
			s.awaitLive()
			s.awaitStored("web", names...)
			load.Wait(t, 50)
			unharmed(t, load)
			s.noRejections()

			// The host starts again while the control plane is away.
			s.Server.Kill()
			s.killHost("web")
			s.restartAgent("web")
			s.awaitTraffic()
			s.awaitWeight(v1)
			down = wire.down.Load()
			s.StartServer()
			s.awaitLive()
			if down = wire.down.Load() - down; down > 16<<10 {
				t.Errorf("a control plane that came back sent %d bytes to who has everything", down)
			}
			load = s.client.StartLoad(t, s.url, 100)
			s.Edit("orders.yaml", weights(v1), weights(5))
			s.awaitWeight(5)
			load.Wait(t, 50)
			unharmed(t, load)
		})
	}
}

// awaitStored waits until the virtual hosts of services are on a host's disk.
func (s *shop) awaitStored(host string, services ...string) {
	s.t.Helper()
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		stored, err := os.ReadFile(filepath.Join(s.StateDir(host), "accepted.xds"))
		for _, name := range services {
			if !bytes.Contains(stored, []byte("/"+name)) {
				return fmt.Errorf("%s has not stored %s, %w", host, name, err)
			}
		}
		return err
	})
}

// awaitWeight waits until the Envoy of web sends a share of its requests to
// some version.
func (s *shop) awaitWeight(share int) {
	s.t.Helper()
	want := fmt.Sprintf(`"weight":%d,`, share)
	envoytest.Eventually(s.t, envoytest.Patience, func() error {
		for _, table := range s.dump("web")["dynamic_route_configs"] {
			if strings.Contains(strings.ReplaceAll(table, "}", ","), want) {
				return nil
			}
		}
		return fmt.Errorf("no route has %s", want)
	})
}
