package proxyconfig

import (
	"fmt"
	"slices"
	"strings"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// The names of the types of which more than the table knows.
const (
	All         = "all"
	Cluster     = "cluster"
	Endpoint    = "endpoint"
	Extension   = "extension"
	Listener    = "listener"
	Route       = "route"
	VirtualHost = "virtual-host"
	Secret      = "secret"
	Bootstrap   = "bootstrap"
	Log         = "log"
	ProxyConfig = "proxyconfig"
	Name        = "name"
)

// column is one of a table. A filter of its name selects rows by it; a column without a head
// is there for its filter only.
type column struct{ head, filter string }

// Type is a part of a proxy's configuration that can be shown.
type Type struct {
	Name    string
	Aliases []string
	// Server tells whether the server has it: the rest is known on the proxy's host only.
	Server  bool
	columns []column
	// order are the columns by which resources are sorted, before all others.
	order []int
	// rows describes a resource.
	rows func(e *Entry) ([][]string, error)
}

// Types are all types.
func Types() []Type {
	return []Type{
		{
			Name: Cluster, Aliases: []string{"clusters", "c"}, Server: true, rows: decoded(clusterRows),
			columns: []column{{"SERVICE FQDN", "fqdn"}, {"PORT", "port"}, {"SUBSET", "subset"}, {"DIRECTION", "direction"}, {"TYPE", ""}, {"DESTINATION RULE", ""}, {"FROM", ""}, {"", "name"}},
		},
		{
			Name: Listener, Aliases: []string{"listeners", "l"}, Server: true, rows: decoded(listenerRows), order: []int{1},
			columns: []column{{"ADDRESSES", "address"}, {"PORT", "port"}, {"MATCH", ""}, {"FILTERS", ""}, {"DESTINATION", ""}, {"FROM", ""}, {"", "name"}},
		},
		{
			Name: Route, Aliases: []string{"routes", "r"}, Server: true, rows: decoded(routeRows),
			columns: []column{{"NAME", "name"}, {"VHOST NAME", ""}, {"DOMAINS", "fqdn"}, {"MATCH", ""}, {"DESTINATION", ""}, {"WEIGHT", ""}, {"TIMEOUT", ""}, {"VIRTUAL SERVICE", ""}},
		},
		{
			Name: VirtualHost, Aliases: []string{"virtual-hosts", "vh"}, Server: true, rows: decoded(virtualHostRows),
			columns: []column{{"NAME", "name"}, {"DOMAINS", "fqdn"}, {"ROUTES", ""}, {"FROM", ""}},
		},
		{
			Name: Extension, Aliases: []string{"extensions", "ecds"}, Server: true, rows: decoded(extensionRows),
			columns: []column{{"NAME", "name"}, {"TYPE", ""}, {"FROM", ""}},
		},
		{
			Name: Endpoint, Aliases: []string{"endpoints", "ep"}, Server: true, rows: decoded(endpointRows),
			columns: []column{
				{"ADDRESS", "address"}, {"PORT", "port"}, {"STATUS", "status"}, {"OUTLIER CHECK", ""}, {"CLUSTER", "cluster"}, {"WEIGHT", ""}, {"LOCALITY", ""}, {"PRIORITY", ""}, {"", "fqdn"}, {"", "name"},
			},
			order: []int{4, 7},
		},
		{
			Name: ProxyConfig, Aliases: []string{"pc", "pcds"}, Server: true, rows: proxyConfigRows,
			columns: []column{{"SETTING", "name"}, {"VALUE", ""}},
		},
		{
			Name: Name, Aliases: []string{"names", "nds"}, Server: true, rows: decoded(nameRows),
			columns: []column{{"HOST", "fqdn"}, {"TYPE", ""}, {"ADDRESSES OR PORTS", ""}, {"FROM", ""}, {"", "name"}},
		},
		{
			Name: Secret, Aliases: []string{"secrets", "s"}, rows: secretRows,
			columns: []column{{"RESOURCE NAME", "name"}, {"TYPE", ""}, {"STATUS", "status"}, {"VALID CERT", ""}, {"SERIAL NUMBER", ""}, {"NOT AFTER", ""}, {"NOT BEFORE", ""}, {"IDENTITY", ""}},
		},
		{Name: Bootstrap, Aliases: []string{"b"}, rows: decoded(bootstrapRows), columns: []column{{"SETTING", "name"}, {"VALUE", ""}}},
		{Name: Log, Aliases: []string{"logs", "o"}, rows: logRows, columns: []column{{"LOGGER", "name"}, {"LEVEL", ""}}},
		{
			Name: All, Aliases: []string{"a"}, Server: true, rows: overviewRows,
			columns: []column{{"TYPE", ""}, {"NAME", "name"}, {"VERSION", ""}, {"ACCEPTED", ""}, {"FROM", ""}},
		},
	}
}

// Resource is the type URL of the resources of this type; empty if they are none.
func (t *Type) Resource() string {
	m := message(t.Name)
	if m == nil || t.Name == Bootstrap {
		return ""
	}
	return "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
}

// message is a new message of the type; nil if it has none.
func message(name string) proto.Message {
	switch name {
	case Cluster:
		return &clusterv3.Cluster{}
	case Endpoint:
		return &endpointv3.ClusterLoadAssignment{}
	case Extension:
		return &corev3.TypedExtensionConfig{}
	case Listener:
		return &listenerv3.Listener{}
	case Route:
		return &routev3.RouteConfiguration{}
	case VirtualHost:
		return &routev3.VirtualHost{}
	case Bootstrap:
		return &bootstrapv3.Bootstrap{}
	case Name:
		return &dnsv3.DnsTable_DnsVirtualDomain{}
	case ProxyConfig:
		return &meshconfig.ProxyConfig{}
	default:
		return nil
	}
}

// Find finds a type by its name or an alias of it.
func Find(name string) (Type, error) {
	names := make([]string, 0, len(Types()))
	for _, t := range Types() {
		if t.Name == name || slices.Contains(t.Aliases, name) {
			return t, nil
		}
		names = append(names, t.Name)
	}
	return Type{}, fmt.Errorf("there is no type %q: choose %s", name, strings.Join(names, ", "))
}

// FindServed finds a type that a server has.
func FindServed(name string) (Type, error) {
	t, err := Find(name)
	if err == nil && !t.Server {
		return t, fmt.Errorf("the server does not have the type %q of a proxy: ask on the proxy's host with --agent-run-dir, or read a config_dump of its Envoy with -f", t.Name)
	}
	return t, err
}

// Names are the names of all types.
func Names() (names []string) {
	for _, t := range Types() {
		names = append(names, t.Name)
	}
	return names
}

// Filters are the names of the filters of any type, in the order of the table.
func Filters() (names []string) {
	for _, t := range Types() {
		for _, f := range t.filters() {
			if !slices.Contains(names, f) {
				names = append(names, f)
			}
		}
	}
	return names
}

// WithFilter are the types that a filter works for.
func WithFilter(filter string) (names []string) {
	for _, t := range Types() {
		if slices.Contains(t.filters(), filter) {
			names = append(names, t.Name)
		}
	}
	return names
}

// Check refuses filters that a type does not have.
func (t *Type) Check(filters map[string]string) error {
	for _, f := range Filters() {
		if _, set := filters[f]; set && !slices.Contains(t.filters(), f) {
			return fmt.Errorf("--%s does not select %s: it is for %s", f, t.Aliases[0], strings.Join(WithFilter(f), ", "))
		}
	}
	return nil
}

func (t *Type) filters() (names []string) {
	for _, c := range t.columns {
		if c.filter != "" {
			names = append(names, c.filter)
		}
	}
	return names
}

// Needs are the types that a server is asked for: route configurations need their virtual hosts.
func (t *Type) Needs() []string {
	if t.Name == Route {
		return []string{Route, VirtualHost}
	}
	return []string{t.Name}
}
