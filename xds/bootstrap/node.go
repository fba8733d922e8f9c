package bootstrap

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The types of proxy that a node id may begin with.
const (
	TypeSidecar = "sidecar"
	TypeRouter  = "router"
)

// The keys of Istio's node metadata that are used here.
const (
	keyNamespace      = "NAMESPACE"
	keyServiceAccount = "SERVICE_ACCOUNT"
	keyLabels         = "LABELS"
	keyInstanceIPs    = "INSTANCE_IPS"
	keyWorkloadName   = "WORKLOAD_NAME"
	keyInterception   = "INTERCEPTION_MODE"
	keyMeshID         = "MESH_ID"
	keyClusterID      = "CLUSTER_ID"
	keyNetwork        = "NETWORK"
	keyVersion        = "FAIRLEAD_VERSION"
	keyTime           = "FAIRLEAD_TIME"
	keyMetricsPort    = "FAIRLEAD_METRICS_PORT"
	keyHTTPProxyPort  = "HTTP_PROXY_PORT"
	keyLoopback       = "FAIRLEAD_SERVICES_ON_LOOPBACK"
	keyIPv6           = "FAIRLEAD_IPV6"
	keyFirstPort      = "FAIRLEAD_UNPRIVILEGED_PORT_START"
)

// Limits of a node. Metadata that is not used here is not read, so only what is read is
// limited; the transport limits the size of the message.
const (
	maxIDLength     = 1024
	maxStringLength = 512
	maxLabels       = 128
	maxAddresses    = 32
)

// ErrNode is wrapped by every error of [ParseNode].
var ErrNode = errors.New("unusable node")

// Version is a release of Envoy; zero means unknown.
type Version struct{ Major, Minor, Patch uint32 }

// String is the version with dots, or "unknown".
func (v Version) String() string {
	if v == (Version{}) {
		return "unknown"
	}
	return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch)
}

// AtLeast reports whether v is the given release or a later one.
func (v Version) AtLeast(major, minor uint32) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// Locality is where a proxy claims to run.
type Locality struct{ Region, Zone, SubZone string }

// Node is what a proxy claims to be. Nothing of it is proven: the reader compares it with
// what the peer's certificate entitles it to.
type Node struct {
	// Type is [TypeSidecar] or [TypeRouter].
	Type string
	// Address is the address in the node id.
	Address netip.Addr
	// Name and Namespace are those of the workload; Domain is the DNS domain
	// of the mesh, such as cluster.local.
	Name, Namespace, Domain string
	// ServiceAccount may be empty.
	ServiceAccount string
	// Labels may be nil.
	Labels map[string]string
	// Addresses are all addresses of the proxy, including Address, which is the first by
	// default.
	Addresses []netip.Addr
	// ServiceCluster is how Envoy's tracers name the service; empty means Name.Namespace. It is
	// only written.
	ServiceCluster string
	// WorkloadName, MeshID, ClusterID and Network may be empty.
	WorkloadName, MeshID, ClusterID, Network string
	// Interception is REDIRECT, TPROXY, NONE, or empty.
	Interception string
	// HTTPProxyPort is the port, at 127.0.0.1, for applications that use an HTTP proxy; 0 means
	// MeshConfig's.
	HTTPProxyPort uint16
	// Loopback asks for an address of 127.0.0.0/8 for each service.
	Loopback bool
	// IPv6 says that the host has IPv6, whatever Addresses are.
	IPv6 bool
	// FirstPort is the lowest port at which Envoy may listen; 0 means any.
	FirstPort uint16
	Locality  Locality
	// EnvoyVersion is only ever read: Envoy fills it in.
	EnvoyVersion Version
	// FileSecrets is [FeatureFileSecrets]. It is only read.
	FileSecrets bool
	// FileLists is [FeatureFileLists]. It is only read.
	FileLists bool
	// AccessLogService is [FeatureAccessLogService]. It is only read.
	AccessLogService bool
	// Names is [FeatureNames]. It is only read.
	Names bool
	// AgentVersion is the version of the Fairlead agent of the proxy, or empty.
	AgentVersion string
	// MetricsPort is the port of the agent's page of metrics; 0 means that it does not say. It is
	// only read; see [SetMetricsPort].
	MetricsPort uint16
	// Time is the time of the host's clock when the node was sent, or zero if it was not
	// sent. It is only read; see [SetTime].
	Time time.Time
}

