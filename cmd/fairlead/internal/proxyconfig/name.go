package proxyconfig

import (
	"fmt"
	"strings"

	dnsv3 "github.com/envoyproxy/go-control-plane/envoy/data/dns/v3"
)

// nameRows has one row: the addresses of a host name, or its ports.
func nameRows(e *Entry, d *dnsv3.DnsTable_DnsVirtualDomain) [][]string {
	kind, list := "table", []string{}
	switch {
	case d.GetEndpoint().GetServiceList() != nil:
		kind = "SRV"
		for _, s := range d.GetEndpoint().GetServiceList().GetServices() {
			for _, t := range s.GetTargets() {
				list = append(list, fmt.Sprintf("_%s._%s:%d", s.GetServiceName(), s.GetProtocol().GetName(), t.GetPort()))
			}
		}
	case d.GetEndpoint().GetAddressList() != nil:
		kind, list = "A, AAAA", d.GetEndpoint().GetAddressList().GetAddress()
	}
	return [][]string{{d.GetName(), kind, strings.Join(list, ", "), from(e), e.Name}}
}
