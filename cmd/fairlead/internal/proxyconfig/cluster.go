package proxyconfig

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// clusterName is a cluster's name in Istio's form, DIRECTION|PORT|SUBSET|HOST, or any other
// name as a host.
func clusterName(name string) (direction, port, subset, host string) {
	parts := strings.SplitN(name, "|", 4)
	if len(parts) < 4 {
		return "", "", "", name
	}
	return parts[0], parts[1], parts[2], parts[3]
}

func clusterRows(e *Entry, c *clusterv3.Cluster) [][]string {
	direction, port, subset, host := clusterName(c.GetName())
	kind := c.GetType().String()
	if t := c.GetClusterType(); t != nil {
		kind = t.GetName()
	}
	return [][]string{{host, port, subset, direction, kind, cmp.Or(strings.Join(e.DestinationRules, ","), configOf(c.GetMetadata())), from(e), c.GetName()}}
}

// configOf is the object that a resource was made from, where Istio's tools expect it.
func configOf(m *corev3.Metadata) string {
	// /apis/networking.istio.io/v1/namespaces/NAMESPACE/KIND/NAME
	path := strings.Split(m.GetFilterMetadata()["istio"].GetFields()["config"].GetStringValue(), "/")
	if len(path) != 8 {
		return ""
	}
	return path[7] + "." + path[5]
}

// from are the lines of YAML from which a resource was made, as far as they are known.
func from(e *Entry) string {
	const most = 4
	list := e.Origins
	if more := len(list) - most; more > 1 { // to count one takes as much space as to list it
		list = append(slices.Clone(list[:most]), "… and "+strconv.Itoa(more)+" more")
	}
	return strings.Join(list, " ")
}

// HostHealth is what Envoy says of one endpoint of a cluster.
type HostHealth struct {
	// Status is as in EDS, or what Envoy's own health checks found.
	Status string `json:"status"`
	// Ejected says that outlier detection has ejected it.
	Ejected bool `json:"ejected,omitempty"`
}

func endpointRows(e *Entry, m *endpointv3.ClusterLoadAssignment) (rows [][]string) {
	_, _, _, host := clusterName(m.GetClusterName())
	for _, group := range m.GetEndpoints() {
		for _, ep := range group.GetLbEndpoints() {
			address, port := addressOf(ep.GetEndpoint().GetAddress())
			status, outlier := ep.GetHealthStatus().String(), ""
			if health, ok := e.Health[socket(ep.GetEndpoint().GetAddress())]; ok {
				status, outlier = health.Status, "OK"
				if health.Ejected {
					outlier = "FAILED"
				}
			}
			if status == corev3.HealthStatus_UNKNOWN.String() {
				status = "HEALTHY" // Envoy takes it for healthy, and shows it so
			}
			weight := ""
			if w := ep.GetLoadBalancingWeight(); w != nil {
				weight = strconv.FormatUint(uint64(w.GetValue()), 10)
			}
			rows = append(rows, []string{
				address, port, status, outlier, m.GetClusterName(), weight, locality(group.GetLocality()), strconv.FormatUint(uint64(group.GetPriority()), 10), host, m.GetClusterName(),
			})
		}
	}
	return rows
}

// socket is an address as Envoy writes it in its list of hosts.
func socket(a *corev3.Address) string {
	address, port := addressOf(a)
	if port == "" {
		return address
	}
	if strings.Contains(address, ":") {
		address = "[" + address + "]"
	}
	return address + ":" + port
}

// addressOf is an address, and its port if it has one.
func addressOf(a *corev3.Address) (address, port string) {
	switch {
	case a.GetSocketAddress() != nil:
		return a.GetSocketAddress().GetAddress(), strconv.FormatUint(uint64(a.GetSocketAddress().GetPortValue()), 10)
	case a.GetPipe() != nil:
		return a.GetPipe().GetPath(), ""
	case a.GetEnvoyInternalAddress() != nil:
		return "envoy://" + a.GetEnvoyInternalAddress().GetServerListenerName(), ""
	default:
		return "", ""
	}
}

func locality(l *corev3.Locality) string {
	return strings.TrimRight(strings.Join([]string{l.GetRegion(), l.GetZone(), l.GetSubZone()}, "/"), "/")
}
