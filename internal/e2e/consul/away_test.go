package consul

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry/consul"
)

// TestStartsWithoutConsul shows that a control plane which starts with nobody to
// ask serves the last known catalog it had, also to an Envoy that has nothing, takes
// changes of files meanwhile, and says how old the catalog is.
func TestStartsWithoutConsul(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		// What comes all the time comes to disk every three seconds; so that this one
		// does at once, nothing came before.
		f.awaitDisk(func(written time.Time) bool { return time.Since(written) > 4*time.Second })
		begin := time.Now()
		f.put(apis()[0], api.HealthCritical)
		f.awaitNoneOf("api-1")
		load := f.load()
		before, err := f.inForce()
		if err != nil {
			t.Fatal(err)
		}
		f.awaitDisk(begin.Before)
		f.consul.Kill()
		f.Server.Kill()
		load.Wait(t, 50)
		f.StartServer(f.serverArgs()...)
		st := f.awaitState(consul.Stale)
		if !st.FromDisk || st.Read.IsZero() || time.Since(st.Read) > time.Minute {
			t.Errorf("the catalog is not that of the disk, or its age is unknown: %+v", st)
		}
		f.Server.Eventually(patience, func() error {
			now, err := f.inForce()
			if d := cmp.Diff(before, now); err == nil && d != "" {
				err = fmt.Errorf("the catalog is another one (-before +after):\n%s", d)
			}
			return err
		})
		f.AwaitLive("client", "api-3")
		f.awaitNoneOf("api-1")
		load.Wait(t, 100)
		f.unharmed(load)

		// A host that lost everything but its identity gets the catalog, too.
		f.reset("client")
		load = f.load()
		f.awaitNoneOf("api-1")
		f.Write("route.yaml", route)
		f.awaitAnswerBy("blue")
		f.consul.Start()
		f.put(apis()[0], api.HealthPassing)
		f.takeOut(others()[2])
		f.none(f.equal())
		f.awaitAll()
		f.unharmed(load)
	})
}

// awaitDisk waits for when the control plane last wrote its catalog.
func (f *fleet) awaitDisk(holds func(written time.Time) bool) {
	f.t.Helper()
	f.Server.Eventually(patience, func() error {
		var written time.Time
		err := filepath.WalkDir(f.StateDir("server"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.Contains(path, source) {
				return nil //nolint:nilerr // what is renamed meanwhile
			}
			if info, err := d.Info(); err == nil && info.ModTime().After(written) {
				written = info.ModTime()
			}
			return nil
		})
		if err == nil && !holds(written) {
			err = fmt.Errorf("the catalog on disk is of %s", written)
		}
		return err
	})
}

// route names itself in a header of the answers.
const route = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: api, namespace: shop}
spec:
  hosts: [api.service.consul]
  http:
  - headers: {response: {set: {x-route: blue}}}
    route:
    - destination: {host: api.service.consul}
`

// TestComesBackEmpty shows that a catalog which is empty at once takes nothing away
// until a person says so.
func TestComesBackEmpty(t *testing.T) {
	t.Parallel()
	f := newFleet(t, false)
	load := f.load()
	f.consul.Kill()
	f.consul.Wipe()
	f.consul.Start()
	f.awaitHeld(len(apis()) + len(others()))
	load.Wait(t, 100)
	out, _ := f.CLI("proxy-status", "--run-dir", f.RunDir("server"))
	if !strings.Contains(out, "fairlead release "+source) {
		t.Errorf("proxy-status does not say what to do:\n%s", out)
	}
	// Nor does a restart of the control plane.
	f.Server.Kill()
	f.StartServer(f.serverArgs()...)
	f.awaitState(consul.Live)
	f.awaitHeld(len(apis()) + len(others()))
	f.AwaitLive("client")
	load.Wait(t, 100)
	// What is registered again is in force at once, the rest stays.
	f.put(apis()[0], api.HealthCritical)
	f.awaitNoneOf("api-1")
	f.put(apis()[0], api.HealthPassing)
	f.awaitAll()
	f.unharmed(load)

	if out, err := f.CLI("release", source, "--run-dir", f.RunDir("server")); err != nil {
		t.Fatal(err, out)
	}
	f.awaitNoneOf("api-2")
	f.awaitNoneOf("api-3")
	f.none(f.equal())
	f.awaitAnswerOf("api-1")
}

// TestDeregisteredOneByOne shows that a catalog which loses everything in small steps takes no
// more away than one that is empty at once: what is called is called until a person says
// otherwise.
func TestDeregisteredOneByOne(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		load := f.load()
		for _, i := range append(others(), apis()...) {
			f.takeOut(i)
			load.Wait(t, 25) // a reading for each, within seconds
		}
		f.awaitHeld(len(apis()))
		load.Wait(t, 200)
		f.awaitAll()
		f.unharmed(load)
		if out, err := f.CLI("release", source, "--run-dir", f.RunDir("server")); err != nil {
			t.Fatal(err, out)
		}
		f.awaitNoneInForce()
	})
}

// awaitNoneInForce waits until the control plane has nothing of Consul.
func (f *fleet) awaitNoneInForce() {
	f.t.Helper()
	envoytest.Eventually(f.t, patience, func() error {
		list, err := f.inForce()
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("%d objects are in force", len(list))
		}
		return err
	})
}

// reset ends a host's agent and Envoy, removes what it was given of the mesh, and
// starts it again.
func (f *fleet) reset(host string) {
	f.t.Helper()
	f.agents[host].Kill()
	if err := syscall.Kill(f.EnvoyPID(host), syscall.SIGKILL); err != nil {
		f.t.Fatal(err)
	}
	envoytest.Eventually(f.t, patience, func() error {
		if pid := f.EnvoyPID(host); pid != 0 {
			return fmt.Errorf("envoy %d is still there", pid)
		}
		return nil
	})
	for _, dir := range []string{f.StateDir(host), f.RunDir(host)} {
		if err := os.RemoveAll(dir); err != nil {
			f.t.Fatal(err)
		}
	}
	f.agents[host] = f.StartAgent(f.hosts()[host], f.Token("--replace", "--host", host, "--workload", f.hosts()[host].Workload))
	f.AwaitLive(host)
	f.awaitTraffic()
}
