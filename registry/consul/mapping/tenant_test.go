package mapping

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/metakeys"
)

// TestRegistrationNamesNothingOfOthers: whatever key of its registration a service writes, with a name
// of others, it stays the service with the namespace, the hosts and the identity that Consul's names give
// it; the virtual addresses that it names are not its own.
func TestRegistrationNamesNothingOfOthers(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		metakeys.ServiceNamespace: "shop", metakeys.ServiceAccount: "orders", metakeys.ServiceTLS: "istio", metakeys.TLSMode: "istio", metakeys.ServiceProtocol: "tcp",
		metakeys.NodeExternal: "true", metakeys.NodeRegion: "shop", metakeys.NodeZone: "shop", metakeys.NodeSubZone: "shop", metakeys.NodeSubzone: "shop",
	}
	left := map[string]bool{metakeys.ServiceNamespace: true, metakeys.ServiceAccount: true}
	tried := 0
	for _, key := range metakeys.All() {
		if key.Place == metakeys.Annotation || key.Place == metakeys.Label {
			continue
		}
		value := values[key.Name]
		if key.Place == metakeys.Address {
			value = "10.1.0.1"
		}
		if value == "" {
			t.Errorf("no value for %s", key)
		}
		tried++
		r := one(t, Config{}, 1, func(in *Input) {
			e := in.Entries[0]
			switch key.Place {
			case metakeys.ServiceMeta:
				e.Service.Meta = map[string]string{key.Name: value}
			case metakeys.ServiceTag:
				e.Service.Tags = []string{key.Name + "=" + value}
			case metakeys.NodeMeta:
				e.Node.Meta = map[string]string{key.Name: value}
			case metakeys.Address:
				e.Service.TaggedAddresses = map[string]api.ServiceAddress{key.Name: {Address: value, Port: 80}}
			case metakeys.Annotation, metakeys.Label:
			}
		})
		if n := len(r.Fragment.Workloads); left[key.Name] != (n == 0) || n > 1 {
			t.Errorf("%s: %d instances", key, n)
		}
		for _, s := range r.Fragment.Services {
			if s.Namespace != "default" || s.Hostname != "web.service.consul" || len(s.Addresses) > 0 {
				t.Errorf("%s: the service %s/%s at %v", key, s.Namespace, s.Hostname, s.Addresses)
			}
		}
		for _, w := range r.Fragment.Workloads {
			if w.Namespace != "default" || w.ServiceAccount != "web" || w.Annotations != nil || w.Labels[metakeys.ConsulService] != "web" {
				t.Errorf("%s: the workload %s as %s, %v, %v", key, w.Key, w.ServiceAccount, w.Annotations, w.Labels)
			}
		}
	}
	if tried < 20 {
		t.Errorf("%d keys were tried", tried)
	}
}