// ID is the node id, TYPE~ADDRESS~NAME.NAMESPACE~NAMESPACE.svc.DOMAIN.
func (n *Node) ID() string {
	return strings.Join([]string{
		n.Type, n.Address.String(), n.Name + "." + n.Namespace, n.Namespace + ".svc." + n.Domain,
	}, "~")
}

// Proto is the node as in an Envoy's bootstrap.
func (n *Node) Proto() (*corev3.Node, error) {
	if err := n.check(); err != nil {
		return nil, err
	}
	fields := map[string]*structpb.Value{}
	set := func(key, value string) {
		if value != "" {
			fields[key] = structpb.NewStringValue(value)
		}
	}
	set(keyNamespace, n.Namespace)
	set(keyServiceAccount, n.ServiceAccount)
	set(keyWorkloadName, n.WorkloadName)
	set(keyInterception, n.Interception)
	set(keyMeshID, n.MeshID)
	set(keyClusterID, n.ClusterID)
	set(keyNetwork, n.Network)
	set(keyVersion, n.AgentVersion)
	set(keyHTTPProxyPort, portText(n.HTTPProxyPort))
	set(keyFirstPort, portText(n.FirstPort))
	if n.Loopback {
		set(keyLoopback, "true")
	}
	if n.IPv6 {
		set(keyIPv6, "true")
	}
	addresses := n.Addresses
	if len(addresses) == 0 {
		addresses = []netip.Addr{n.Address}
	}
	ips := make([]string, len(addresses))
	for i, a := range addresses {
		ips[i] = a.String()
	}
	set(keyInstanceIPs, strings.Join(ips, ","))
	if len(n.Labels) > 0 {
		labels := map[string]*structpb.Value{}
		for k, v := range n.Labels {
			labels[k] = structpb.NewStringValue(v)
		}
		fields[keyLabels] = structpb.NewStructValue(&structpb.Struct{Fields: labels})
	}
	node := &corev3.Node{
		Id:       n.ID(),
		Cluster:  cmp.Or(n.ServiceCluster, n.Name+"."+n.Namespace),
		Metadata: &structpb.Struct{Fields: fields},
	}
	if n.Locality != (Locality{}) {
		node.Locality = &corev3.Locality{Region: n.Locality.Region, Zone: n.Locality.Zone, SubZone: n.Locality.SubZone}
	}
	return node, nil
}

// ParseNode reads what a proxy says of itself. Every string it returns is
// bounded and has only what can be seen, no control characters; unknown metadata is left aside.
func ParseNode(node *corev3.Node) (*Node, error) {
	if node == nil {
		return nil, fmt.Errorf("%w: the first request of a stream has none", ErrNode)
	}
	n, err := parseID(node.GetId())
	if err != nil {
		return nil, err
	}
	var errs []error
	text := func(key string) string {
		s, err := stringField(node.GetMetadata(), key)
		errs = append(errs, err)
		return s
	}
	if ns := text(keyNamespace); ns != "" {
		n.Namespace = ns
	}
	n.ServiceAccount = text(keyServiceAccount)
	n.WorkloadName = text(keyWorkloadName)
	n.Interception = text(keyInterception)
	n.MeshID = text(keyMeshID)
	n.ClusterID = text(keyClusterID)
	n.Network = text(keyNetwork)
	n.AgentVersion = text(keyVersion)
	n.Time = parseTime(text(keyTime))
	n.MetricsPort = portOf(text(keyMetricsPort))
	n.HTTPProxyPort = portOf(text(keyHTTPProxyPort))
	n.FirstPort = portOf(text(keyFirstPort))
	n.Loopback = text(keyLoopback) == "true"
	n.IPv6 = text(keyIPv6) == "true"
	n.FileSecrets = slices.Contains(node.GetClientFeatures(), FeatureFileSecrets)
	n.FileLists = n.FileSecrets && slices.Contains(node.GetClientFeatures(), FeatureFileLists)
	n.AccessLogService = slices.Contains(node.GetClientFeatures(), FeatureAccessLogService)
	n.Names = slices.Contains(node.GetClientFeatures(), FeatureNames)
	n.Labels, err = labelsField(node.GetMetadata())
	errs = append(errs, err)
	n.Addresses, err = addressesField(node.GetMetadata(), n.Address)
	errs = append(errs, err)
	l := node.GetLocality()
	n.Locality = Locality{Region: l.GetRegion(), Zone: l.GetZone(), SubZone: l.GetSubZone()}
	if v := node.GetUserAgentBuildVersion().GetVersion(); v != nil {
		n.EnvoyVersion = Version{Major: v.GetMajorNumber(), Minor: v.GetMinorNumber(), Patch: v.GetPatch()}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return n, n.check()
}

// portText is empty for 0.
func portText(port uint16) string {
	if port == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(port), 10)
}

