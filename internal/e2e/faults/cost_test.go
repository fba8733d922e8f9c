package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/lastgood"
	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/bootstrap"
)

const (
	// inForceWithin is when an edit that waits for nobody is in force, and a server that starts
	// is ready: with a file that is read and merged in full, it is minutes.
	inForceWithin = 10 * time.Second
	// endsWithin is when a server that was asked to end is gone: it leaves what it computes
	// after 1.5 s. What it reads here takes longer than this.
	endsWithin = 4 * time.Second
)

// largeEntry is a ServiceEntry.
func largeEntry(hosts, ports, endpoints int) string {
	var s strings.Builder
	s.WriteString("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: large, namespace: evil}\nspec:\n  resolution: STATIC\n  hosts:\n")
	for i := range hosts {
		fmt.Fprintf(&s, "  - h%d.evil.test\n", i)
	}
	s.WriteString("  ports:\n")
	for i := range ports {
		fmt.Fprintf(&s, "  - {name: p%[1]d, number: %[2]d, protocol: HTTP}\n", i, 8000+i)
	}
	s.WriteString("  endpoints:\n")
	for i := range endpoints {
		fmt.Fprintf(&s, "  - {address: 10.9.%d.%d}\n", i>>8, i&255)
	}
	return s.String()
}

// manyEntries are n WorkloadEntries.
func manyEntries(file, n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: x%d-%d, namespace: shop}\nspec:\n  address: 10.%d.%d.%d\n  labels: {app: a}\n---\n",
			file, i, 20+file, i>>8, i&255)
	}
	return s.String()
}

// edits is a mesh, and a client of xDS that sees which edits are in force.
type edits struct {
	*meshtest.Mesh
	t        *testing.T
	clusters chan string // each that the client gets
	n        int
}

// watch opens a stream of a sidecar that asks for all clusters.
func (e *edits) watch() {
	e.t.Helper()
	conn, err := grpc.NewClient(net.JoinHostPort(e.Address(1), "15010"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = conn.Close() })
	s, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(e.t.Context())
	if err != nil {
		e.t.Fatal(err)
	}
	node, err := (&bootstrap.Node{
		Type: bootstrap.TypeSidecar, Name: "one", Namespace: "shop", Domain: "cluster.local", Address: netip.MustParseAddr("10.1.2.3"), ServiceAccount: "one",
	}).Proto()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := s.Send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: "type.googleapis.com/envoy.config.cluster.v3.Cluster"}); err != nil {
		e.t.Fatal(err)
	}
	clusters := make(chan string, 1024)
	e.clusters = clusters
	go func() {
		for {
			resp, err := s.Recv()
			if err != nil {
				return // the server or the test has ended
			}
			for _, r := range resp.GetResources() {
				clusters <- r.GetName()
			}
			if s.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: resp.GetTypeUrl(), ResponseNonce: resp.GetNonce()}) != nil {
				return
			}
		}
	}()
}

// inForce writes a ServiceEntry and returns after how long the client has it.
func (e *edits) inForce() time.Duration {
	e.t.Helper()
	e.n++
	began, late := time.Now(), time.After(inForceWithin)
	e.Write(fmt.Sprintf("s%d.yaml", e.n), fmt.Sprintf("apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: s%[1]d, namespace: shop}\n"+
		"spec:\n  hosts: [s%[1]d.shop.test]\n  resolution: STATIC\n  ports: [{number: 80, name: http, protocol: HTTP}]\n  endpoints: [{address: 10.1.2.4}]\n", e.n))
	for want := fmt.Sprintf("outbound|80||s%d.shop.test", e.n); ; {
		select {
		case name := <-e.clusters:
			if strings.Contains(name, "evil.test") {
				e.t.Errorf("the client got %s of the file that is refused", name)
			}
			if name == want {
				return time.Since(began)
			}
		case <-late:
			e.t.Fatalf("%s is not in force after %s", want, inForceWithin)
		}
	}
}

// usual is the median of three edits.
func (e *edits) usual() time.Duration {
	e.t.Helper()
	var all []time.Duration
	for range 3 {
		all = append(all, e.inForce())
	}
	slices.Sort(all)
	return all[1]
}

// readyz is what the server says of itself.
func (e *edits) readyz() error {
	ctx, cancel := context.WithTimeout(e.t.Context(), envoytest.Attempt)
	defer cancel()
	out, err := fetch(ctx, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+net.JoinHostPort(e.Address(1), "15014")+"/readyz")
	if err == nil && !strings.HasPrefix(out, "ready\n") {
		err = errors.New(out)
	}
	return err
}

