package mapping

import (
	"errors"
	"fmt"
	"slices"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// Config says how the catalog looks in the mesh. The zero Config is a good one.
type Config struct {
	// Hosts are templates of the host names that a service has. Empty means the
	// name that Consul's DNS gives it: NAME.service.consul, and for services
	// outside the home namespace and partition
	// NAME.service.NAMESPACE.ns.PARTITION.ap.consul.
	//
	// A template may use {{.Service}}, {{.Namespace}} (the namespace in the mesh),
	// {{.ConsulNamespace}} and {{.Partition}}.
	Hosts []string
	// Namespace and ServiceAccount are templates of a service's identity, with
	// {{.Service}}, {{.ConsulNamespace}} and {{.Partition}}. Empty means
	// {{.ConsulNamespace}}, which is "default" where Consul has no namespaces, and
	// {{.Service}}.
	Namespace, ServiceAccount string
	// HomeNamespace and HomePartition are Consul's namespace and partition of
	// which services need not be told apart by a template. Empty means "default".
	HomeNamespace, HomePartition string
	// Rules are for services by name; see [Rule].
	Rules []Rule
	// Address says which address of an instance counts. Empty means AddressLAN.
	Address AddressKind
	// Loopback takes loopback addresses, as of "consul agent -dev" and where a
	// whole mesh is on one machine. Elsewhere they are every host's own, and what
	// is sent there comes to the host that sends it.
	Loopback bool
	// NodeIsHost says that nodes are called as the hosts of the mesh on them are, in
	// lower case: then an instance is of the host of its node, and no other host may
	// be served as it or report its health.
	NodeIsHost bool
}

// AddressKind is one of the addresses that a node and a service are tagged with.
// Where an instance has none of that kind it is reached at its main address.
type AddressKind string

// The kinds of addresses. In a datacenter that is not the local one, a kind
// of the LAN stays for that of the WAN.
const (
	AddressLAN     AddressKind = metakeys.AddressLAN
	AddressLANIPv4 AddressKind = metakeys.AddressLANIPv4
	AddressLANIPv6 AddressKind = metakeys.AddressLANIPv6
	AddressWAN     AddressKind = metakeys.AddressWAN
	AddressWANIPv4 AddressKind = metakeys.AddressWANIPv4
	AddressWANIPv6 AddressKind = metakeys.AddressWANIPv6
)

// AddressKinds are all of them.
func AddressKinds() []AddressKind {
	return []AddressKind{AddressLAN, AddressLANIPv4, AddressLANIPv6, AddressWAN, AddressWANIPv4, AddressWANIPv6}
}

// defaultName is how Consul calls its first namespace and partition.
const defaultName = "default"

// Mapper maps services. It may be used from any goroutine.
type Mapper struct {
	hosts                        []template // or none: Consul's own names
	namespace, account           template
	homeNamespace, homePartition string
	rules                        ruleSet
	address                      AddressKind
	loopback                     bool
	nodeIsHost                   bool
}

// New checks the configuration. Its error names everything that is wrong.
func New(c Config) (*Mapper, error) {
	m := &Mapper{
		homeNamespace: orDefault(c.HomeNamespace),
		homePartition: orDefault(c.HomePartition),
		address:       c.Address,
		loopback:      c.Loopback,
		nodeIsHost:    c.NodeIsHost,
	}
	var errs []error
	if m.address == "" {
		m.address = AddressLAN
	}
	if !slices.Contains(AddressKinds(), m.address) {
		errs = append(errs, fmt.Errorf("address kind %q is unknown; write one of %v", c.Address, AddressKinds()))
	}
	for _, text := range c.Hosts {
		t, err := parseHost(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("reading the host template %q: %w", text, err))
			continue
		}
		for i := range m.hosts {
			if overlap(&m.hosts[i], &t) {
				errs = append(errs, fmt.Errorf("the host templates %q and %q can give two services the same host; leave one of them out", c.Hosts[i], text))
			}
		}
		m.hosts = append(m.hosts, t)
	}
	var err error
	if m.namespace, err = parseIdentity(c.Namespace, "{{.ConsulNamespace}}", isDNSLabel); err != nil {
		errs = append(errs, fmt.Errorf("reading the namespace template %q: %w", c.Namespace, err))
	}
	if m.account, err = parseIdentity(c.ServiceAccount, "{{.Service}}", isSubdomain); err != nil {
		errs = append(errs, fmt.Errorf("reading the service account template %q: %w", c.ServiceAccount, err))
	}
	if m.rules, err = newRuleSet(c.Rules, m.homePartition, m.homeNamespace); err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return m, nil
}

// CommonNamespace is the namespace in the mesh that services get if neither a rule nor their registration gives
// another one; empty if each has one of its own.
func (m *Mapper) CommonNamespace() string {
	if m.namespace.uses(varService) {
		return ""
	}
	return m.namespace.fill(&values{consulNamespace: m.homeNamespace, partition: m.homePartition})
}

func orDefault(name string) string {
	if name == "" {
		return defaultName
	}
	return name
}
