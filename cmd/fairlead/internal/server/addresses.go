package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/fairlead/fairlead/pki/durable"
	"github.com/fairlead/fairlead/registry/addresses"
	"github.com/fairlead/fairlead/registry/mesh"
)

// hostAddresses keeps in a file which host has which IPv4 address, for
// [registry.AddressStore].
type hostAddresses struct{ path string }

type hostAddressesFile struct {
	Version int `json:"version"`
	// RunningSeconds is for how long servers have run with the file.
	RunningSeconds int64         `json:"running_seconds"`
	Hosts          []hostAddress `json:"hosts"`
}

type hostAddress struct {
	Host      mesh.Hostname `json:"host"`
	Namespace string        `json:"namespace"`
	IPv4      netip.Addr    `json:"ipv4"`
	// LeftSeconds is when nobody named the host any more, on the clock of RunningSeconds; nil
	// while somebody does.
	LeftSeconds *int64 `json:"left_seconds,omitempty"`
}

const (
	hostAddressesVersion = 1
	// maxHostAddresses bounds the file, in bytes.
	maxHostAddresses = 256 << 20
)

// Load implements [registry.AddressStore].
func (a hostAddresses) Load() (addresses.Saved, error) {
	var file hostAddressesFile
	err := durable.Unseal(a.path, &file, maxHostAddresses)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return addresses.Saved{}, nil // nothing was ever saved
	case err != nil:
		return addresses.Saved{}, err
	case file.Version != hostAddressesVersion:
		return addresses.Saved{}, fmt.Errorf("reading %q: it is of version %d, and this release knows %d", a.path, file.Version, hostAddressesVersion)
	}
	out := addresses.Saved{Running: seconds(file.RunningSeconds), Hosts: make(map[mesh.NamespacedHost]addresses.SavedAddress, len(file.Hosts))}
	for _, x := range file.Hosts {
		saved := addresses.SavedAddress{IPv4: x.IPv4}
		if x.LeftSeconds != nil {
			left := seconds(*x.LeftSeconds)
			saved.Left = &left
		}
		out.Hosts[mesh.NamespacedHost{Namespace: x.Namespace, Host: x.Host}] = saved
	}
	return out, nil
}

// seconds is a duration that cannot overflow.
func seconds(n int64) time.Duration {
	const most = int64(100 * 365 * 24 * time.Hour / time.Second)
	return time.Duration(min(max(n, 0), most)) * time.Second
}

// Save implements [registry.AddressStore].
func (a hostAddresses) Save(record addresses.Saved) error {
	file := hostAddressesFile{Version: hostAddressesVersion, RunningSeconds: int64(record.Running / time.Second), Hosts: make([]hostAddress, 0, len(record.Hosts))}
	for h, saved := range record.Hosts {
		x := hostAddress{Host: h.Host, Namespace: h.Namespace, IPv4: saved.IPv4}
		if saved.Left != nil {
			left := int64(*saved.Left / time.Second)
			x.LeftSeconds = &left
		}
		file.Hosts = append(file.Hosts, x)
	}
	slices.SortFunc(file.Hosts, func(x, y hostAddress) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Host, y.Host))
	})
	return durable.Seal(a.path, file, maxHostAddresses)
}

func (s *Server) hostAddresses() hostAddresses {
	return hostAddresses{filepath.Join(s.cfg.StateDir, "host-addresses.json")}
}

// addressRange is the range of the settings.
func (c *Config) addressRange() (netip.Prefix, error) {
	p, err := addresses.ParseRange(cmp.Or(c.AddressRange, addresses.DefaultRange))
	if err != nil {
		return p, fmt.Errorf("--address-range %w", err)
	}
	return p, nil
}

// HostAddresses is a host with its virtual addresses.
type HostAddresses struct {
	Namespace string        `json:"namespace"`
	Host      mesh.Hostname `json:"host"`
	Addresses []string      `json:"addresses"`
	// Loopback is its address on hosts whose agent has --loopback-addresses; empty if it has none.
	Loopback string `json:"loopback,omitempty"`
	// Allocated says that the server chose the addresses. Otherwise they are those that the
	// service has in its source.
	Allocated bool `json:"allocated,omitempty"`
	// Moved says that another server may choose other ones.
	Moved bool `json:"moved,omitempty"`
	// Refused are addresses that the host has in its source, and that another host has.
	Refused []string `json:"refused,omitempty"`
	// Why says why addresses are missing; empty if none is.
	Why string `json:"why,omitempty"`
	// Origin is where the host is declared.
	Origin string `json:"origin"`
}

// listAddresses lists the hosts with their virtual addresses, by namespace and name.
func (s *Server) listAddresses(context.Context, *http.Request, struct{}) ([]HostAddresses, error) {
	out := []HostAddresses{}
	now := s.registry.Snapshot()
	if now == nil {
		return out, nil
	}
	settings := s.viewSettings()
	for _, svc := range now.Services {
		a := now.Allocations().Of(svc.NamespacedHost())
		x := HostAddresses{
			Namespace: svc.Namespace, Host: svc.Hostname, Addresses: slices.Concat(svc.Addresses, svc.Allocated), Allocated: len(svc.Allocated) > 0,
			Refused: a.Refused, Origin: svc.Origin.String(),
		}
		x.Moved = x.Allocated && a.Moved
		for _, v := range x.Addresses {
			if at, ok := settings.LoopbackAddress(v); ok {
				x.Loopback = at
				break
			}
		}
		switch {
		case x.Allocated && a.Full:
			x.Why = "no IPv4 address is left: widen --address-range"
		case len(x.Addresses) > 0:
		case svc.Hostname.IsWildcard():
			x.Why = "the host is a wildcard"
		case svc.Resolution == mesh.ResolutionNone:
			x.Why = "its resolution is NONE"
		case !svc.Allocatable():
			x.Why = "its label networking.istio.io/enable-autoallocate-ip is false"
		}
		out = append(out, x)
	}
	slices.SortStableFunc(out, func(x, y HostAddresses) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Host, y.Host), cmp.Compare(x.Origin, y.Origin))
	})
	return out, nil
}
