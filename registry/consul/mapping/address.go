package mapping

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/localaddr"
	"github.com/fairlead/fairlead/registry/metakeys"
)

// The tagged addresses at which a service is reached by way of something else.
const (
	taggedVirtual       = metakeys.AddressVirtual
	taggedConsulVirtual = metakeys.AddressConsulVirtual
)

const maxVirtual = 8 // of a service

// reach decides where an instance is reached; false where it cannot be.
func (w *serviceMapping) reach(x *entry) (port uint32, address string, ok bool) {
	if x.service.SocketPath != "" {
		w.warn(CodeAddress, x.name(), "it listens on a unix socket, which only its own host can reach; register an address and a port")
		return 0, "", false
	}
	text, port := w.choose(x)
	if port == 0 {
		port = w.rule.Port
	}
	if port == 0 {
		if x.service.Port == 0 {
			w.warn(CodePort, x.name(), "it has no port; register one, or write a rule with port=")
		} else {
			w.warn(CodePort, x.name(), "port %d is none; register one from 1 to 65535", x.service.Port)
		}
		return 0, "", false
	}
	address, wrong := usable(text, w.m.loopback)
	if wrong != "" {
		w.warn(CodeAddress, x.name(), "the address %s %s", sanitize(text), wrong)
		return 0, "", false
	}
	return port, address, true
}

// choose picks one of the addresses of an instance: the service's of the kind
// that is asked for, its main one, the node's of that kind, the node's main one.
func (w *serviceMapping) choose(x *entry) (address string, port uint32) {
	for _, kind := range w.kinds() {
		if a := x.service.TaggedAddresses[string(kind)]; a.Address != "" {
			return a.Address, cmp.Or(validPort(a.Port), x.port)
		}
	}
	if x.service.Address != "" {
		return x.service.Address, x.port
	}
	for _, kind := range w.kinds() {
		if a := x.node.TaggedAddresses[string(kind)]; a != "" {
			return a, x.port
		}
	}
	return x.node.Address, x.port
}

// kinds are those to look for, the best first. Consul fills in wan_ipv4 from the
// main address even where wan says otherwise, so wan comes first.
func (w *serviceMapping) kinds() []AddressKind {
	kind := w.m.address
	if !w.in.Local {
		switch kind {
		case AddressLANIPv4:
			kind = AddressWANIPv4
		case AddressLANIPv6:
			kind = AddressWANIPv6
		case AddressLAN:
			kind = AddressWAN
		case AddressWAN, AddressWANIPv4, AddressWANIPv6:
		}
	}
	return kindsOf(kind)
}

func kindsOf(kind AddressKind) []AddressKind {
	switch kind {
	case AddressWAN:
		return []AddressKind{AddressWAN, AddressWANIPv4, AddressWANIPv6}
	case AddressLAN, AddressLANIPv4, AddressLANIPv6, AddressWANIPv4, AddressWANIPv6:
		return []AddressKind{kind}
	default:
		return nil
	}
}

// Ranges that no instance has, besides those that [localaddr.What] knows.
//
//nolint:gochecknoglobals // read-only
var (
	thisNetwork  = netip.MustParsePrefix("0.0.0.0/8")
	reservedIPv4 = netip.MustParsePrefix("240.0.0.0/4") // broadcast is in it
	compatible   = netip.MustParsePrefix("::/96")
	siteLocal    = netip.MustParsePrefix("fec0::/10")
)

const metadataServer = "is link-local or a cloud's metadata server; register the one that others reach"

const everyHosts = "is every host's own; register the one that others reach, or set --consul-loopback where all hosts are one machine"

// usable returns the address in the form of the mesh, or what is wrong with it.
// Every client's Envoy connects to it, from its own host: nothing may be there
// that means something else to each host.
func usable(text string, loopback bool) (address, wrong string) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return usableName(text, loopback)
	}
	addr = addr.Unmap()
	inner := localaddr.EmbeddedIPv4(addr)
	switch {
	case addr.Zone() != "":
		return "", "has a zone, which means something on one host only"
	case inner.IsUnspecified() || thisNetwork.Contains(inner):
		return "", "is no address to connect to; register the one that others reach"
	case inner.IsLoopback() && (!loopback || inner != addr):
		return "", everyHosts
	case inner.IsMulticast() || reservedIPv4.Contains(inner):
		return "", "is not that of one host; register the one that others reach"
	case inner.IsLinkLocalUnicast() || localaddr.IsMetadataServer(inner):
		return "", metadataServer
	case siteLocal.Contains(inner), compatible.Contains(inner) && !inner.IsLoopback():
		return "", "is of a range that is no longer used; register another one"
	default:
		return addr.String(), ""
	}
}

// usableName checks an address that is no IP address.
func usableName(text string, loopback bool) (address, wrong string) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case name == "":
		return "", "is empty, and so is the node's"
	case !isSubdomain(name):
		return "", "is neither an IP address nor a DNS name"
	case isNumeric(last):
		return "", "is no whole IP address"
	case localaddr.IsMetadataName(name):
		return "", metadataServer
	case localaddr.IsOwnName(name) && !loopback:
		return "", everyHosts
	default:
		return name, ""
	}
}

func isIP(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}

// consulVirtual are the addresses that Consul gives out.
//
//nolint:gochecknoglobals // read-only
var consulVirtual = netip.MustParsePrefix("240.0.0.0/4")

// virtualAddresses finds the addresses that stay for the service, and returns
// their port. Envoys listen there, so who chooses one takes what others send to
// it: only those count that Consul itself gave out, which it does for
// Connect-native services, or those of registrations that a rule trusts. Consul's
// are of one datacenter each.
func (w *serviceMapping) virtualAddresses() (port uint32) {
	found := map[netip.Addr]bool{}
	for i := range w.entries {
		x := &w.entries[i]
		for _, tag := range []string{taggedConsulVirtual, taggedVirtual} {
			a, ok := x.service.TaggedAddresses[tag]
			if !ok || a.Address == "" {
				continue
			}
			addr, ok := w.accepted(x, tag, a)
			if !ok {
				why := "the registration chose it itself; a rule with " + ruleTrust + "=true trusts it"
				if w.rule.TrustMetadata {
					why = "Envoys cannot listen there"
				}
				w.info(CodeVirtual, x.name(), "its %s address %s is not taken: %s", tag, sanitize(a.Address), why)
				continue
			}
			if !w.in.Local {
				continue
			}
			found[addr] = true
			if p := validPort(a.Port); p != 0 && (port == 0 || p < port) {
				port = p
			}
		}
	}
	for addr := range found {
		w.virtual = append(w.virtual, addr.String())
	}
	slices.Sort(w.virtual)
	if len(w.virtual) > maxVirtual {
		w.warn(CodeVirtual, "", "it has %d virtual addresses; the first %d count", len(w.virtual), maxVirtual)
		w.virtual = slices.Clip(w.virtual[:maxVirtual])
	}
	return port
}

func (w *serviceMapping) accepted(x *entry, tag string, a api.ServiceAddress) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(a.Address)
	if err != nil {
		return addr, false
	}
	addr = addr.Unmap()
	if tag == taggedConsulVirtual && consulVirtual.Contains(addr) && x.service.Connect != nil && x.service.Connect.Native {
		return addr, true
	}
	if !w.rule.TrustMetadata {
		return addr, false
	}
	if consulVirtual.Contains(addr) {
		return addr, addr.String() != "255.255.255.255"
	}
	_, wrong := usable(a.Address, false)
	return addr, wrong == ""
}
