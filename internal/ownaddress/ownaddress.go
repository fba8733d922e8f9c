// Package ownaddress finds the address by which other hosts reach this one: the source address of its
// route to the control plane. It sends nothing to the control plane, and starts no goroutine. The agent
// and its checks call it.
package ownaddress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// lookupTime bounds the look-up of one name: a dead nameserver must not keep a host from an address that
// another server gives.
const lookupTime = 10 * time.Second

// Of is the source address of the route to one of the servers, HOST:PORT, of which the first one that other
// hosts can reach counts. A name may lead to several addresses. On a host whose own name is in its
// /etc/hosts as 127.0.1.1, as Debian's installer writes it, a server of that name is at a loopback address:
// such an address counts only if no server gives another one, and link-local ones come before it.
func Of(ctx context.Context, servers []string) (netip.Addr, error) {
	var best netip.Addr
	var errs []error
	for _, server := range servers {
		routes, err := sources(ctx, server)
		if err != nil {
			errs = append(errs, err)
		}
		for _, a := range routes {
			if rank(a) > rank(best) {
				best = a
			}
		}
		if rank(best) == reachable {
			return best, nil
		}
	}
	if best.IsValid() {
		return best, nil
	}
	return netip.Addr{}, cmp.Or(errors.Join(errs...), errNoServer)
}

var errNoServer = errors.New("no server of the control plane is known")

// reachable is the rank of an address that other hosts can reach.
const reachable = 3

func rank(a netip.Addr) int {
	switch {
	case !a.IsValid() || a.IsUnspecified():
		return 0
	case a.IsLoopback():
		return 1
	case a.IsLinkLocalUnicast():
		return 2
	default:
		return reachable
	}
}

// sources are the source addresses of the routes to all addresses of a server.
func sources(ctx context.Context, server string) (out []netip.Addr, err error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		return nil, fmt.Errorf("server %q: write HOST:PORT: %w", server, err)
	}
	addresses := []string{host}
	if _, err := netip.ParseAddr(host); err != nil {
		ctx, cancel := context.WithTimeout(ctx, lookupTime)
		defer cancel()
		if addresses, err = net.DefaultResolver.LookupHost(ctx, host); err != nil {
			return nil, fmt.Errorf("looking up the control plane: %w", err)
		}
	}
	var errs []error
	for _, address := range addresses {
		a, err := source(ctx, net.JoinHostPort(address, port))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		out = append(out, a)
	}
	return out, errors.Join(errs...)
}

// source is the source address of the route to an address. No packet is sent: the kernel chooses a route.
func source(ctx context.Context, to string) (netip.Addr, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", to)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("finding a route to the control plane: %w", err)
	}
	defer conn.Close()
	at, err := netip.ParseAddrPort(conn.LocalAddr().String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("reading the address of the route to %s: %w", to, err)
	}
	return at.Addr().Unmap().WithZone(""), nil
}