// refused waits until the large file is refused with its figure.
func (e *edits) refused() {
	e.t.Helper()
	const want = "20 hosts × 20 ports × 4096 endpoints make 1638400; one ServiceEntry may have at most 100000"
	e.Server.Eventually(inForceWithin, func() error {
		out, err := e.CLI("proxy-status", "--run-dir", e.RunDir("server"))
		if exit, exited := errors.AsType[*exec.ExitError](err); !exited || exit.ExitCode() != 1 || !strings.Contains(out, want) || !strings.Contains(out, "large.yaml:49:3") {
			return fmt.Errorf("proxy-status lacks %q: %w\n%s", want, err, out)
		}
		return nil
	})
}

// start starts the server, which has to be ready soon.
func (e *edits) start() {
	e.t.Helper()
	e.StartServer("--config-dir", filepath.Join(e.Dir, "evil")+"=evil", "--xds-plaintext-address", net.JoinHostPort(e.Address(1), "15010"))
	e.Server.Eventually(inForceWithin, e.readyz)
	e.watch()
}

// stop asks the server to end, which it has to do soon.
func (e *edits) stop() time.Duration {
	e.t.Helper()
	began := time.Now()
	check(e.t, syscall.Kill(e.Server.PID(), syscall.SIGTERM))
	envoytest.Eventually(e.t, endsWithin, func() error {
		if !e.Server.Ended() {
			return errors.New("the server runs")
		}
		return nil
	})
	return time.Since(began)
}

// evil writes into the directory of the tenant.
func (e *edits) evil(name, text string) {
	e.t.Helper()
	check(e.t, os.WriteFile(filepath.Join(e.Dir, "evil", name), []byte(text), 0o600))
}

// saveLarge makes of the saved copy one in which the large object is the last good version of a file that
// is broken now, as releases without a limit saved it.
func (e *edits) saveLarge(broken string) {
	e.t.Helper()
	files, err := filepath.Glob(filepath.Join(e.StateDir("server"), "files", "*", "lastgood-*.json"))
	check(e.t, err)
	for _, path := range files {
		var list []lastgood.Entry
		check(e.t, durable.Unseal(path, &list, 1<<30))
		for i := range list {
			if list[i].Rel != "large.yaml" {
				continue
			}
			list[i].Contents = [][]byte{[]byte(broken), []byte(largeEntry(20, 20, 4096))}
			list[i].Kept = []lastgood.EntryKept{{Key: mesh.Key{Kind: mesh.KindServiceEntry, Namespace: "evil", Name: "large"}, Content: 1}}
			check(e.t, durable.Seal(path, list, 1<<30))
			return
		}
	}
	e.t.Fatalf("large.yaml is in none of the saved files %q", files)
}

// cpu is how long a process has computed.
func cpu(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	check(t, err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks, err := strconv.Atoi(fields[11]) // utime, in hundredths of a second
	check(t, err)
	return time.Duration(ticks) * 10 * time.Millisecond
}

// TestLargeFileOfATenant writes 91 kB into a directory that is bound to a namespace: they make 1.6
// million endpoints. The object is refused with the figure, and so it is when the saved copy has it. Edits of
// others are in force as fast as before, the server is ready, and ends when it is asked, also while it
// reads very much.
func TestLargeFileOfATenant(t *testing.T) {
	t.Parallel()
	e := &edits{Mesh: meshtest.New(t, "", nil), t: t}
	check(t, os.Mkdir(filepath.Join(e.Dir, "evil"), 0o700))
	e.Write("one.yaml", "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: one, namespace: shop}\nspec: {address: 10.1.2.3, serviceAccount: one}\n")
	e.start()
	e.evil("large.yaml", largeEntry(1, 1, 1))
	before := e.usual()
	e.evil("large.yaml", largeEntry(20, 20, 4096))
	e.refused()
	t.Logf("edits are in force after %s, and beside the large file after %s", before, e.usual())
	if err := e.readyz(); err != nil {
		t.Errorf("/readyz beside the large file: %v", err)
	}
	t.Logf("the server ended after %s", e.stop())

	e.start()
	e.refused()
	e.stop()
	broken := strings.Replace(largeEntry(20, 20, 4096), "STATIC", "BROKEN", 1)
	e.evil("large.yaml", broken)
	e.saveLarge(broken)
	e.start()
	t.Logf("edits are in force after %s with the saved copy of the large file", e.usual())

	for i := range 4 {
		e.Write(fmt.Sprintf("many%d.yaml", i), manyEntries(i, 40_000))
	}
	began := cpu(t, e.Server.PID())
	e.Server.Eventually(envoytest.Patience, func() error {
		if used := cpu(t, e.Server.PID()) - began; used < time.Second/2 {
			return fmt.Errorf("reading has used %s", used)
		}
		return nil
	})
	t.Logf("the server ended after %s while it read", e.stop())
}