// portOf is 0 for what is no port, as in Istio.
func portOf(text string) uint16 {
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0
	}
	return uint16(port)
}

// SetTime says in a node what the host's clock shows. It is for the first request of
// a stream alone: a node that is kept, or that Envoy is started with, has no time.
func SetTime(node *corev3.Node, now time.Time) {
	setMetadata(node, keyTime, now.UTC().Format(time.RFC3339Nano))
}

// SetMetricsPort says in the node of an agent at which port its page of metrics is. An Envoy's own
// node does not have it: the port may be another one with each start of the agent.
func SetMetricsPort(node *corev3.Node, port uint16) {
	setMetadata(node, keyMetricsPort, strconv.FormatUint(uint64(port), 10))
}

func setMetadata(node *corev3.Node, key, value string) {
	if node.Metadata == nil {
		node.Metadata = &structpb.Struct{}
	}
	if node.Metadata.Fields == nil {
		node.Metadata.Fields = map[string]*structpb.Value{}
	}
	node.Metadata.Fields[key] = structpb.NewStringValue(value)
}

// parseTime returns zero for an invalid time: a host with a wrong clock is served
// nevertheless.
func parseTime(s string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return time.Time{}
	}
	return t
}

// check returns what is invalid in n.
func (n *Node) check() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrNode}, args...)...))
	}
	if n.Type != TypeSidecar && n.Type != TypeRouter {
		bad("type %q is neither sidecar nor router", n.Type)
	}
	if !n.Address.IsValid() || n.Address.Zone() != "" {
		bad("address %q is not an address without a zone", n.Address)
	}
	for _, f := range []struct{ what, value string }{{"name", n.Name}, {"namespace", n.Namespace}, {"domain", n.Domain}} {
		if f.value == "" || strings.Contains(f.value, "~") {
			bad("%s %q is empty or has a ~", f.what, f.value)
		}
	}
	if strings.Contains(n.Namespace, ".") {
		bad("namespace %q has a dot", n.Namespace)
	}
	switch n.Interception {
	case "", "REDIRECT", "TPROXY", "NONE":
	default:
		bad("INTERCEPTION_MODE %q is none of REDIRECT, TPROXY, NONE", n.Interception)
	}
	for _, s := range []string{
		n.Name, n.Namespace, n.Domain, n.ServiceAccount, n.WorkloadName, n.MeshID, n.ClusterID,
		n.Network, n.Locality.Region, n.Locality.Zone, n.Locality.SubZone, n.AgentVersion,
	} {
		if !clean(s) {
			bad("%.40q is longer than %d bytes or has characters that cannot be seen", s, maxStringLength)
		}
	}
	if len(n.Labels) > maxLabels {
		bad("%d labels, %d are allowed", len(n.Labels), maxLabels)
	}
	for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
		if k == "" || !clean(k) || !clean(n.Labels[k]) {
			bad("label %.40q is longer than %d bytes or has characters that cannot be seen", k, maxStringLength)
			break
		}
	}
	if len(n.Addresses) > maxAddresses {
		bad("%d addresses, %d are allowed", len(n.Addresses), maxAddresses)
	}
	return errors.Join(errs...)
}

