package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/registry"
	"github.com/fairlead/fairlead/registry/consul"
	"github.com/fairlead/fairlead/registry/consul/client"
	"github.com/fairlead/fairlead/registry/consul/mapping"
	"github.com/fairlead/fairlead/registry/manifest"
	"github.com/fairlead/fairlead/registry/mesh"
)

// source is the name of the catalog's source.
const source = "consul"

// catchUp is how long the control plane may take until it has what Consul says,
// once Consul can be asked. It is less than the interval at which all services are
// looked at, 10 s, which would hide a change that no event told of.
const catchUp = 8 * time.Second

// object is a service or workload, as /debug/objects shows it.
type object struct {
	Key, Host, Address, Hash string
	Unhealthy                bool
}

func (o object) name() string { return o.Key + " " + o.Host }

// inForce is what the control plane has of Consul.
func (f *fleet) inForce() ([]object, error) {
	out, err := f.Admin("server", "/debug/objects?source="+source)
	if err != nil {
		return nil, err
	}
	var list []object
	return list, json.Unmarshal([]byte(out), &list)
}

// fresh is what a reading of the catalog says that is made now, at a server and
// not by the way that the control plane takes.
func (f *fleet) fresh(ctx context.Context) ([]object, error) {
	m, err := mapping.New(mapping.Config{Namespace: "shop", Loopback: true})
	if err != nil {
		return nil, err
	}
	conf := consul.Config{Name: source, Logger: slog.New(slog.DiscardHandler), Mapper: m, Local: true}
	conf.Client = client.Config{Address: f.consul.Leader().Address(), CAFile: f.consul.CAFile}
	if f.secured {
		conf.Client.TokenFile = filepath.Join(f.Dir, "management.token")
		if err := os.WriteFile(conf.Client.TokenFile, []byte(f.consul.Management), 0o600); err != nil {
			return nil, err
		}
	}
	fragment, _, err := consul.Read(ctx, conf)
	if err != nil {
		return nil, err
	}
	allocated, err := f.allocated()
	if err != nil {
		return nil, err
	}
	var out []object
	for _, s := range mesh.Merge(mesh.Input{Fallback: manifest.DefaultMeshConfig(), Fragments: []*mesh.Fragment{fragment}, Allocations: allocated}).Services {
		out = append(out, object{Key: s.String(), Host: string(s.Hostname), Hash: s.Hash.String()})
	}
	for _, w := range fragment.Workloads {
		out = append(out, object{Key: w.String(), Address: w.Address, Hash: w.Hash.String(), Unhealthy: w.Health == mesh.Unhealthy})
	}
	if len(out) == 0 {
		return nil, errors.New("the catalog is empty")
	}
	return out, nil
}

// allocated are the addresses that the control plane gave to hosts: they are in its services, and
// Consul does not know them.
func (f *fleet) allocated() (*mesh.Allocations, error) {
	text, err := f.Admin("server", "/v1/addresses")
	if err != nil {
		return nil, err
	}
	var list []struct {
		Namespace string        `json:"namespace"`
		Host      mesh.Hostname `json:"host"`
		Addresses []netip.Addr  `json:"addresses"`
		Allocated bool          `json:"allocated"`
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, err
	}
	changes := map[mesh.NamespacedHost]mesh.Allocation{}
	for _, h := range list {
		if !h.Allocated {
			continue
		}
		var a mesh.Allocation
		for _, ip := range h.Addresses {
			if ip.Is4() {
				a.IPv4 = ip
			} else {
				a.IPv6 = ip
			}
		}
		changes[mesh.NamespacedHost{Namespace: h.Namespace, Host: h.Host}] = a
	}
	var none *mesh.Allocations
	return none.With(changes), nil
}

// registryStatus is what the control plane's registry says of the source.
func (f *fleet) registryStatus() (registry.SourceStatus, error) {
	var all struct{ Registry registry.Status }
	out, err := f.Admin("server", "/v1/sources")
	if err != nil {
		return registry.SourceStatus{}, err
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return registry.SourceStatus{}, err
	}
	for _, s := range all.Registry.Sources {
		if s.Name == source {
			return s, nil
		}
	}
	return registry.SourceStatus{}, fmt.Errorf("there is no source %s: %s", source, out)
}

// consulStatus is what the source itself says.
func (f *fleet) consulStatus() (*consul.Status, error) {
	var all struct{ Consul []*consul.Status }
	out, err := f.Admin("server", "/v1/sources")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		return nil, err
	}
	if len(all.Consul) != 1 {
		return nil, fmt.Errorf("there is no status of the catalog: %s", out)
	}
	return all.Consul[0], nil
}

// differs says how the control plane's model differs from a fresh reading, but for
// what the guard holds. held are those of them that are gone from Consul.
func (f *fleet) differs(ctx context.Context) (held int, err error) {
	fresh, err := f.fresh(ctx)
	if err != nil {
		return 0, err
	}
	have, err := f.inForce()
	if err != nil {
		return 0, err
	}
	st, err := f.registryStatus()
	if err != nil {
		return 0, err
	}
	kept := map[string]bool{}
	for _, h := range st.Held {
		kept[h.Key.String()] = true
	}
	want := map[string]object{}
	for _, o := range fresh {
		want[o.name()] = o
	}
	var errs []error
	for _, o := range have {
		w, ok := want[o.name()]
		delete(want, o.name())
		switch {
		case !ok && kept[o.Key]:
			held++
		case !ok:
			errs = append(errs, fmt.Errorf("%s is not in Consul, and not held", o.name()))
		case w != o:
			errs = append(errs, fmt.Errorf("%+v is in force, Consul says %+v", o, w))
		}
	}
	for name := range want {
		errs = append(errs, fmt.Errorf("%s is in Consul and not in force", name))
	}
	if len(errs) > 5 {
		errs = append(errs[:5], fmt.Errorf("and %d differences more", len(errs)-5))
	}
	return held, errors.Join(errs...)
}

// equal waits until the control plane has what Consul says now, and says how many
// removals are held.
func (f *fleet) equal() (held int) {
	f.t.Helper()
	begin := time.Now()
	envoytest.Eventually(f.t, catchUp, func() (err error) {
		held, err = f.differs(f.t.Context())
		return err
	})
	f.t.Logf("equal to a fresh reading after %s, but for %d held", time.Since(begin).Round(time.Millisecond), held)
	return held
}

// awaitState waits until the source says that of itself.
func (f *fleet) awaitState(state consul.State) *consul.Status {
	f.t.Helper()
	var st *consul.Status
	f.Server.Eventually(patience, func() (err error) {
		if st, err = f.consulStatus(); err == nil && st.State != state {
			err = fmt.Errorf("the source is %s: %s", st.State, st.Reason)
		}
		return err
	})
	return st
}
