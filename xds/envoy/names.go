package envoy

import (
	"strings"
	"time"

	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/fairlead/fairlead/xds/bootstrap"
	"github.com/fairlead/fairlead/xds/view"
)

// nameTTL is how long clients may keep an answer: as in Istio's agent.
const nameTTL = 30 * time.Second

// buildName makes the resources of a host name: its addresses, and its ports, because a message has
// one of the two.
func buildName(p *view.Name) []Resource {
	ttl := durationpb.New(nameTTL)
	host := string(p.Host)
	name := host
	if p.Host != view.NameTable {
		name = strings.TrimSuffix(host, ".")
	}
	if p.Whole { // as in a zone file, a final dot says that nothing is to be added; agents of earlier releases take both
		name += "."
	}
	domain := &dnsv3.DnsTable_DnsVirtualDomain{Name: name, AnswerTtl: ttl}
	if len(p.Addresses) > 0 {
		domain.Endpoint = &dnsv3.DnsTable_DnsEndpoint{EndpointConfig: &dnsv3.DnsTable_DnsEndpoint_AddressList{
			AddressList: &dnsv3.DnsTable_AddressList{Address: p.Addresses},
		}}
	}
	out := []Resource{resource(NameType, host, marshal(domain), p.Origins())}
	if len(p.Ports) == 0 {
		return out
	}
	list := &dnsv3.DnsTable_DnsServiceList{}
	for _, port := range p.Ports {
		protocol := &dnsv3.DnsTable_DnsServiceProtocol_Name{Name: "tcp"}
		if port.UDP {
			protocol.Name = "udp"
		}
		list.Services = append(list.Services, &dnsv3.DnsTable_DnsService{
			ServiceName: port.Service, Protocol: &dnsv3.DnsTable_DnsServiceProtocol{ProtocolConfig: protocol}, Ttl: ttl,
			Targets: []*dnsv3.DnsTable_DnsServiceTarget{{EndpointType: &dnsv3.DnsTable_DnsServiceTarget_HostName{HostName: host}, Port: port.Number}},
		})
	}
	ports := &dnsv3.DnsTable_DnsVirtualDomain{
		Name: host, AnswerTtl: ttl,
		Endpoint: &dnsv3.DnsTable_DnsEndpoint{EndpointConfig: &dnsv3.DnsTable_DnsEndpoint_ServiceList{ServiceList: list}},
	}
	return append(out, resource(NameType, bootstrap.NamePorts+host, marshal(ports), p.Origins()))
}