func clean(s string) bool {
	return len(s) <= maxStringLength && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError })
}

// parseID splits a node id. As in Istio, an id without four parts is rejected.
func parseID(id string) (*Node, error) {
	if len(id) > maxIDLength {
		return nil, fmt.Errorf("%w: an id of %d bytes, %d are allowed", ErrNode, len(id), maxIDLength)
	}
	parts := strings.Split(id, "~")
	if len(parts) != 4 {
		return nil, fmt.Errorf("%w: id %q has %d parts, not the 4 of TYPE~ADDRESS~NAME.NAMESPACE~DOMAIN", ErrNode, id, len(parts))
	}
	addr, err := netip.ParseAddr(parts[1])
	if err != nil {
		return nil, fmt.Errorf("%w: id %q: %w", ErrNode, id, err)
	}
	n := &Node{Type: parts[0], Address: addr.Unmap()}
	// Names may have dots, namespaces have none.
	dot := strings.LastIndexByte(parts[2], '.')
	if dot < 0 {
		return nil, fmt.Errorf("%w: id %q: %q is not NAME.NAMESPACE", ErrNode, id, parts[2])
	}
	n.Name, n.Namespace = parts[2][:dot], parts[2][dot+1:]
	if _, domain, ok := strings.Cut(parts[3], ".svc."); ok {
		n.Domain = domain
	} else {
		n.Domain = parts[3]
	}
	return n, nil
}

// stringField is a string in metadata, or "" where there is none.
func stringField(m *structpb.Struct, key string) (string, error) {
	v, ok := m.GetFields()[key]
	if !ok {
		return "", nil
	}
	s, ok := v.GetKind().(*structpb.Value_StringValue)
	if !ok {
		return "", fmt.Errorf("%w: metadata %s is not a string", ErrNode, key)
	}
	return s.StringValue, nil
}

func labelsField(m *structpb.Struct) (map[string]string, error) {
	v, ok := m.GetFields()[keyLabels]
	if !ok {
		return nil, nil
	}
	fields := v.GetStructValue().GetFields()
	if v.GetStructValue() == nil || len(fields) > maxLabels {
		return nil, fmt.Errorf("%w: metadata LABELS is not a map of at most %d labels", ErrNode, maxLabels)
	}
	labels := make(map[string]string, len(fields))
	for k, v := range fields {
		s, ok := v.GetKind().(*structpb.Value_StringValue)
		if !ok {
			return nil, fmt.Errorf("%w: label %.40q is not a string", ErrNode, k)
		}
		labels[k] = s.StringValue
	}
	return labels, nil
}

// addressesField reads INSTANCE_IPS, which Istio writes as one string with commas; a list
// is accepted, too.
func addressesField(m *structpb.Struct, own netip.Addr) ([]netip.Addr, error) {
	v, ok := m.GetFields()[keyInstanceIPs]
	if !ok {
		return []netip.Addr{own}, nil
	}
	var list []string
	switch k := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		list = strings.Split(k.StringValue, ",")
	case *structpb.Value_ListValue:
		for _, e := range k.ListValue.GetValues() {
			list = append(list, e.GetStringValue())
		}
	default:
		return nil, fmt.Errorf("%w: metadata INSTANCE_IPS is neither a string nor a list", ErrNode)
	}
	if len(list) > maxAddresses {
		return nil, fmt.Errorf("%w: %d addresses, %d are allowed", ErrNode, len(list), maxAddresses)
	}
	addrs := make([]netip.Addr, 0, len(list)+1)
	for _, s := range list {
		a, err := netip.ParseAddr(strings.TrimSpace(s))
		if err != nil || a.Zone() != "" {
			return nil, fmt.Errorf("%w: metadata INSTANCE_IPS: %.60q is not an address", ErrNode, s)
		}
		addrs = append(addrs, a.Unmap())
	}
	if !slices.Contains(addrs, own) {
		addrs = append(addrs, own)
	}
	return addrs, nil
}
