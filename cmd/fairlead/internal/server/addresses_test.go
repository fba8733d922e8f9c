package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/mesh"
)

// TestHostAddressesSurvive: a host keeps its address across a restart in which another one
// comes first by name. A record that is damaged is told, and made anew.
func TestHostAddressesSurvive(t *testing.T) {
	t.Parallel()
	dir := treeOf(t, nil)
	var hosts []string
	for i := range 40 {
		host := fmt.Sprintf("z%d.example", i)
		hosts = append(hosts, host)
		put(t, filepath.Join(dir, host+".yaml"), hostEntry("shop", host, host))
	}
	cfg := config(t, dir)
	cfg.AddressRange = "240.9.0.0/24"
	have := func(r *running, n int) map[mesh.Hostname]string {
		t.Helper()
		var out map[mesh.Hostname]string
		r.eventually(func() error {
			list, err := r.listAddresses(t.Context(), nil, struct{}{})
			if err != nil {
				return err
			}
			out = map[mesh.Hostname]string{}
			for _, x := range list {
				if !x.Allocated || len(x.Addresses) != 2 || x.Why != "" {
					return fmt.Errorf("%s has %+v", x.Host, x)
				}
				out[x.Host] = x.Addresses[0]
			}
			if len(out) != n {
				return fmt.Errorf("%d hosts", len(out))
			}
			return nil
		})
		return out
	}
	r := start(t, cfg)
	before := have(r, 40)
	r.stop()
	for i := range 60 { // some of which would take the addresses of others
		host := fmt.Sprintf("a%d.example", i)
		put(t, filepath.Join(dir, host+".yaml"), hostEntry("shop", host, host))
	}
	fresh := cfg
	fresh.StateDir, fresh.RunDir = t.TempDir(), filepath.Join(t.TempDir(), "run")
	r = start(t, fresh)
	anew := have(r, 100)
	r.stop()
	r = start(t, cfg)
	after := have(r, 100)
	r.stop()
	same := func(of map[mesh.Hostname]string) bool {
		for _, h := range hosts {
			if before[mesh.Hostname(h)] != of[mesh.Hostname(h)] {
				return false
			}
		}
		return true
	}
	if !same(after) {
		t.Error("addresses moved with a restart")
	}
	if same(anew) {
		t.Error("without the record nothing moves: the test shows nothing")
	}

	record := filepath.Join(cfg.StateDir, "host-addresses.json")
	if info, err := os.Stat(record); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the record: %v, %v", info, err)
	}
	put(t, record, "damaged")
	r = start(t, cfg)
	if d := cmp.Diff(anew, have(r, 100)); d != "" {
		t.Errorf("without a record two servers differ: %s", d)
	}
	if !strings.Contains(r.out.String(), "reading host-addresses.json failed") {
		t.Errorf("the log does not have it:\n%s", r.out)
	}
	r.stop()
	if saved, err := (hostAddresses{record}).Load(); err != nil || len(saved.Hosts) != 100 {
		t.Errorf("the record has %d hosts, %v", len(saved.Hosts), err)
	}
}

// TestHostAddressesFile: what is saved is read back, and a file that lies is no danger.
func TestHostAddressesFile(t *testing.T) {
	t.Parallel()
	f := hostAddresses{filepath.Join(t.TempDir(), "a.json")}
	if saved, err := f.Load(); err != nil || len(saved.Hosts) != 0 {
		t.Errorf("without a file: %v, %v", saved, err)
	}
	left := 3 * time.Second
	want := addresses.Saved{Running: time.Hour, Hosts: map[mesh.NamespacedHost]addresses.SavedAddress{}}
	for i, a := range allocatedFor(t, "a.example", "b.example") {
		x := addresses.SavedAddress{IPv4: a.IPv4}
		if i.Host == "b.example" {
			x.Left = &left
		}
		want.Hosts[i] = x
	}
	if err := f.Save(want); err != nil {
		t.Fatal(err)
	}
	got, err := f.Load()
	if err != nil || got.Running != want.Running || !maps.EqualFunc(got.Hosts, want.Hosts, func(a, b addresses.SavedAddress) bool {
		return a.IPv4 == b.IPv4 && (a.Left == nil) == (b.Left == nil) && (a.Left == nil || *a.Left == *b.Left)
	}) {
		t.Errorf("saved %+v, read %+v, %v", want, got, err)
	}
	for _, n := range []int64{math.MinInt64, -1, math.MaxInt64} {
		if d := seconds(n); d < 0 || d > 200*365*24*time.Hour {
			t.Errorf("%d seconds are %s", n, d)
		}
	}
}

func allocatedFor(t *testing.T, hosts ...string) map[mesh.NamespacedHost]mesh.Allocation {
	t.Helper()
	f := &mesh.Fragment{}
	for _, h := range hosts {
		f.Services = append(f.Services, &mesh.Service{Hostname: mesh.Hostname(h), Resolution: mesh.ResolutionDNS})
	}
	return maps.Collect(addresses.Of(addresses.Default(), []*mesh.Fragment{f}, nil).All)
}

func TestAddressRangeIsChecked(t *testing.T) {
	t.Parallel()
	cfg := config(t, treeOf(t, nil))
	cfg.AddressRange = "10.0.0.0/16"
	if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "--address-range") {
		t.Errorf("the server starts with %v", err)
	}
}

// TestListedAddresses says of each host where its addresses are from, or why it has none.
func TestListedAddresses(t *testing.T) {
	t.Parallel()
	r := start(t, config(t, treeOf(t, map[string]string{
		"a.yaml": hostEntry("shop", "a", "a.example"),
		"w.yaml": strings.Replace(hostEntry("shop", "w", `"*.wild.example"`), "resolution: DNS", "resolution: NONE", 1),
		"b.yaml": strings.Replace(hostEntry("shop", "b", "b.example"), "resolution: DNS", "resolution: NONE", 1),
		"c.yaml": strings.Replace(hostEntry("shop", "c", "c.example"), "name: c", "name: c, labels: {networking.istio.io/enable-autoallocate-ip: \"false\"}", 1),
		"d.yaml": strings.Replace(hostEntry("shop", "d", "d.example"), "resolution: DNS", "resolution: DNS\n  addresses: [10.7.0.1]", 1),
	})))
	defer r.stop()
	want := []string{
		"*.wild.example 0 false the host is a wildcard", "a.example 2 true ", "b.example 0 false its resolution is NONE",
		"c.example 0 false its label networking.istio.io/enable-autoallocate-ip is false", "d.example 1 false ",
	}
	r.eventually(func() error {
		list, err := r.listAddresses(context.WithoutCancel(t.Context()), nil, struct{}{})
		if err != nil {
			return err
		}
		var got []string
		for _, x := range list {
			got = append(got, fmt.Sprintf("%s %d %v %s", x.Host, len(x.Addresses), x.Allocated, x.Why))
		}
		if !slices.Equal(got, want) {
			return errors.New(cmp.Diff(want, got))
		}
		return nil
	})
}
