package envoy

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/registry/mesh"
	"github.com/fairlead/fairlead/xds/view"
)

// The clusters with fixed names, of which a proxy has one each.
const (
	BlackHoleCluster          = "BlackHoleCluster"
	PassthroughCluster        = "PassthroughCluster"
	InboundPassthroughCluster = "InboundPassthroughCluster" //nolint:gosec // G101: no credential
)

// Direction is the first field of a cluster's name.
type Direction string

// The directions of a cluster, seen from the proxy.
const (
	Outbound Direction = "outbound"
	Inbound  Direction = "inbound"
)

// ClusterName is the name of a cluster of a service, in Istio's form:
// outbound|80|v1|host, inbound|8080||.
type ClusterName struct {
	Direction Direction
	Port      uint32
	Subset    string
	Host      mesh.Hostname
}

// String is the name as Envoy knows it.
func (n ClusterName) String() string {
	return string(n.Direction) + "|" + strconv.FormatUint(uint64(n.Port), 10) + "|" + n.Subset + "|" + string(n.Host)
}

// ParseClusterName parses exactly what String returns.
func ParseClusterName(s string) (ClusterName, error) {
	parts := strings.Split(s, "|")
	if len(parts) != 4 {
		return ClusterName{}, fmt.Errorf("parsing cluster name %q: not four parts", s)
	}
	d := Direction(parts[0])
	if d != Outbound && d != Inbound {
		return ClusterName{}, fmt.Errorf("parsing cluster name %q: direction %q", s, parts[0])
	}
	port, err := strconv.ParseUint(parts[1], 10, 16)
	if err != nil {
		return ClusterName{}, fmt.Errorf("parsing cluster name %q: %w", s, err)
	}
	n := ClusterName{Direction: d, Port: uint32(port), Subset: parts[2], Host: mesh.Hostname(parts[3])}
	if n.String() != s {
		return ClusterName{}, fmt.Errorf("parsing cluster name %q: port is not in its shortest form", s)
	}
	return n, nil
}

// nameOf is the name of the cluster that a part refers to.
func nameOf(c view.ClusterRef) string {
	switch c.Kind {
	case view.PassthroughCluster:
		return PassthroughCluster
	case view.BlackHoleCluster:
		return BlackHoleCluster
	case view.InboundPassthroughCluster:
		return InboundPassthroughCluster
	case view.InboundCluster:
		return ClusterName{Direction: Inbound, Port: c.Port}.String()
	case view.SNICluster:
		return strings.Join([]string{string(Outbound), strconv.FormatUint(uint64(c.Port), 10), c.Subset, string(c.Host)}, "_.")
	case view.OutboundCluster:
		return ClusterName{Direction: Outbound, Port: c.Port, Subset: c.Subset, Host: c.Host}.String()
	default:
		return ""
	}
}
